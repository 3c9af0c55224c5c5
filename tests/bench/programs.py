"""The programs that the bench needs and does not bring itself."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

from gateway.store.embedded_binaries import find_binaries
from tests.conftest import SEARCH_PATH


class BenchError(Exception):
    """The run cannot go on, or its figures cannot be trusted."""


def find(name: str) -> str:
    """The path of a program from the system's packages."""
    path = shutil.which(name, path=SEARCH_PATH)
    if path is None:
        raise BenchError(f"{name} is not installed; the bench needs it as a peer (Debian: apt-get install {name})")
    return path


def pgbench() -> str:
    """The pgbench that belongs to the embedded server, else the system's."""
    embedded = find_binaries() / "pgbench"
    return str(embedded) if embedded.is_file() else find("pgbench")


def py_spy() -> str | None:
    """The optional profiler: in this environment, or on the path."""
    beside = Path(sysconfig.get_path("scripts")) / "py-spy"
    return str(beside) if beside.is_file() else shutil.which("py-spy")
