"""A real browser that opens one page; the page does the rest and says when it is done."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

from tests.e2e.corpus.tap import Tap
from tests.e2e.harness import eventually

# Without the background flags a browser talks to its maker at every start.
FLAGS = (
    "--headless",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--no-first-run",
    "--no-sandbox",  # it does not start as root otherwise; it sees nothing but our own page
)


async def browse(url: str, tap: Tap, profile: Path) -> bytes:
    """What the page reported at its end."""
    log = profile.with_suffix(".log")
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            "chromium", *FLAGS, f"--user-data-dir={profile}", url, stdout=output, stderr=output, start_new_session=True
        )

    async def reported() -> bytes | None:
        assert process.returncode is None, log.read_text(errors="replace")
        ended = [e.request.body for e in tap.exchanges if e.line == b"POST /done" and e.over]
        return ended[0] if ended else None

    try:
        report: bytes = await eventually(reported)
        return report
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
