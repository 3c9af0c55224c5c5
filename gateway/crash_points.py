"""Named places where a test can make this process die (RELIABILITY, "Crash points").

`reached("ponr.crossed")` does nothing, unless the environment variable TWOPHP_TEST_CRASH_AT named that place when this
module was imported: then the process kills itself with SIGKILL the first time it comes by, or the n-th time with
`ponr.crossed:3`. Nothing is cleaned up on the way, as in a power cut. This module decides nothing else, and every room
but the pure rules may import it.
"""

from __future__ import annotations

import os
import signal
from typing import Final

VARIABLE: Final = "TWOPHP_TEST_CRASH_AT"

_place, _, _nth = os.environ.get(VARIABLE, "").partition(":")
_left = int(_nth or 1)


def _counts_down(name: str) -> None:
    """Die when the chosen place is reached for the last time."""
    global _left
    if name != _place:
        return
    _left -= 1
    if _left <= 0:
        os.write(2, f"crash point {name}\n".encode())  # past every buffer: nothing is flushed after this
        os.kill(os.getpid(), signal.SIGKILL)


def _passes(name: str) -> None:
    """What production runs: an empty function."""


reached = _counts_down if _place else _passes
