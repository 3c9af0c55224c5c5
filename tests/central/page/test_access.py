"""Who may see the page, and how a browser gets in and out (SEC-5)."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import ssl
from pathlib import Path

from aiohttp import ClientPayloadError
from cryptography import x509

from gateway.central.page import attempts
from gateway.central.page.endpoints import PAGES
from gateway.central.page.rendering import POLICY
from tests.central.desk import PATIENCE_S, READERS, value_of
from tests.central.page.conftest import MakeLedger
from tests.central.page.ledger import FakeGateway, Ledger, both, registration, server_id_of
from tests.operator.console import Reply
from tests.upstream.test_tls import self_signed

ELSEWHERE = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}


def form_secret_in(reply: Reply) -> str:
    found = re.search(rb'name="form_secret" value="([^"]+)"', reply.body)
    assert found is not None
    return found[1].decode()


async def posted(ledger: Ledger, path: str, session: dict[str, str], secret: str, **headers: str) -> Reply:
    return await ledger.ask(path, method="POST", headers={**session, **headers}, data={"form_secret": secret})


# --- every page


async def test_a_page_is_for_readers_and_shows_others_the_way_in(ledger: Ledger) -> None:
    """SEC-5: every role and every page; `sync` reads nothing."""
    await ledger.write(*both("shop", "orders", "c-1"))
    sessions = {role: await ledger.log_in(role) for role in READERS}
    for template, _ in PAGES:
        path = template.format(client_correlation_id="c-1", server_correlation_id=server_id_of("c-1"))
        nobody = await ledger.ask(path)
        assert (nobody.status, nobody.body) == (303, b"")
        assert nobody.headers["location"] == ("/login" if path == "/" else f"/login?next={path}")
        for session in sessions.values():
            page = await ledger.ask(path, headers=session)
            assert page.status == 200
            assert page.headers["content-type"] == "text/html; charset=utf-8"
            assert page.headers["content-security-policy"] == POLICY.decode()
            assert page.headers["cache-control"] == "no-store"
            assert page.headers["x-content-type-options"] == "nosniff"
        assert (await ledger.ask(path, who="orders")).status == 403
        assert (await ledger.ask(path, headers={"Authorization": "Bearer wrong"})).status == 401
        assert (await ledger.ask(path, who="audit")).status == 200


async def test_every_look_at_a_page_is_recorded(ledger: Ledger) -> None:
    """SEC-5: like every other access, by the token that logged in."""
    session = await ledger.log_in("compliance")
    await ledger.ask("/tree/unheard-of", headers=session)
    trail = (await ledger.ask("/v1/access", who="audit")).json["items"]
    assert [(one["name"], one["path"], one["target"], one["status"]) for one in trail] == [
        ("compliance", "/tree/{client_correlation_id}", "unheard-of", 404)
    ]


async def test_pages_hold_no_more_than_the_token_may_see(ledger: Ledger) -> None:
    """SEC-5: a service may be restricted to its own rows."""
    await ledger.write(*both("shop", "orders", "c-1"), *both("shop", "stock", "c-2", path="/secret-of-stock"))
    await ledger.write(("stock", registration("stock", "c-3", phase="WAITING_CONFIRM", ago_s=3_600)))
    session = await ledger.log_in("orders-auditor")
    for who, stalled in (("orders-auditor", b"0"), ("audit", b"1")):
        overview = await ledger.ask("/", headers=await ledger.log_in(who))
        assert b"<b>%b</b><span>stalled</span>" % stalled in overview.body
    for path in ("/", "/search", "/search?source=stock", "/services", "/unpaired", "/tree/c-1"):
        page = await ledger.ask(path, headers=session)
        assert page.status == 200
        assert b"secret-of-stock" not in page.body
        assert b'href="/search?source=shop"' not in page.body
    assert (await ledger.ask("/tree/c-2", headers=session)).status == 404
    assert (await ledger.ask(f"/transactions/{server_id_of('c-2')}", headers=session)).status == 404
    assert b"not shown" in (await ledger.ask("/tree/c-1", headers=session)).body


# --- in and out


async def test_a_session_is_a_cookie_that_no_script_and_no_other_site_can_use(ledger: Ledger) -> None:
    """SEC-5."""
    reply = await ledger.ask("/login", method="POST", data={"token": value_of("audit"), "next": "/stalled?source=a"})
    assert (reply.status, reply.headers["location"]) == (303, "/stalled?source=a")
    cookie, *attributes = reply.headers["set-cookie"].split("; ")
    assert set(attributes) == {"Path=/", "HttpOnly", "SameSite=Strict"}
    assert value_of("audit") not in cookie
    assert len(cookie.partition("=")[2]) >= 43, "256 bits"


async def test_over_tls_the_cookie_is_bound_to_this_host(make_ledger: MakeLedger, tmp_path: Path) -> None:
    """SEC-5, SEC-6."""
    file = self_signed(tmp_path, x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    tls = {"cert": str(file), "key": str(file)}
    ledger = await make_ledger(listen={"host": "127.0.0.1", "port": 0, "tls": tls})
    ledger.tls = ssl.create_default_context(cafile=str(file))
    reply = await ledger.ask("/login", method="POST", data={"token": value_of("audit")})
    cookie, *attributes = reply.headers["set-cookie"].split("; ")
    assert cookie.startswith("__Host-twophp=")
    assert {"Secure", "Path=/"} <= set(attributes)
    assert (await ledger.ask("/", headers={"Cookie": cookie})).status == 200
    assert (await ledger.ask("/", headers={"Cookie": cookie.removeprefix("__Host-")})).status == 303


async def test_a_wrong_token_is_refused_and_soon_no_longer_listened_to(ledger: Ledger) -> None:
    """SEC-5: login attempts are bounded; nothing of them is repeated."""
    for _ in range(attempts.BURST):
        reply = await ledger.ask("/login", method="POST", data={"token": "a-guess-canary"})
        assert reply.status == 401
        assert b"a-guess-canary" not in reply.body
        assert "set-cookie" not in reply.headers
    reply = await ledger.ask("/login", method="POST", data={"token": value_of("audit")})
    assert reply.status == 429
    assert int(reply.headers["retry-after"]) >= 1
    assert "set-cookie" not in reply.headers


async def test_a_sync_token_does_not_log_in(ledger: Ledger) -> None:
    """SEC-5: it reads nothing."""
    reply = await ledger.ask("/login", method="POST", data={"token": value_of("orders")})
    assert (reply.status, "set-cookie" in reply.headers) == (403, False)


async def test_a_login_ends_the_session_that_was_there(ledger: Ledger) -> None:
    """A cookie that somebody else planted is worth nothing after the login."""
    former = await ledger.log_in("audit")
    reply = await ledger.ask("/login", method="POST", headers=former, data={"token": value_of("operations")})
    assert reply.status == 303
    assert (await ledger.ask("/", headers=former)).status == 303


async def test_a_logout_ends_the_session_here_not_only_in_the_browser(ledger: Ledger) -> None:
    session = await ledger.log_in("audit")
    secret = form_secret_in(await ledger.ask("/", headers=session))
    reply = await posted(ledger, "/logout", session, secret)
    assert (reply.status, reply.headers["location"]) == (303, "/login")
    assert "Max-Age=0" in reply.headers["set-cookie"]
    assert (await ledger.ask("/", headers=session)).status == 303


async def test_a_token_that_is_removed_ends_its_sessions_at_once(ledger: Ledger) -> None:
    """SEC-5: pages, the API and a stream that is open."""
    session = await ledger.log_in("audit")
    assert (await ledger.ask("/v1/services", headers=session)).status == 200
    async with ledger.session.get(f"{ledger.url}/live", headers=session) as stream:
        assert await stream.content.readline() == b": following\n"
        await ledger.reload(without="audit")
        await ledger.write(*both("shop", "orders", "c-1"))
        async with asyncio.timeout(PATIENCE_S):
            rest = await stream.content.read()
        assert rest.count(b"change") <= 1, "it says once more that there is news, and ends"
    assert (await ledger.ask("/", headers=session)).status == 303
    assert (await ledger.ask("/v1/services", headers=session)).status == 401
    assert (await ledger.ask("/live", headers=session)).status == 401


async def test_two_cookies_of_ours_count_as_none(ledger: Ledger) -> None:
    """One of them was set by somebody else."""
    session = await ledger.log_in("audit")
    assert (await ledger.ask("/", headers={"Cookie": f"twophp=planted; {session['Cookie']}"})).status == 303


# --- requests that other sites cause


async def test_what_another_site_causes_is_refused(ledger: Ledger, gateway: FakeGateway) -> None:
    """SEC-5: even if the browser sent the cookie along, for pages and API alike."""
    service = await ledger.register("orders", gateway)
    session = await ledger.log_in("operations")
    secret = form_secret_in(await ledger.ask("/services", headers=session))
    for path in (f"/services/{service}/pull", "/logout"):
        assert (await posted(ledger, path, session, secret, **ELSEWHERE)).status == 403
        assert (await posted(ledger, path, session, secret, Origin="https://evil.example")).status == 403
        assert (await posted(ledger, path, session, "guessed")).status == 403
        assert (await posted(ledger, path, session, secret, Origin="null")).status == 403
    pull = f"/v1/services/{service}/pull"
    assert (await ledger.ask(pull, method="POST", headers={**session, **ELSEWHERE})).status == 403
    assert (await ledger.ask("/", headers={**session, "Sec-Fetch-Site": "same-site"})).status == 403
    login = await ledger.ask("/login", method="POST", headers=ELSEWHERE, data={"token": value_of("audit")})
    assert (login.status, "set-cookie" in login.headers) == (403, False)
    assert (await posted(ledger, f"/services/{service}/pull", session, secret, Origin=ledger.url)).status == 303


async def test_pulling_needs_the_role_whatever_the_page_shows(ledger: Ledger, gateway: FakeGateway) -> None:
    """SEC-5, LED-3: only operations pulls."""
    service = await ledger.register("orders", gateway)
    for role, allowed in (("audit", False), ("compliance", False), ("operations", True)):
        session = await ledger.log_in(role)
        page = await ledger.ask("/services", headers=session)
        assert (b'/pull"' in page.body) is allowed
        reply = await posted(ledger, f"/services/{service}/pull", session, form_secret_in(page))
        assert reply.status == (303 if allowed else 403)


async def test_exports_are_offered_to_those_who_may_have_them(ledger: Ledger) -> None:
    """SEC-5: compliance exports."""
    await ledger.write(*both("shop", "orders", "c-1"))
    for role in READERS:
        page = await ledger.ask("/search?source=orders&q=c-1", headers=await ledger.log_in(role))
        links = re.findall(rb'href="(/v1/ledger/export[^"]*)"', page.body)
        assert bool(links) is (role == "compliance")
        for link in links:
            export = await ledger.ask(link.decode().replace("&amp;", "&"), headers=await ledger.log_in(role))
            assert export.status == 200
            assert b"c-1" in export.body


# --- assets and errors


async def test_assets_are_open_and_kept_by_browsers(ledger: Ledger) -> None:
    login = await ledger.ask("/login")
    for link in re.findall(rb'(?:href|src)="(/static/[^"]+)"', login.body):
        asset = await ledger.ask(link.decode())
        assert asset.status == 200
        assert asset.headers["cache-control"].endswith("immutable")
        assert (await ledger.ask(link.decode().partition("?")[0])).headers["cache-control"] == "no-cache"
    for path in ("/static/../desk.py", "/static/..%2Fdesk.py", "/static/%2e%2e%2fdesk.py", "/static/unheard-of.css"):
        assert (await ledger.ask(path)).status in (400, 404)


async def test_what_makes_no_sense_is_said_as_a_page(ledger: Ledger) -> None:
    """OPS-3, for people."""
    session = await ledger.log_in("audit")
    for query in ("phase=nothing", "after=!", "from=yesterday", "unheard=of", "q=a%20b"):
        reply = await ledger.ask(f"/search?{query}", headers=session)
        assert reply.status == 400
        assert reply.headers["content-type"] == "text/html; charset=utf-8"
        assert b"Status 400" in reply.body


async def test_a_stream_of_entries_ends_with_its_session(ledger: Ledger) -> None:
    """SEC-5: after the logout nothing more is told, though the token still counts."""
    session = await ledger.log_in("audit")
    secret = form_secret_in(await ledger.ask("/", headers=session))
    async with asyncio.timeout(PATIENCE_S):
        async with ledger.session.get(f"{ledger.url}/v1/events", headers=session) as stream:
            assert await stream.content.readline() == b": following\n"
            await posted(ledger, "/logout", session, secret)
            await ledger.write(("orders", registration("orders", "c-after-logout")))
            told = b""
            with contextlib.suppress(ClientPayloadError):
                async for line in stream.content:
                    told += line
            assert b"c-after-logout" not in told
