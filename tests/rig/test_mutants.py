"""The list of mutants stays true to the code; `make mutants` runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rig.mutants import MUTANTS, ROOT, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_what_a_mutant_breaks_stands_in_the_code_once_and_its_tests_exist(mutant: Mutant) -> None:
    assert (ROOT / mutant.path).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new
    named = [word for word in mutant.tests.split() if word.startswith("tests/")]
    assert named
    assert all((ROOT / name).exists() for name in named)


def test_there_are_enough_and_each_has_a_name_of_its_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 20


def test_a_mutant_is_applied_to_the_copy_alone(tmp_path: Path) -> None:
    (tmp_path / "guard.py").write_text("if allowed:\n    act()\n")
    mutant = Mutant("always", "guard.py", "if allowed:", "if True:", "tests")
    assert mutant.apply(tmp_path) == "if allowed:\n    act()\n"
    assert (tmp_path / "guard.py").read_text() == "if True:\n    act()\n"
    with pytest.raises(AssertionError):
        mutant.apply(tmp_path)
