"""One POST: to the address that was checked, once, within limits (ACM-4).

No redirects, no proxies of the environment, no cookies, no second try by itself (RELIABILITY fact 1), no
decompression. The status is the whole answer; its body is read a little, so that the connection can be used again,
and never looked at.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping

import aiohttp
from aiohttp.abc import AbstractResolver, AbstractStreamWriter
from aiohttp.payload import BytesPayload

from gateway.delivery.dialling import DialRefused, GuardedResolver, ThreadResolver, guarded_sockets
from gateway.delivery.guard import AddressGuard
from gateway.delivery.targets import Target
from gateway.protocol.deliveries import Result

RESPONSE_BYTES_MAX = 64 * 1024  # of a body nobody looks at; beyond it the connection is closed
RESPONSE_WAIT_S = 1.0  # for that body; the status was the answer
KEEP_ALIVE_S = 15.0
NAMES_KEPT_S = 10  # a changed name is followed within this; kept answers were checked like any other
USER_AGENT = "twophp-gateway"


class Sender:
    """Keeps connections to receivers. Who sends how much to whom is decided elsewhere (`hosts`)."""

    def __init__(
        self,
        guard: AddressGuard,
        *,
        timeout_s: float,
        tls: ssl.SSLContext | None = None,
        names: AbstractResolver | None = None,
    ) -> None:
        self._names = names or ThreadResolver()
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        # Two pools that never share a connection: a caller's URL must not ride on one that was opened unchecked.
        self._guarded = self._session(
            aiohttp.TCPConnector(
                limit=0,
                resolver=GuardedResolver(self._names, guard),
                socket_factory=guarded_sockets(guard),
                ttl_dns_cache=NAMES_KEPT_S,
                keepalive_timeout=KEEP_ALIVE_S,
                ssl=tls or True,
            )
        )
        self._trusted = self._session(
            aiohttp.TCPConnector(
                limit=0,
                resolver=self._names,
                ttl_dns_cache=NAMES_KEPT_S,
                keepalive_timeout=KEEP_ALIVE_S,
                ssl=tls or True,
            )
        )

    def _session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": USER_AGENT, "Content-Type": "application/json"},
            skip_auto_headers=("Accept", "Accept-Encoding"),
            timeout=self._timeout,
            trust_env=False,
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close every connection; what is in flight fails."""
        await self._guarded.close()
        await self._trusted.close()
        await self._names.close()

    async def send(
        self, target: Target, headers: Mapping[str, str], body: bytes, *, on_written: Callable[[], None] | None = None
    ) -> Result:
        """POST once; never raises for what the other side does.

        `on_written` is told when the request has been handed to the socket.
        """
        session = self._trusted if target.trusted else self._guarded
        try:
            answer = await session.post(
                target.url, data=_Told(body, on_written), headers=headers, allow_redirects=False
            )
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            return _failed(error)
        try:
            await _read_a_little(answer)
        finally:
            answer.close()  # after the end of the body this keeps the connection
        return Result(status=answer.status)


class _Told(BytesPayload):
    """A body that tells when it was written, with the headers before it, to the transport."""

    def __init__(self, body: bytes, on_written: Callable[[], None] | None) -> None:
        super().__init__(body, content_type="application/json")
        self._on_written = on_written

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Called by the client once the connection is there."""
        await super().write_with_length(writer, content_length)
        if self._on_written is not None:
            self._on_written()


async def _read_a_little(answer: aiohttp.ClientResponse) -> None:
    size = 0
    try:
        async with asyncio.timeout(RESPONSE_WAIT_S):
            while size <= RESPONSE_BYTES_MAX:
                chunk = await answer.content.readany()
                if not chunk:
                    return
                size += len(chunk)
    except (aiohttp.ClientError, OSError, TimeoutError):
        pass  # the status has come; a body that is cut or slow changes nothing


def _failed(error: Exception) -> Result:
    """The kind of failure, in words of our own: the client's would repeat the URL."""
    match error:
        case aiohttp.ClientConnectorError(os_error=DialRefused() as refused):
            return Result(error=refused.reason, refused=True, asked=False)
        case aiohttp.ClientConnectorDNSError():
            return Result(error="dns")
        case aiohttp.ClientSSLError() | ssl.SSLError():
            return Result(error="tls")
        case TimeoutError():
            return Result(error="timeout")
        case aiohttp.ClientConnectorError():
            return Result(error="connect")
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientOSError() | OSError():
            return Result(error="disconnected")
        case _:
            return Result(error="protocol")
