"""Talking to an operator listener from the command line: `--url` and `--token`, or TWOPHP_URL and TWOPHP_TOKEN."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Annotated, Any

import typer

TIMEOUT_S = 30.0

Url = Annotated[str, typer.Option(envvar="TWOPHP_URL", help="The operator listener.")]
Token = Annotated[str, typer.Option(envvar="TWOPHP_TOKEN", help="A token of it.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the listener's JSON as it is.")]
DEFAULT_URL = "http://127.0.0.1:9080"


def ask(url: str, token: str, path: str, *, method: str = "GET", document: Any = None) -> Any:
    """The listener's answer; what it refuses is said and ends the command."""
    headers = {"Authorization": f"Bearer {token}"}
    body = None
    if document is not None:
        headers["Content-Type"] = "application/json"
        body = json.dumps(document).encode()
    request = urllib.request.Request(url.rstrip("/") + path, data=body, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        typer.echo(f"twophp: {_detail(error)}", err=True)
    except OSError as error:
        typer.echo(f"twophp: no answer from {url}: {error}", err=True)
    raise typer.Exit(1)


def show(document: Any, columns: tuple[str, ...], *, as_json: bool) -> None:
    """A list of items as a table, a line each; or the document as it is."""
    if as_json:
        typer.echo(json.dumps(document, indent=2))
        return
    rows = [columns, *(tuple(_cell(item.get(name)) for name in columns) for item in document["items"])]
    widths = [max(len(row[index]) for row in rows) for index in range(len(columns))]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if document.get("next"):
        typer.echo(f"more: --after {document['next']}")


def _cell(value: Any) -> str:
    return "-" if value is None else str(value)


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["detail"])
    except (ValueError, KeyError):
        return f"the listener answered {error.code}"
