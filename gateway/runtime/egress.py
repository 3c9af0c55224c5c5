"""The egress ports of a worker, put together (COR-4): one listener per called service, shared by all workers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.egress import Callee, EgressHandler
from gateway.egress.ports import Counts
from gateway.flows.ports import Spawn
from gateway.ingress.edge import EdgeServer
from gateway.ingress.limits import BufferBudget, EdgeLimits
from gateway.settings import Settings
from gateway.settings.sections import Egress
from gateway.store.client_rows import ClientRows
from gateway.upstream import Upstream


def shared_socket(host: str, port: int) -> socket.socket:
    """A socket on a port that several processes listen on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind((host, port))
    return bound


@dataclass(slots=True)
class _Port:
    """One called service."""

    egress: Egress
    upstream: Upstream
    handler: EgressHandler
    server: EdgeServer | None = None
    listener: asyncio.Server | None = None


class EgressPorts:
    """All of them; where they listen is fixed, whom they call can be reloaded."""

    def __init__(self, settings: Settings, count: Counts, spawn: Spawn) -> None:
        self._spawn = spawn
        self._rows: ClientRows | None = None
        self._ports = []
        for egress in settings.egress:
            upstream = _upstream(settings, egress)
            handler = EgressHandler(self._callee(settings, egress, upstream), count)
            self._ports.append(_Port(egress, upstream, handler))

    async def listen(self, buffers: BufferBudget, limits: EdgeLimits, backlog: int) -> None:
        """Take the application's calls."""
        loop = asyncio.get_running_loop()
        for port in self._ports:
            port.server = EdgeServer(port.handler, buffers=buffers, limits=limits)
            sock = shared_socket(port.egress.listen.host, port.egress.listen.port)
            port.listener = await loop.create_server(port.server, sock=sock, backlog=backlog)

    def open(self, store_url: str, service: str) -> None:
        """The store is there: from the next `use` on, mutations are taken."""
        if self._ports and self._rows is None:
            self._rows = ClientRows(store_url, service=service)

    def use(self, settings: Settings) -> None:
        """Serve new calls with these settings."""
        for port, egress in zip(self._ports, settings.egress, strict=True):
            if egress.url != port.egress.url:
                port.upstream.retire()
                port.upstream = _upstream(settings, egress)
            port.egress = egress
            port.handler.use(self._callee(settings, egress, port.upstream))

    async def shutdown(self, timeout_s: float) -> None:
        """OPS-1: take no new call, finish what is in flight."""
        for port in self._ports:
            if port.listener is not None:
                port.listener.close()
        servers: Sequence[EdgeServer] = [port.server for port in self._ports if port.server is not None]
        await asyncio.gather(*(server.shutdown(timeout_s) for server in servers))
        await asyncio.gather(*(port.upstream.close() for port in self._ports))
        if self._rows is not None:
            await self._rows.close()

    def _callee(self, settings: Settings, egress: Egress, upstream: Upstream) -> Callee:
        return Callee(
            service=settings.service.name.encode(),
            target=egress.target,
            buckets=settings.store.buckets,
            upstream=upstream,
            rows=self._rows,
            spawn=self._spawn,
            timeout_s=settings.upstream.timeout_ms / 1000,
            read_timeout_s=settings.upstream.read_timeout_ms / 1000,
        )


def _upstream(settings: Settings, egress: Egress) -> Upstream:
    upstream = settings.upstream
    return Upstream(
        egress.url,
        connect_timeout_s=upstream.connect_timeout_ms / 1000,
        connect_attempts=upstream.connect_attempts,
    )
