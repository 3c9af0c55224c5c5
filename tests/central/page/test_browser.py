"""The page in a real browser: login, search, tree, pull now, live updates, keyboard and phone (LED-3, LED-5)."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote

import pytest
from playwright.async_api import expect

from tests.central.desk import now
from tests.central.page.conftest import OpenBrowser
from tests.central.page.ledger import FakeGateway, Ledger, both, registration, server_id_of

pytestmark = pytest.mark.needs_chromium

EVIL_ID = "<script>alert(1)</script>\"'><img/src=x/onerror=alert(2)>{{7*7}}/../.."
EVIL_PATH = "/<svg/onload=alert(3)>?\"'`${alert(4)}"
WIDE = "wide-" + "w" * 240
ALL_PAGES = (
    *("/", "/search", "/tree", "/tree/c-root", f"/transactions/{server_id_of('c-root')}"),
    *("/stalled", "/in-doubt", "/unpaired", "/unpaired?side=server-only", "/callback-gaps", "/services"),
)


async def fill(ledger: Ledger) -> None:
    """A tree of calls in every state, one-sided ones, and names that no page should break on."""
    await ledger.write(
        *both("shop", "orders", "c-root", path="/orders"),
        *both("orders", "stock", "c-paid", parent="c-root", path="/payments", phase="FAILED"),
        *both("orders", "stock", "c-stock", parent="c-root", path="/reservations", phase="PROCESSING",
              in_doubt=now(20).isoformat().replace("+00:00", "Z"), ago_s=400),
        *both("orders", "stock", "c-ship", parent="c-root", phase="WAITING_CONFIRM", callback="pending", ago_s=60),
        ("orders", registration("orders", "c-lost", target="stock", parent="c-root", phase="TTL_EXPIRED")),
        ("stock", registration("stock", "c-lone", phase="ABANDONED", callback="dead")),
        *both("shop", "orders", WIDE, path="/" + "p" * 300),
    )  # fmt: skip


async def test_login_search_transaction_and_tree(ledger: Ledger, open_browser: OpenBrowser) -> None:
    """LED-5: the way of an auditor, from a correlation ID to everything that came of it."""
    await fill(ledger)
    browser = await open_browser()
    page = browser.page
    await browser.log_in("audit", "/search?actor=server")
    await expect(page.get_by_role("heading", name="Search")).to_be_visible()
    assert page.url.endswith("/search?actor=server")

    await page.get_by_label("Any correlation ID").fill("c-root")
    await page.locator("select[name=actor]").select_option("")
    await page.get_by_role("button", name="Search").click()
    rows = page.locator("#rows tbody tr")
    await expect(rows.filter(has_text="c-root")).not_to_have_count(0)
    await expect(page.locator("#rows")).not_to_contain_text("c-lone")

    await rows.get_by_role("link", name=server_id_of("c-root")).first.click()
    await expect(page.get_by_role("heading", name="Registered by the client")).to_be_visible()
    await expect(page.locator("main")).to_contain_text("From the ledger only")

    await page.get_by_role("link", name="c-root").first.click()
    tree = page.locator("svg.tree")
    await expect(page.locator("#tree-title")).to_have_text("5 calls")
    for words in ("orders:/orders", "stock:/payments", "failed", "in doubt", "waiting", "not registered"):
        await expect(tree).to_contain_text(words)
    await expect(tree).to_contain_text("no server registration")
    await tree.get_by_role("link", name="server stock: failed").click()
    await expect(page.locator("main")).to_contain_text(server_id_of("c-paid"))
    assert browser.complaints == []


async def test_a_transaction_is_told_live_by_its_gateway(
    ledger: Ledger, gateway: FakeGateway, open_browser: OpenBrowser
) -> None:
    """LED-3: attempts, callbacks and audit events with their codes; and only the ledger's rows when it is away."""
    await ledger.register("orders", gateway)
    row = registration("orders", "c-1")
    await ledger.write(("orders", row))
    at = row["phase_1_timestamp"]
    gateway.intents[server_id_of("c-1")] = {
        **row,
        "events": [{"at": at, "code": "P2-002", "phase": "COMMITTED", "detail": {"path": EVIL_PATH}}],
        "attempts": [{"number": 1, "started_at": at, "ended_at": at, "status": 201, "error": None}],
        "deliveries": [],
    }
    browser = await open_browser()
    page = browser.page
    await browser.log_in("audit", f"/transactions/{server_id_of('c-1')}")
    await expect(page.locator("main")).to_contain_text("Live from the gateway of orders")
    steps = page.locator("ol.line")
    await expect(steps).to_contain_text("P2-002")
    await expect(steps).to_contain_text("the service answered 201")
    await gateway.stop()
    await page.reload()
    await expect(page.locator("main")).to_contain_text("its gateway could not be reached")
    await expect(page.locator("ol.line")).to_contain_text("registered by orders, as server")
    assert browser.complaints == []


