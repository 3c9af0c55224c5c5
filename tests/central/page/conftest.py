"""A central ledger and a gateway for each test, and a browser for those that ask for one."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.central.page.browser import Browser, opened
from tests.central.page.ledger import KEY, FakeGateway, Ledger

MakeLedger = Callable[..., Awaitable[Ledger]]


@pytest.fixture
async def make_ledger(
    central_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[MakeLedger]:
    """A central ledger in this process, with settings of the test's own."""
    monkeypatch.setenv("TWOPHP_TEST_CENTRAL_KEY", KEY)
    ledger = Ledger(tmp_path / "central.yaml", central_database)

    async def make(**settings: Any) -> Ledger:
        await ledger.start(**settings)
        return ledger

    yield make
    await ledger.stop()


@pytest.fixture
async def ledger(make_ledger: MakeLedger) -> Ledger:
    """The central ledger, as it is configured by default."""
    return await make_ledger()


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    """A gateway that can be asked."""
    gateway = FakeGateway()
    await gateway.start()
    yield gateway
    await gateway.stop()


OpenBrowser = Callable[..., Awaitable[Browser]]


@pytest.fixture
async def open_browser(ledger: Ledger) -> AsyncIterator[OpenBrowser]:
    """The system's Chromium, before the page."""
    program = shutil.which("chromium")
    assert program is not None, "for tests that are marked needs_chromium"
    async with AsyncExitStack() as stack:

        async def open_(**how: Any) -> Browser:
            return await stack.enter_async_context(opened(ledger.url, program, **how))

        yield open_
