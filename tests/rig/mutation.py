"""Runs the mutants: each is applied to a copy of the tree, alone, and the tests named with it must fail there.

    python -m tests.rig.mutation             # all of them
    python -m tests.rig.mutation lease fence # those whose name has one of these words

Before that the tests must pass on the copy as it is, or they would catch anything.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.rig.mutants import MUTANTS, ROOT

COPIED = ("gateway", "tests", "config", "deploy", "pyproject.toml", "Makefile", "README.md")
WITHIN_S = 180


class Ground:
    """A copy of the tree."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, root / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(source, root / name)

    def run(self, tests: str) -> int:
        """pytest's exit status; as a failure if it does not come to an end."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests.split()]
        try:
            return subprocess.run(
                command,
                cwd=self.root,
                env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=(self.root / "last.log").open("w"),
                stderr=subprocess.STDOUT,
                timeout=WITHIN_S,
            ).returncode
        except subprocess.TimeoutExpired:
            return 1

    def said(self) -> str:
        """The last lines of pytest."""
        return "\n".join((self.root / "last.log").read_text().splitlines()[-15:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*")
    words = parser.parse_args().words
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    survivors = []
    with tempfile.TemporaryDirectory(prefix="twophp-mutants-") as directory:
        os.chmod(directory, 0o711)
        ground = Ground(Path(directory))
        for tests in sorted({mutant.tests for mutant in chosen}):
            print(f"as it is: {tests}", flush=True)
            if ground.run(tests) != 0:
                print(f"{tests}: does not pass as it is\n{ground.said()}")
                return 2
        for number, mutant in enumerate(chosen, 1):
            started = time.monotonic()
            text = mutant.apply(ground.root)
            status = ground.run(mutant.tests)
            (ground.root / mutant.path).write_text(text)
            caught = status == 1  # tests failed; anything else is a test run that did not happen
            if not caught:
                survivors.append(mutant.name)
            word = "caught" if caught else f"SURVIVED (pytest said {status})"
            print(
                f"{number:>3}/{len(chosen)}  {time.monotonic() - started:5.1f} s  {word:<9} {mutant.name}", flush=True
            )
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutants caught")
    for name in survivors:
        print(f"survived: {name}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
