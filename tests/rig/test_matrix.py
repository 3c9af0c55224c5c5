"""The crash matrix (REC-1, REC-2, REC-7, P1-3, P2-2, RPL-1, ASY-1, ACM-3): a covering selection of `make matrix`."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.crash_points import VARIABLE
from tests.rig import matrix
from tests.rig.matrix import CUTS, DIRECT, POINTS, SEQUENCES, Cell, covering_cells

GATEWAY = Path(__file__).parents[2] / "gateway"


@pytest.mark.slow
@pytest.mark.usefixtures("patience")
async def test_a_gateway_may_die_at_any_point(fresh_database: str, data_dir: Path) -> None:
    """Every point in every mode, recoveries and methods in turn."""
    cells = [cell for cell in covering_cells() if cell.point in POINTS]
    result = await matrix.run(fresh_database, data_dir, cells)
    assert result.failures == []
    assert result.crashes >= len(cells)


@pytest.mark.slow
@pytest.mark.usefixtures("patience")
async def test_any_acknowledgement_of_the_store_may_be_lost(fresh_database: str, data_dir: Path) -> None:
    """REC-7: before, while and after each statement of the request path is carried out."""
    cells = [cell for cell in covering_cells() if cell.point in CUTS]
    result = await matrix.run(fresh_database, data_dir, cells)
    assert result.failures == []


@pytest.mark.slow
@pytest.mark.usefixtures("patience")
@pytest.mark.parametrize("name", SEQUENCES)
async def test_who_takes_over_may_die_too(fresh_database: str, data_dir: Path, name: str) -> None:
    """REC-1, REC-2, TTL-2: the rescuer, the redrive, the probe and the sweeper, over all modes and methods."""
    result = await matrix.run(fresh_database, data_dir, sequences={name: 1})
    assert result.failures == []
    assert result.crashes == len(SEQUENCES[name][1])


def test_the_selection_covers_every_point_mode_recovery_and_method() -> None:
    cells = list(covering_cells())
    assert {cell.point for cell in cells} == {*POINTS, *CUTS}
    kinds = {(cell.point, cell.mode in DIRECT or cell.mode) for cell in cells if cell.point in POINTS}
    assert kinds == {(point, mode in DIRECT or mode) for point in POINTS for mode in point.modes}
    every: set[Cell] = set(matrix.every_cell())
    assert set(cells) < every
    for name in ("mode", "recovery", "method"):
        assert {getattr(cell, name) for cell in cells} == {getattr(cell, name) for cell in every}


def test_some_test_dies_at_every_crash_point_of_the_code() -> None:
    """In the matrix, or where a test of its own names the point (egress and sync need another peer)."""
    named = set()
    for path in GATEWAY.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reached":
                (argument,) = node.args
                named |= {part.value for part in ast.walk(argument) if isinstance(part, ast.Constant)}
    inside = {point.name for point in POINTS if not point.outside}.union(*(points for _, points in SEQUENCES.values()))
    prefixes = tuple(name for name in named if name.endswith("."))
    assert {name for name in inside - named if not name.startswith(prefixes)} == set()
    others = "\n".join(path.read_text() for path in (GATEWAY.parent / "tests" / "e2e").glob("test_*.py"))
    assert {name for name in named - inside - set(prefixes) if f'"{name}"' not in others} == set()


@pytest.mark.parametrize(
    ("chosen", "left"), [("here", b"at 1"), ("here:3", b"at 3"), ("elsewhere", b"at 9"), ("", b"at 9")]
)
def test_a_crash_point_kills_at_its_nth_visit_and_only_where_it_is_chosen(chosen: str, left: bytes) -> None:
    program = (
        "from gateway.crash_points import reached\n"
        "for visit in range(1, 10):\n    print('at', visit, flush=True)\n    reached('here')\n"
    )
    environment = {**os.environ, VARIABLE: chosen}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, cwd=GATEWAY.parent)
    died = left != b"at 9"
    assert done.stdout.splitlines()[-1] == left
    assert done.returncode == (-signal.SIGKILL if died else 0)
    assert done.stderr == (b"crash point here\n" if died else b"")
