"""`twophp in-doubt`: what may have taken effect without an answer, and the verdict on it (REC-2)."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from gateway.cli.deliveries import After
from gateway.cli.listener import DEFAULT_URL, AsJson, Token, Url, ask, show

app = typer.Typer(no_args_is_help=True, help="Outcomes that nobody knows.")
COLUMNS = ("server_correlation_id", "since", "policy", "attempts", "next_at", "held", "method", "path", "reason")
ATTEMPTS = ("number", "started_at", "sent", "ended_at", "status", "error")
EVENTS = ("at", "code", "phase", "detail")
FACTS = ("server_correlation_id", "client_correlation_id", "service_endpoint", "phase", "settled_by", "verify_failed")

ServerId = Annotated[str, typer.Argument(help="The server correlation ID.")]


@app.callback()
def in_doubt() -> None:
    """Outcomes that nobody knows."""


@app.command("list")
def list_in_doubt(token: Token, url: Url = DEFAULT_URL, after: After = None, as_json: AsJson = False) -> None:
    """Intents in doubt, oldest first. One without `next_at` waits for a verdict."""
    given = {} if after is None else {"after": after}
    show(ask(url, token, f"/v1/in-doubt?{urlencode(given)}"), COLUMNS, as_json=as_json)


@app.command("show")
def show_one(server_id: ServerId, token: Token, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """One intent: how it stands, every attempt, every event."""
    found = ask(url, token, f"/v1/in-doubt/{quote(server_id, safe='')}")
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for name in FACTS:
        typer.echo(f"{name}: {_said(found[name])}")
    for name, value in (found["in_doubt"] or {}).items():
        typer.echo(f"in doubt, {name}: {_said(value)}")
    typer.echo()
    show({"items": found["attempts"]}, ATTEMPTS, as_json=False)
    typer.echo()
    show({"items": found["events"]}, EVENTS, as_json=False)


@app.command()
def resolve(
    server_id: ServerId,
    verdict: Annotated[str, typer.Argument(help="committed or failed.")],
    token: Token,
    reason: Annotated[str, typer.Option(help="How you know; it is kept in the audit trail.")],
    url: Url = DEFAULT_URL,
    resource_id: Annotated[str | None, typer.Option(help="What was made, if you know.")] = None,
    as_json: AsJson = False,
) -> None:
    """Settle an intent for good, by an audited verdict."""
    document = {"verdict": verdict, "reason": reason}
    if resource_id is not None:
        document["resource_id"] = resource_id
    path = f"/v1/in-doubt/{quote(server_id, safe='')}/resolve"
    found = ask(url, token, path, method="POST", document=document)
    typer.echo(
        json.dumps(found, indent=2)
        if as_json
        else f"{found['server_correlation_id']}: {found['phase']}, {found['settled_by']}"
    )


def _said(value: Any) -> str:
    return "-" if value is None else str(value)
