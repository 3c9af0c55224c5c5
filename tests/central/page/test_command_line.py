"""`twophp ledger` as its users run it, against a central ledger (LED-3, LED-5)."""

from __future__ import annotations

import asyncio
import json
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from gateway.cli.app import app
from gateway.cli.ledger_output import plain
from tests.central.desk import now, value_of
from tests.central.page.ledger import PULL_TOKEN, FakeGateway, Ledger, both, registration, server_id_of

MARKUP = "[red]not-red[/red]"


async def twophp(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """Exit status, output and errors, piped; on a thread, for the ledger answers on this loop."""
    found = await asyncio.to_thread(CliRunner().invoke, app, arguments, env=environment)
    return found.exit_code, found.stdout, found.stderr


def where(ledger: Ledger, who: str = "operations") -> dict[str, str]:
    return {"TWOPHP_URL": ledger.url, "TWOPHP_TOKEN": value_of(who)}


async def run(ledger: Ledger, *arguments: str, who: str = "operations") -> str:
    status, out, errors = await twophp("ledger", *arguments, **where(ledger, who))
    assert (status, errors) == (0, "")
    return out


async def test_the_tree_is_drawn_with_both_registrations(ledger: Ledger) -> None:
    """LED-5: and what is odd is said."""
    await ledger.write(
        *both("shop", "orders", "c-root"),
        *both("orders", "stock", "c-paid", parent="c-root", path="/payments", phase="FAILED"),
        ("orders", registration("orders", "c-lost", target="stock", parent="c-root", path=f"/{MARKUP}\x9b31m")),
    )
    out = await run(ledger, "tree", "c-root")
    head, root, *calls = out.splitlines()
    assert head == "tree of c-root"
    assert root == "└── orders:/orders  client COMMITTED (shop)  server COMMITTED (orders)  c-root"
    assert sorted(line.strip("─├└│ ") for line in calls) == [
        f"stock:/{MARKUP}\N{REPLACEMENT CHARACTER}31m  client COMMITTED (orders)  server not registered  c-lost"
        "  ! client-only",
        "stock:/payments  client FAILED (orders)  server FAILED (stock)  c-paid",
    ]
    document = json.loads(await run(ledger, "tree", "c-root", "--json"))
    assert len(document["roots"][0]["children"]) == 2
    below = await run(ledger, "tree", "c-paid")
    assert "called from c-root" in below


async def test_entries_are_found_by_any_field_page_by_page(ledger: Ledger) -> None:
    """LED-5."""
    await ledger.write(*both("shop", "orders", "c-1"), *both("shop", "orders", "c-2", phase="FAILED", path="/refunds"))
    out = await run(ledger, "entries", "--outcome", "FAILED", "--actor", "server")
    header, *rows = out.splitlines()
    assert header.split()[:4] == ["state", "source", "actor", "endpoint"]
    assert [row.split()[:6] for row in rows] == [
        ["FAILED", "orders", "server", "orders:/refunds", "c-2", server_id_of("c-2")]
    ]
    for option, value in (("--id", server_id_of("c-1")), ("--client-id", "c-1"), ("--endpoint", "/orders")):
        found = json.loads(await run(ledger, "entries", option, value, "--json"))["entries"]
        assert {row["client_correlation_id"] for row in found} == {"c-1"}
    *rows, more = (await run(ledger, "entries", "--limit", "3")).splitlines()
    rest = await run(ledger, "entries", "--limit", "3", *more.split()[1:])
    assert more.startswith("more: --after ")
    assert (len(rows), len(rest.splitlines())) == (1 + 3, 1 + 1)
    assert (await run(ledger, "entries", "--source", "stock")).strip() == "nothing found"


async def test_stalled_and_unpaired_are_listed_with_their_reasons(ledger: Ledger) -> None:
    """LED-5."""
    await ledger.write(
        ("orders", registration("orders", "c-1", phase="WAITING_CONFIRM", ago_s=3_600)),
        ("orders", registration("orders", "c-2", target="stock", phase="PROCESSING", in_doubt=None, ago_s=3_600)),
    )
    stalled = await run(ledger, "stalled")
    assert "waiting-past-ttl" in stalled
    assert "processing-too-long" in stalled
    client_only = await run(ledger, "unpaired")
    assert ("c-2" in client_only, "c-1" in client_only) == (True, False)
    server_only = await run(ledger, "unpaired", "--side", "server-only")
    assert server_only.splitlines()[1].split()[0] == "client", "what it lacks"


async def test_pull_takes_a_name_or_an_id_and_says_what_it_brought(ledger: Ledger, gateway: FakeGateway) -> None:
    """LED-3."""
    service = await ledger.register("orders", gateway)
    gateway.entries = [{**registration("orders", "c-1"), "service_ledger_id": service}]
    assert await run(ledger, "pull", "orders") == "orders: 1 received, 1 new or changed; up to date\n"
    assert "0 new or changed" in await run(ledger, "pull", service)
    services = await run(ledger, "services")
    assert services.splitlines()[1].split()[:2] == ["orders", service]
    status, _, errors = await twophp("ledger", "pull", "unheard-of", **where(ledger))
    assert (status, errors) == (1, "twophp: no service of that name has registered; registered: orders\n")
    gateway.status = 503
    status, _, errors = await twophp("ledger", "pull", "orders", **where(ledger))
    assert status == 1
    assert "503" in errors


async def test_pull_by_name_asks_the_newest_ledger(ledger: Ledger, gateway: FakeGateway) -> None:
    """LED-3: an older one is of a store that was made anew."""
    await ledger.register("orders")
    newest = str(uuid4())
    members = {"name": "orders", "service_ledger_id": newest, "operator_url": gateway.url, "pull_token": PULL_TOKEN}
    reply = await ledger.ask("/v1/services", who="orders", method="POST", data=json.dumps(members))
    assert reply.status == 200, reply.body
    gateway.entries = [{**registration("orders", "c-1"), "service_ledger_id": newest}]
    assert "1 received" in await run(ledger, "pull", "orders")


async def test_what_is_refused_is_said_in_a_sentence(ledger: Ledger) -> None:
    """SEC-5, OPS-3."""
    for arguments, who, said in (
        (("entries",), "orders", "role may not do this"),
        (("pull", "2b0d7b3d-93a4-4a3f-8f3d-5c1d5a2d3c11"), "audit", "role may not do this"),
        (("tree", "unheard-of"), "audit", "No entry here has this client correlation ID"),
        (("entries", "--phase", "nothing"), "audit", "phase takes one of"),
        (("unpaired", "--side", "both"), "audit", "side takes one of"),
    ):
        status, out, errors = await twophp("ledger", *arguments, **where(ledger, who))
        assert (status, out) == (1, "")
        assert errors.startswith("twophp: ")
        assert said in errors
        assert errors.count("\n") == 1
    status, _, errors = await twophp("ledger", "services", TWOPHP_URL="http://127.0.0.1:9", TWOPHP_TOKEN="x")
    assert (status, "no answer from http://127.0.0.1:9" in errors) == (1, True)


@pytest.mark.parametrize(("text", "printed"), [("\x1b[31m", "�[31m"), ("a\nb", "a�b"), ("ü", "ü")])
def test_what_would_steer_a_terminal_is_not_printed(text: str, printed: str) -> None:
    assert plain(text) == printed


async def test_an_entry_in_doubt_says_so(ledger: Ledger) -> None:
    """REC-2: it is more than PROCESSING."""
    doubt = now(5).isoformat().replace("+00:00", "Z")
    await ledger.write(("orders", registration("orders", "c-1", phase="PROCESSING", in_doubt=doubt)))
    assert "IN DOUBT" in await run(ledger, "entries")
