"""The client of one upstream: what flows and the edge call."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable

from gateway.crash_points import reached
from gateway.protocol.messages import Headers
from gateway.upstream.dialler import Dialler
from gateway.upstream.exchange import Exchange
from gateway.upstream.failure import UpstreamFailure
from gateway.upstream.origin import Origin
from gateway.upstream.pool import Pool
from gateway.upstream.request import check_framing, framing_of, render


class Upstream:
    """One origin and its pool of keep-alive connections.

    A request goes out at most once. Only what comes before its first byte (name, connection, TLS, pool) is tried
    again, within `connect_attempts` and within `connect_timeout_s` in all; redirects are answers like any other
    (REC-4, REC-8).
    """

    def __init__(
        self,
        url: str,
        *,
        connect_timeout_s: float,
        connect_attempts: int = 2,
        pool_max: int = 256,
        idle_s: float = 4.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._origin = Origin.parse(url)
        dialler = Dialler(self._origin, attempts=connect_attempts, idle_s=idle_s, tls=tls)
        self._pool = Pool(dialler.dial, size=pool_max, wait_s=connect_timeout_s)

    @property
    def authority(self) -> bytes:
        """The upstream's own Host header, for `host_header: rewrite`."""
        return self._origin.authority

    @property
    def connections(self) -> int:
        """Connections open or being opened, tunnels aside."""
        return self._pool.taken

    @property
    def idle_connections(self) -> int:
        """Connections that wait for a request."""
        return self._pool.idle

    async def open(
        self,
        method: str,
        target: bytes,
        headers: Headers,
        body: bytes | AsyncIterator[bytes] | None,
        *,
        timeout_s: float,
        read_timeout_s: float,
        on_continue: Callable[[], None] | None = None,
        before_send: Callable[[], bool] | None = None,
    ) -> Exchange:
        """Send a request and wait for the head of its final answer.

        `headers` are final: Host and the framing (`Content-Length`, or `Transfer-Encoding: chunked` for an iterator)
        are the caller's. `timeout_s` is the upstream's time to the head; it starts anew whenever the upstream has
        taken a part of a streamed body, and stands still while that body's source is waited for. `read_timeout_s` is
        its time between body bytes. `before_send` is asked right before the first byte, where False gives the request
        up unsent, and before each further part of a large or streamed body, where it gives up the rest. `on_continue`
        is called at a 100; with `Expect: 100-continue` the body waits for it, for at most a second. What the body's
        iterator raises is raised here, or from reading. Cancelling closes the connection.
        """
        head = render(method, target, headers)
        framing = framing_of(headers)
        check_framing(framing, body)
        connection = self._pool.take() or await self._pool.acquire()
        if before_send is not None:
            allowed = False
            try:
                allowed = before_send()
            finally:
                if not allowed:
                    connection.release()
            if not allowed:
                raise UpstreamFailure("lease", sent=False, detail="the right to send was lost before the first byte")
            reached("send.before")
        exchange = Exchange(
            connection,
            head_only=method == "HEAD",
            upgrade_asked=framing.upgrade,
            read_timeout_s=read_timeout_s,
            on_continue=on_continue,
        )
        answered = exchange.begin(head, body or None, framing, timeout_s=timeout_s, before_send=before_send)
        try:
            await answered
        except BaseException:
            exchange.abort()
            raise
        return exchange

    def retire(self) -> None:
        """Another client has taken over: close what is idle, let what is in flight come to its end."""
        self._pool.retire()

    async def close(self) -> None:
        """Close every connection; exchanges and tunnels still in use are cut."""
        await self._pool.close()
