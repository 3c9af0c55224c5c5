"""`twophp deliveries`: callbacks and hooks, those that nobody acknowledged, and sending one again (ACM-3)."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

import typer

from gateway.cli.listener import DEFAULT_URL, AsJson, Token, Url, ask, show

app = typer.Typer(no_args_is_help=True, help="Callbacks and hooks.")
COLUMNS = ("id", "kind", "event", "state", "attempts", "next_at", "last_status", "last_error", "server_correlation_id")
After = Annotated[str | None, typer.Option(help="Where the last page ended.")]


@app.command("list")
def list_deliveries(
    token: Token,
    url: Url = DEFAULT_URL,
    state: Annotated[str | None, typer.Option(help="pending, delivered or dead.")] = None,
    after: After = None,
    as_json: AsJson = False,
) -> None:
    """All deliveries, or those in one state."""
    given = {name: value for name, value in (("state", state), ("after", after)) if value is not None}
    show(ask(url, token, f"/v1/deliveries?{urlencode(given)}"), COLUMNS, as_json=as_json)


@app.command()
def gaps(token: Token, url: Url = DEFAULT_URL, after: After = None, as_json: AsJson = False) -> None:
    """Callbacks that nobody has acknowledged."""
    given = {} if after is None else {"after": after}
    show(ask(url, token, f"/v1/callback-gaps?{urlencode(given)}"), COLUMNS, as_json=as_json)


@app.command()
def retry(delivery_id: str, token: Token, url: Url = DEFAULT_URL) -> None:
    """Send a dead or waiting delivery again, now."""
    found = ask(url, token, f"/v1/deliveries/{delivery_id}/retry", method="POST")
    typer.echo(f"{found['id']}: {found['state']}, due now")
