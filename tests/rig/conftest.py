"""What the rig's tests need: more time than the suite allows a single test before it is taken for hung."""

from __future__ import annotations

import faulthandler

import pytest

PATIENCE_S = 420  # a run, its healing and its replays, on a machine that does other things too


@pytest.fixture
def patience() -> None:
    """Re-arm the suite's timer; pytest cancels whichever runs when the test ends."""
    faulthandler.cancel_dump_traceback_later()
    faulthandler.dump_traceback_later(PATIENCE_S, exit=True)
