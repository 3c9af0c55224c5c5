"""`twophp in-doubt`: what may have taken effect without an answer (REC-2)."""

from __future__ import annotations

from urllib.parse import urlencode

import typer

from gateway.cli.deliveries import After
from gateway.cli.listener import DEFAULT_URL, AsJson, Token, Url, ask, show

app = typer.Typer(no_args_is_help=True, help="Outcomes that nobody knows.")
COLUMNS = ("server_correlation_id", "client_correlation_id", "since", "method", "path", "reason")


@app.callback()
def in_doubt() -> None:
    """Outcomes that nobody knows."""


@app.command("list")
def list_in_doubt(token: Token, url: Url = DEFAULT_URL, after: After = None, as_json: AsJson = False) -> None:
    """Intents in doubt, oldest first."""
    given = {} if after is None else {"after": after}
    show(ask(url, token, f"/v1/in-doubt?{urlencode(given)}"), COLUMNS, as_json=as_json)