async def test_pull_now_completes_what_was_one_sided(
    ledger: Ledger, gateway: FakeGateway, open_browser: OpenBrowser
) -> None:
    """LED-3: the button, its result on the page, and what it brought."""
    service = await ledger.register("orders", gateway)
    (_, client), (_, server) = both("shop", "orders", "c-1")
    await ledger.write(("shop", client))
    gateway.entries = [{**server, "service_ledger_id": service}]
    browser = await open_browser()
    page = browser.page
    await browser.log_in("operations", "/unpaired")
    await expect(page.locator("#rows tbody tr")).to_have_count(1)

    await page.get_by_role("link", name="Services").click()
    await page.get_by_role("button", name="Pull now from orders").click()
    await expect(page.locator("#result")).to_contain_text("1 entries received, 1 of them new or changed")
    await page.get_by_role("link", name="Unpaired").click()
    await expect(page.get_by_role("heading", name="Every call has both registrations")).to_be_visible()

    gateway.status = 500
    await page.goto("/services")
    await expect(page.locator("#result")).to_have_count(0)
    await page.get_by_role("button", name="Pull now from orders").click()
    await expect(page.locator("#result.bad")).to_contain_text("500")
    assert browser.complaints == []


async def test_pages_follow_the_ledger_without_a_reload(ledger: Ledger, open_browser: OpenBrowser) -> None:
    """LED-6: rows and figures; what was typed and where the focus is stays."""
    first = registration("orders", "c-1", phase="WAITING_CONFIRM", ago_s=1)
    await ledger.write(("orders", first))
    browser = await open_browser()
    page = browser.page
    await browser.log_in("audit", "/search")
    await expect(page.locator("#live")).to_have_text("live")
    await page.evaluate("window.same = true")
    await page.get_by_label("Endpoint begins with").fill("/half-typed")
    rows = page.locator("#rows tbody tr")
    await expect(rows).to_have_count(1)
    await ledger.write(("orders", registration("orders", "c-2")))
    await expect(rows).to_have_count(2)
    done = {**first, "phase": "COMMITTED", "outcome": "COMMITTED", "version": first["version"] + 1000}
    await ledger.write(("orders", done))
    await expect(rows.filter(has_text="c-1")).to_contain_text("committed")
    await expect(page.get_by_label("Endpoint begins with")).to_have_value("/half-typed")
    assert await page.evaluate("window.same") is True

    await page.get_by_role("link", name="Overview").click()
    await expect(page.locator("#live")).to_have_text("live")
    await expect(page.locator(".tile", has_text="committed").locator("b")).to_have_text("2")
    await ledger.write(("orders", registration("orders", "c-3")))
    await expect(page.locator(".tile", has_text="committed").locator("b")).to_have_text("3")
    assert browser.complaints == []


async def test_a_page_that_is_open_leaves_when_its_token_does(ledger: Ledger, open_browser: OpenBrowser) -> None:
    """SEC-5: nobody keeps reading on a page that was loaded before."""
    await ledger.write(("orders", registration("orders", "c-1")))
    browser = await open_browser()
    await browser.log_in("audit", "/search?actor=server")
    await expect(browser.page.locator("#live")).to_have_text("live")
    await ledger.reload(without="audit")
    await ledger.write(("orders", registration("orders", "c-2")))
    await expect(browser.page.get_by_role("heading", name="Log in")).to_be_visible()
    await expect(browser.page.locator("body")).not_to_contain_text("c-1")


async def test_without_script_everything_works_by_links_and_forms(
    ledger: Ledger, gateway: FakeGateway, open_browser: OpenBrowser
) -> None:
    await ledger.register("orders", gateway)
    await fill(ledger)
    browser = await open_browser(script=False)
    page = browser.page
    await browser.log_in("operations", "/search")
    await page.get_by_label("Any correlation ID").fill("c-paid")
    await page.get_by_role("button", name="Search").click()
    await expect(page.locator("#rows tbody tr")).to_have_count(2)
    await page.goto("/services")
    await page.get_by_role("button", name="Pull now from orders").click()
    await expect(page.locator("#result")).to_contain_text("received")
    await expect(page.locator("#live")).to_be_hidden()


