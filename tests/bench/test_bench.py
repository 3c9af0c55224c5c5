"""The bench itself: short enough to run with the tests, so that it works on the day it is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import programs, report
from tests.bench.__main__ import main
from tests.bench.report import Goal

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 110


@pytest.mark.slow
@pytest.mark.needs_nginx
@pytest.mark.needs_wrk
def test_a_short_run_measures_everything_and_finds_every_confirmed_handshake_in_the_store(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "tests.bench", "--seconds", "1", "--rounds", "1", "--handshakes", "50"]
    arguments += ["--results", str(tmp_path)]
    finished = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    [path] = tmp_path.glob("*.json")
    results = json.loads(path.read_text())
    limits = {goal["name"]: goal["limit"] for goal in results["goals"] if goal["limit"] is not None}
    assert sorted(limits.values()) == [0.3, 0.45, 0.6, 1.2, 1.7, 10, 70]
    for name in limits:
        assert name in finished.stdout
    assert results["handshake"]["ours"][0]["count"] > 0


def test_a_missing_program_is_said_and_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(programs, "SEARCH_PATH", "")
    monkeypatch.setattr(sys, "argv", ["bench"])
    assert main() == 1
    assert "BENCH FAILED: nginx is not installed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("at_least", "reached", "met"), [(True, 1.7, True), (True, 1.69, False), (False, 70.0, True), (False, 70.1, False)]
)
def test_a_goal_is_met_on_its_better_side(at_least: bool, reached: float, met: bool) -> None:
    goal = Goal("a goal", reached, limit=1.7 if at_least else 70.0, at_least=at_least)
    assert goal.met is met


def test_columns_are_aligned() -> None:
    assert report.table([["name", "figure"], ["a", "1"], ["longer", "10"]]) == (
        "name    figure\n--------------\na            1\nlonger      10"
    )
