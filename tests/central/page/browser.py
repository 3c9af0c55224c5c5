"""A real browser before the page: what it shows, what it says on its console, and what its policy stopped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from playwright.async_api import ConsoleMessage, Page, async_playwright

from tests.central.desk import value_of

PATIENCE_MS = 15_000  # only a failing test waits this long

# Without the background flags a browser talks to its maker at every start.
FLAGS = [
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--no-first-run",
    "--no-sandbox",  # it does not start as root otherwise; it sees nothing but our own page
]
WATCH = """
    window.stopped = [];
    addEventListener("securitypolicyviolation", (event) => window.stopped.push(event.violatedDirective));
"""


@dataclass
class Browser:
    """One tab, and all that went wrong in it."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    async def log_in(self, who: str, path: str = "/") -> None:
        """As a person does it: sent to the login, and on from there."""
        await self.page.goto(path)
        await self.page.get_by_label("Token").fill(value_of(who))
        await self.page.get_by_role("button", name="Log in").click()

    async def stopped(self) -> list[str]:
        """What the content security policy has refused on this page."""
        found: list[str] = await self.page.evaluate("window.stopped")
        return found

    async def overflow_px(self) -> int:
        """How much wider than the window the page is."""
        width: int = await self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return width


@asynccontextmanager
async def opened(
    url: str, program: str, *, width: int = 1280, scheme: Literal["light", "dark"] = "light", script: bool = True
) -> AsyncIterator[Browser]:
    """A browser with a profile of its own."""
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=program, args=FLAGS)
        context = await chromium.new_context(
            base_url=url, viewport={"width": width, "height": 900}, color_scheme=scheme, java_script_enabled=script
        )
        context.set_default_timeout(PATIENCE_MS)
        await context.add_init_script(WATCH)
        browser = Browser(await context.new_page())

        def heard(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                browser.complaints.append(message.text)

        browser.page.on("console", heard)
        browser.page.on("pageerror", lambda error: browser.complaints.append(str(error)))
        browser.page.on("dialog", lambda dialog: browser.complaints.append(f"dialog: {dialog.message}"))
        yield browser
        await chromium.close()
