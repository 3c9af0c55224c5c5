"""A minute of chaos in every run of the suite; `make chaos SECONDS=1800` for the long one."""

from __future__ import annotations

import os
import random

import pytest

from tests.rig import chaos

SECONDS = float(os.environ.get("TWOPHP_TEST_CHAOS_SECONDS", "60"))


@pytest.mark.slow
@pytest.mark.usefixtures("patience")
async def test_faults_of_every_kind_lose_nothing_and_double_nothing() -> None:
    """P1-3, P2-2, P2-8, P2-9, RPL-1, RPL-2, REC-1, REC-2, REC-7, REC-9, FSM-1, ACM-3: all that the checker knows."""
    seed = int(os.environ.get("TWOPHP_TEST_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"again with: make chaos SECONDS={SECONDS:g} SEED={seed}")
    summary = await chaos.run(SECONDS, seed)
    print(*summary.lines, sep="\n")
    assert summary.findings.violations == []
    assert summary.findings.intents > 100
    assert sum(summary.faults.values()) > SECONDS / 10