async def test_what_others_named_is_shown_and_never_run(ledger: Ledger, open_browser: OpenBrowser) -> None:
    """Script in correlation IDs and paths is text, on every page that shows it; and the policy has nothing to stop."""
    await ledger.write(
        *both("shop", "orders", EVIL_ID, path=EVIL_PATH),
        ("orders", registration("orders", EVIL_ID + "2", path=EVIL_PATH, phase="WAITING_CONFIRM", ago_s=60,
                                callback="pending")),
        ("orders", registration("orders", EVIL_ID + "3", target="stock", parent=EVIL_ID, path=EVIL_PATH)),
    )  # fmt: skip
    browser = await open_browser()
    page = browser.page
    await browser.log_in("compliance", "/search")
    await expect(page.locator("#rows tbody tr")).to_have_count(4)
    await expect(page.locator("#rows")).to_contain_text(EVIL_ID)
    await expect(page.locator("#rows")).to_contain_text(EVIL_PATH)
    assert await browser.stopped() == []

    await page.locator("#rows").get_by_role("link", name=EVIL_ID, exact=True).first.click()
    assert unquote(page.url.rpartition("/tree/")[2]) == EVIL_ID
    await expect(page.locator("#tree-title")).to_have_text("2 calls")
    await expect(page.locator("svg.tree title", has_text=EVIL_ID).first).to_have_text(EVIL_ID)
    assert await browser.stopped() == []

    for path in ("/stalled", "/unpaired", "/callback-gaps", f"/transactions/{server_id_of(EVIL_ID)}"):
        await page.goto(path)
        await expect(page.locator("main")).to_contain_text("alert(1)")
        assert await browser.stopped() == []
    assert await page.locator("main script, main img, main [onerror], main [onload]").count() == 0
    assert browser.complaints == []


async def test_the_policy_would_stop_a_script_that_slipped_through(ledger: Ledger, open_browser: OpenBrowser) -> None:
    """The second line: inline script, inline style, a foreign image or request, a frame."""
    browser = await open_browser()
    page = browser.page
    await browser.log_in("audit")
    await page.evaluate("""() => {
        const place = document.createElement("div");
        place.innerHTML = "<img src='https://evil.example/x' onerror='window.ran = 1'><p style='color:red'>x</p>";
        document.body.append(place);
        const script = document.createElement("script");
        script.textContent = "window.ran = 1";
        document.body.append(script);
        return fetch("https://evil.example/").catch(() => null);
    }""")
    assert await page.evaluate("window.ran") is None
    stopped = set(await browser.stopped())
    assert {"img-src", "script-src-elem", "style-src-attr", "connect-src"} <= stopped


async def test_the_page_is_used_by_keyboard_alone(ledger: Ledger, open_browser: OpenBrowser) -> None:
    await fill(ledger)
    browser = await open_browser()
    page, keys = browser.page, browser.page.keyboard
    await page.goto("/")
    await expect(page.get_by_label("Token")).to_be_focused()
    await keys.type("the-audit-canary")
    await keys.press("Enter")
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()

    await keys.press("Tab")
    skip = page.get_by_role("link", name="Skip to the content")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    await keys.press("Enter")
    await expect(page.locator("main")).to_be_focused()

    await page.goto("/tree/c-root")
    seen: list[str] = []
    for _ in range(60):
        await keys.press("Tab")
        focused: tuple[str, str] = await page.evaluate(
            """() => {
                const it = document.activeElement, style = getComputedStyle(it);
                const half = it.querySelector?.(".t-half");
                const shown = style.outlineStyle !== "none" || (half && getComputedStyle(half).strokeWidth === "2px")
                    || it.closest("svg.tree");
                return [it.getAttribute("aria-label") ?? it.textContent.trim(), shown ? "shown" : "hidden"];
            }"""
        )
        seen.append(focused[0])
        assert focused[1] == "shown", f"nothing shows that {focused[0]!r} has the focus"
        if focused[0] == "server stock: failed":
            break
    assert seen[-1] == "server stock: failed"
    await keys.press("Enter")
    await expect(page.locator("main")).to_contain_text(server_id_of("c-paid"))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
async def test_pages_fit_the_window_and_can_be_read(
    ledger: Ledger, gateway: FakeGateway, open_browser: OpenBrowser, width: int, scheme: str
) -> None:
    """Desk and phone, light and dark: no page scrolls sideways, headings and tables are named."""
    await ledger.register("orders", gateway)
    await fill(ledger)
    browser = await open_browser(width=width, scheme=scheme)
    page = browser.page
    await browser.log_in("operations")
    for path in ALL_PAGES:
        await page.goto(path)
        await expect(page.get_by_role("heading", level=1)).to_have_count(1)
        assert await browser.overflow_px() == 0, path
        assert await page.locator("th:not([scope])").count() == 0
        assert await page.locator("input:not([type=hidden]):not(label input), select:not(label select)").count() == 0
        ground: str = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(int(part) for part in ground[4:-1].split(",")) < 64) is (scheme == "dark")
        if folder := os.environ.get("TWOPHP_TEST_SCREENSHOTS"):  # to look at
            name = f"{width}-{scheme}-{path.strip('/').replace('/', '-').replace('?', '-')[:24] or 'overview'}.png"
            await page.screenshot(path=Path(folder) / name, full_page=True)
    assert browser.complaints == []
