"""Opening connections: address, TLS, attempts, and the name of what went wrong.

Everything here happens before a request's first byte, so every failure is one of `sent=False` and may be tried again
within the attempts and the time given (REC-4).
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from gateway.upstream.connection import Connection, Owner
from gateway.upstream.failure import FailureKind, UpstreamFailure
from gateway.upstream.origin import Origin

RETRY_PAUSE_S = 0.05  # between attempts: a restarting upstream needs a moment, a client should hardly notice


class Dialler:
    """Makes connections to one origin."""

    def __init__(self, origin: Origin, *, attempts: int, idle_s: float, tls: ssl.SSLContext | None) -> None:
        if attempts < 1:
            raise ValueError("at least one connect attempt is needed")
        self._origin = origin
        self._attempts = attempts
        self._idle_s = idle_s
        self._tls = (tls or _default_tls()) if origin.secure else None

    async def dial(self, owner: Owner, deadline: float) -> Connection:
        """A new connection, or an UpstreamFailure, before `deadline` on the loop's clock whatever the attempts."""
        loop = asyncio.get_running_loop()
        attempt = 1
        while True:
            try:
                return await self._attempt(loop, owner, deadline)
            except UpstreamFailure as failure:
                last = attempt >= self._attempts or loop.time() + RETRY_PAUSE_S >= deadline
                if last or failure.kind == "tls":  # a certificate is no better the next moment
                    raise
            attempt += 1
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _attempt(self, loop: asyncio.AbstractEventLoop, owner: Owner, deadline: float) -> Connection:
        origin = self._origin
        try:
            async with asyncio.timeout_at(deadline):
                _, connection = await loop.create_connection(
                    lambda: Connection(loop, owner, self._idle_s),
                    origin.host,
                    origin.port,
                    ssl=self._tls,
                    server_hostname=origin.host if self._tls is not None else None,
                )
        except TimeoutError as error:
            raise self._failure("connect_timeout", "no connection in time") from error
        except socket.gaierror as error:
            raise self._failure("dns", error.strerror or str(error)) from error
        except ssl.SSLError as error:
            raise self._failure("tls", str(error)) from error
        except ConnectionRefusedError as error:
            raise self._failure("refused", "connection refused") from error
        except OSError as error:
            # A connection that was made and then lost before its handshake's end is TLS's failure.
            cut = self._tls is not None and isinstance(error, ConnectionError)
            raise self._failure("tls" if cut else "refused", str(error)) from error
        if connection.closing:
            connection.abort()
            raise self._failure("refused", "the connection was closed before the request")
        return connection

    def _failure(self, kind: FailureKind, detail: str) -> UpstreamFailure:
        return UpstreamFailure(kind, sent=False, detail=f"{self._origin.host}:{self._origin.port}: {detail}")


def _default_tls() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
