"""What every test may use."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.postgres import data_dir, fresh_database, postgres_url, template_database

__all__ = ["data_dir", "fresh_database", "postgres_url", "template_database"]

# nginx is a daemon: its directory is not on every user's PATH.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
PROGRAMS = {
    "needs_nginx": "nginx",
    "needs_wrk": "wrk",
    "needs_curl": "curl",
    "needs_git": "git",
    "needs_chromium": "chromium",
    "needs_cadaver": "cadaver",
    "needs_litmus": "litmus",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a program that is not here."""
    for marker, program in PROGRAMS.items():
        if shutil.which(program, path=SEARCH_PATH) is None:
            if os.environ.get("CI"):
                raise pytest.UsageError(f"{program} is not installed, and CI skips nothing")
            for item in items:
                if item.get_closest_marker(marker) is not None:
                    item.add_marker(pytest.mark.skip(reason=f"{program} is not installed"))
