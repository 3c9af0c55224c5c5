"""What is known of receiving hosts: how much is under way to each, and which of them rest.

So that one bad host starves nobody: each has a limit of its own, and a host that does not answer, several times in a
row, rests for a while that doubles. An answer, whatever its status, is no failure of the host. Knows hosts by their
key only.
"""

from __future__ import annotations

import random
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

TRIP = 4  # failures in a row before a host rests: a host that drops every third connection is not down
REST_MIN_S = 0.5
REST_MAX_S = 10.0  # also bounds how long a host that has come back is not called
JITTER = 0.2
KEPT_MAX = 4096  # hosts remembered, the longest unused are forgotten first


@dataclass(slots=True)
class Host:
    """One host and port."""

    under_way: int = 0
    failures: int = 0  # in a row
    rests: int = 0  # in a row
    rests_until: float = 0.0
    slow: bool = False  # the last caller who waited for it waited in vain
    known: bool = False  # it has taken a request, and has not failed since


class Hosts:
    """The hosts that one process sends to."""

    def __init__(self, *, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._hosts: OrderedDict[int, Host] = OrderedDict()

    def enter(self, key: int) -> Host | None:
        """Take a place for one attempt; None when the host rests or is full. Who enters leaves."""
        host = self._hosts.get(key)
        if host is None:
            host = self._hosts[key] = Host()
            self._forget()
        else:
            self._hosts.move_to_end(key)
        if self._room(host) <= 0:
            return None
        host.under_way += 1
        return host

    def leave(self, host: Host, *, answered: bool) -> None:
        """Give the place back, and remember how it went."""
        host.under_way -= 1
        if answered:
            host.failures = host.rests = 0
            host.rests_until = 0.0
            return
        host.known = False
        host.failures += 1
        now = self._clock()
        if host.failures >= TRIP and now >= host.rests_until:
            rest_s = min(REST_MIN_S * 2**host.rests, REST_MAX_S)
            host.rests = min(host.rests + 1, 16)
            host.rests_until = now + rest_s * random.uniform(1 - JITTER, 1 + JITTER)

    def abandon(self, host: Host) -> None:
        """Give the place back of an attempt that was never made or never ended: nothing was learnt."""
        host.under_way -= 1

    def rooms(self) -> dict[int, int]:
        """How many more attempts each host takes that does not take its whole limit; 0 or less: none."""
        return {key: room for key, host in self._hosts.items() if (room := self._room(host)) < self.limit}

    def _room(self, host: Host) -> int:
        return 0 if self._clock() < host.rests_until else self.limit - host.under_way

    def _forget(self) -> None:
        """Drop the longest unused, but none that is in use."""
        if len(self._hosts) <= KEPT_MAX:
            return
        for key, host in self._hosts.items():
            if host.under_way == 0:
                del self._hosts[key]
                return
