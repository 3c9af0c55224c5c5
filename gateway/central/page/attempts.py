"""How often a wrong token may be tried: so many at once for each peer, then one now and then."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

BURST = 10
REFILL_S = 6.0  # one more attempt each
PEERS_MAX = 4_096  # the one heard of longest ago is forgotten first


class Attempts:
    """Wrong tokens by peer. Right ones cost nothing."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._empty_until_s: OrderedDict[str, float] = OrderedDict()  # when all of a peer's attempts are back

    def wait_s(self, peer: str) -> int:
        """How long this peer has to wait before its next attempt; 0: it may try now."""
        full_at_s = self._empty_until_s.get(peer, 0.0)
        used = (full_at_s - self._clock()) / REFILL_S
        return 0 if used <= BURST - 1 else max(1, round((used - (BURST - 1)) * REFILL_S))

    def failed(self, peer: str) -> None:
        """One more wrong token."""
        now_s = self._clock()
        self._empty_until_s[peer] = max(self._empty_until_s.get(peer, 0.0), now_s) + REFILL_S
        self._empty_until_s.move_to_end(peer)
        if len(self._empty_until_s) > PEERS_MAX:
            self._empty_until_s.popitem(last=False)
