"""Tables and trees of the ledger for a terminal. Everything in them is text of others: shown, never obeyed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

PIPED_WIDTH = 1_000  # nothing is cut where no one looks: a table is only as wide as its content
STYLES = {
    "WAITING_CONFIRM": "yellow",
    "PROCESSING": "blue",
    "COMMITTED": "green",
    "FAILED": "red",
    "TTL_EXPIRED": "bright_black",
    "ABANDONED": "bright_black",
    "IN DOUBT": "magenta",
}
HEADINGS = {
    "service_endpoint": "endpoint",
    "client_correlation_id": "client id",
    "server_correlation_id": "server id",
    "phase_1_timestamp": "registered",
    "age_s": "for",
}

Document = Mapping[str, Any]


def console() -> Console:
    """Standard output, with colours only where a person looks."""
    made = Console(highlight=False, markup=False, emoji=False)
    return made if made.is_terminal else Console(highlight=False, markup=False, emoji=False, width=PIPED_WIDTH)


def print_json(document: Any) -> None:
    """The listener's JSON as it is."""
    typer.echo(json.dumps(document, indent=2))


def table(document: Document, columns: Sequence[str]) -> None:
    """A list as a table, a line each, and how to go on."""
    rows = document["entries"] if "entries" in document else document["items"]
    made = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        made.add_column(HEADINGS.get(name, name.replace("_", " ")), no_wrap=True, overflow="fold")
    for row in rows:
        made.add_row(*(_cell(row, name) for name in columns))
    out = console()
    if rows:
        out.print(made)
    elif not document["next"]:
        out.print("nothing found")
    if document["next"]:
        out.print(Text(f"more: --after {document['next']}"))


def drawn(document: Document) -> None:
    """A call tree: one line a call, with both registrations."""
    head = Text("tree of ")
    head.append(plain(document["client_correlation_id"]), "bold")
    made = Tree(head, guide_style="bright_black")
    waiting = [(node, made) for node in reversed(document["roots"])]
    while waiting:
        node, place = waiting.pop()
        branch = place.add(_call(node))
        waiting.extend((child, branch) for child in reversed(node.get("children", ())))
    out = console()
    if document["ancestors"]:
        out.print(Text("called from " + plain(" < ".join(document["ancestors"]))))
    out.print(made)
    for note in document["notes"]:
        out.print(Text(f"note: {plain(note)}", "yellow"))
    if document["truncated"]:
        out.print(Text("note: larger than can be read at once, and cut off", "yellow"))


def plain(value: object) -> str:
    """Text as it may be printed: what would steer a terminal is replaced."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in str(value))


def _call(node: Document) -> Text:
    client, server = node.get("client"), node.get("server")
    shown = server or client or {}
    line = Text(plain(shown.get("service_endpoint") or "another service's call"), "bold")
    for side, entry in (("client", client), ("server", server)):
        line.append(f"  {side} ")
        line.append_text(_side(entry))
    if node.get("client_correlation_id"):
        line.append(f"  {plain(node['client_correlation_id'])}", "bright_black")
    for note in node.get("notes", ()):
        line.append(f"  ! {plain(note)}", "yellow")
    return line


def _side(entry: Document | None) -> Text:
    if entry is None:
        return Text("not registered", "yellow")
    if entry.get("redacted"):
        return Text("another service's", "bright_black")
    text = _state(entry)
    text.append(f" ({plain(entry['source'])})", "default")
    return text


def _state(row: Document) -> Text:
    word = "IN DOUBT" if row.get("in_doubt") else plain(row["phase"])
    return Text(word, STYLES.get(word, ""))


def _cell(row: Document, name: str) -> Text:
    if name == "state":
        return _state(row)
    value = row.get(name)
    if value is None:
        return Text("-")
    if isinstance(value, bool):
        return Text("yes" if value else "no")
    if name.endswith("_s"):
        return Text(f"{round(value)} s")
    return Text(plain(value))
