"""`twophp ledger`: the central ledger's questions on the command line (LED-3, LED-5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote, urlencode
from uuid import UUID

import typer

from gateway.cli.deliveries import After
from gateway.cli.ledger_output import drawn, print_json, table
from gateway.cli.listener import AsJson, Token, ask

app = typer.Typer(no_args_is_help=True, help="The Intent Ledger across services, from the central ledger.")

CENTRAL_URL = "http://127.0.0.1:9443"
Url = Annotated[str, typer.Option(envvar="TWOPHP_URL", help="The central ledger.")]
Source = Annotated[str | None, typer.Option(help="Only this service's registrations.")]
Limit = Annotated[int, typer.Option(help="Rows of a page.")]

ENTRY = ("state", "source", "actor", "service_endpoint", "client_correlation_id", "server_correlation_id")
ENTRIES = (*ENTRY, "phase_1_timestamp")
STALLED = ("state", "reason", "age_s", *ENTRY[1:])
UNPAIRED = ("lacks", *ENTRIES)
SERVICES = ("name", "service_ledger_id", "last_sync_at", "lag_s", "last_pull_at", "can_pull", "revoked_at")


@app.command()
def tree(client_correlation_id: str, token: Token, url: Url = CENTRAL_URL, as_json: AsJson = False) -> None:
    """Every call below one, with what its client and its server registered."""
    found = ask(url, token, f"/v1/ledger/tree/{quote(client_correlation_id, safe='')}")
    if as_json:
        print_json(found)
    else:
        drawn(found)


@app.command()
def entries(
    token: Token,
    url: Url = CENTRAL_URL,
    source: Source = None,
    actor: Annotated[str | None, typer.Option(help="client or server.")] = None,
    phase: Annotated[str | None, typer.Option(help="WAITING_CONFIRM, PROCESSING, COMMITTED …")] = None,
    outcome: Annotated[str | None, typer.Option(help="COMMITTED, FAILED, TTL_EXPIRED or ABANDONED.")] = None,
    since: Annotated[str | None, typer.Option("--from", help="Registered at this time or later, ISO 8601.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Registered before this time.")] = None,
    endpoint: Annotated[str | None, typer.Option(help="Beginning of the path, or of <service>:<path>.")] = None,
    client_correlation_id: Annotated[str | None, typer.Option("--client-id", help="Exactly this one.")] = None,
    server_correlation_id: Annotated[str | None, typer.Option("--server-id", help="Exactly this one.")] = None,
    anything: Annotated[str | None, typer.Option("--id", help="Any correlation ID.")] = None,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
) -> None:
    """Registrations, newest first."""
    given = {
        "source": source,
        "actor": actor,
        "phase": phase,
        "outcome": outcome,
        "from": since,
        "to": until,
        "endpoint": endpoint,
        "client_correlation_id": client_correlation_id,
        "server_correlation_id": server_correlation_id,
        "q": anything,
        "limit": str(limit),
        "after": after,
    }
    _listed(url, token, "/v1/ledger/entries", given, ENTRIES, as_json=as_json)


@app.command()
def stalled(
    token: Token,
    url: Url = CENTRAL_URL,
    source: Source = None,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
) -> None:
    """Intents that do not move on, oldest first."""
    given = {"source": source, "limit": str(limit), "after": after}
    _listed(url, token, "/v1/ledger/stalled", given, STALLED, as_json=as_json)


@app.command()
def unpaired(
    token: Token,
    url: Url = CENTRAL_URL,
    side: Annotated[str, typer.Option(help="client-only or server-only.")] = "client-only",
    source: Source = None,
    limit: Limit = 50,
    after: After = None,
    as_json: AsJson = False,
) -> None:
    """Calls that only one of their two sides has registered."""
    given = {"side": side, "source": source, "limit": str(limit), "after": after}
    _listed(url, token, "/v1/ledger/unpaired", given, UNPAIRED, as_json=as_json)


@app.command()
def services(token: Token, url: Url = CENTRAL_URL, as_json: AsJson = False) -> None:
    """Who registers here, and how long ago each was heard of."""
    _listed(url, token, "/v1/services", {}, SERVICES, as_json=as_json)


@app.command()
def pull(
    service: Annotated[str, typer.Argument(help="Its name, or its service_ledger_id.")],
    token: Token,
    url: Url = CENTRAL_URL,
    as_json: AsJson = False,
) -> None:
    """Fetch a service's latest entries from its gateway, now."""
    ledger_id = service if _is_id(service) else _id_of(service, url, token)
    found = ask(url, token, f"/v1/services/{ledger_id}/pull", method="POST")
    if as_json:
        print_json(found)
        return
    whole = "up to date" if found["complete"] else "there is more: pull again"
    typer.echo(f"{service}: {found['received']} received, {found['stored']} new or changed; {whole}")


def _listed(
    url: str, token: str, path: str, given: Mapping[str, str | None], columns: tuple[str, ...], *, as_json: bool
) -> None:
    wanted = urlencode({name: value for name, value in given.items() if value is not None})
    found: Any = ask(url, token, f"{path}?{wanted}" if wanted else path)
    if as_json:
        print_json(found)
    else:
        table(found, columns)


def _is_id(text: str) -> bool:
    try:
        return str(UUID(text)) == text.lower()
    except ValueError:
        return False


def _id_of(name: str, url: str, token: str) -> str:
    known = ask(url, token, "/v1/services")["items"]
    of_name = [service for service in known if service["name"] == name]
    if of_name:  # of several ledgers, the newest that still counts: the others are of stores that were made anew
        newest = max(of_name, key=lambda service: (service["revoked_at"] is None, service["registered_at"]))
        return str(newest["service_ledger_id"])
    names = ", ".join(sorted(service["name"] for service in known)) or "none yet"
    typer.echo(f"twophp: no service of that name has registered; registered: {names}", err=True)
    raise typer.Exit(1)
