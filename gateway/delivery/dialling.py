"""Names and sockets for deliveries: every resolved address is checked, and so is every address a socket is opened for.

What is checked is what is connected to: the resolver's answer is the list that is dialled, and the socket factory
sees the very address that goes to `connect`, also for hosts written as addresses, which no resolver is asked about.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from gateway.delivery.guard import AddressGuard

LOOKUPS_MAX = 16  # at once; a name server that hangs holds these threads, never the ones that look up the upstream


class DialRefused(OSError):
    """An address that the guard refuses."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ThreadResolver(AbstractResolver):
    """The system's resolver on threads of its own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS_MAX, thread_name_prefix="delivery-dns")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Every address of a name."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads,
            lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, family=family),
        )
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Let the threads go; those that wait for a name server end with it."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class GuardedResolver(AbstractResolver):
    """Refuses a name as a whole if any of its addresses may not be called: who mixes them means no good."""

    def __init__(self, names: AbstractResolver, guard: AddressGuard) -> None:
        self._names = names
        self._guard = guard

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Every address of a name, all of them allowed."""
        found = await self._names.resolve(host, port, family)
        for entry in found:
            reason = self._guard.check_address(entry["host"])
            if reason is not None:
                raise DialRefused(reason)
        return found

    async def close(self) -> None:
        """The resolver inside is closed by its owner."""


def guarded_sockets(guard: AddressGuard) -> Callable[[Any], socket.socket]:
    """A socket factory that opens none for an address that may not be called."""

    def open_socket(address_info: Any) -> socket.socket:
        family, kind, protocol, _, address = address_info
        reason = guard.check_address(str(address[0]))
        if reason is not None:
            raise DialRefused(reason)
        return socket.socket(family, kind, protocol)

    return open_socket
