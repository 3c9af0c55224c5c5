"""pydantic's errors in the Contract's words, each at its place in the file."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from gateway.settings.access import IDENTITIES
from gateway.settings.faults import Fault, Location, Mark, dotted
from gateway.settings.keys import near_key, near_word
from gateway.settings.model import Document
from gateway.settings.nodes import Node
from gateway.settings.rules import Refused, Section

FOUND_MAX = 80  # longer values are cut: a message is one line

_SHAPES = {
    "dataclass_type": "a mapping of keys and values",
    "tuple_type": "a list",
    "frozen_set_type": "a list",
    "union_tag_not_found": "a mapping of keys and values",
}


def explain(error: ValidationError, root: Node, document: type[Section] = Document) -> list[tuple[Location, Fault]]:
    """Each error's location in the document, and what to say about it."""
    errors = error.errors(include_url=False, include_input=False)
    return [_explained(details, root, document) for details in errors]


def shown(value: Any) -> str:
    """A value as found, short and on one line; a mapping or list only by its kind, since secrets may be below."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if not text:
        return "empty text"
    text = re.sub(r"://[^\s]*@", "://…@", text)
    text = text if len(text) <= FOUND_MAX else text[:FOUND_MAX] + "…"
    return f"`{text.encode('unicode_escape').decode() if not text.isprintable() else text}`"


def kind(value: Any) -> str:
    """What a value is, without saying it."""
    if isinstance(value, dict | list) or value is None or value == "":
        return shown(value)
    return {bool: "true or false", int: "a number"}.get(type(value), "text")


def hidden(value: Any) -> str:
    """The same, saying that it is left out on purpose: it is or may be a secret."""
    return kind(value) if isinstance(value, dict | list) else f"{kind(value)} (not shown)"


def _explained(details: Any, root: Node, document: type[Section]) -> tuple[Location, Fault]:
    location = _in_document(details["loc"])
    node, mark, complete = root.find(location)
    value = node.plain() if complete else None
    context = details.get("ctx", {})
    key = dotted(location)
    match details["type"]:
        case "value_error" if isinstance(context["error"], Refused):
            refused = context["error"]
            found = "" if refused.problem else shown(value) if refused.shown else hidden(value)
            fault = Fault(mark, key, refused.problem, found, refused.allowed, refused.hint)
        case "unexpected_keyword_argument":
            parent, parent_mark, _ = root.find(location[:-1])
            at = parent.keys.get(str(location[-1]), parent_mark)
            fault = Fault(at, key, "unknown key", hint=near_key(location, document))
        case "missing":
            fault = Fault(mark, key, "missing", hint=_missing(location))
        case "literal_error":
            fault = _not_one_of(re.findall("'([^']*)'", context["expected"]), value, mark, key)
        case "union_tag_invalid":
            location = (*location, "method")
            method, mark, _ = root.find(location)
            fault = _not_one_of(list(IDENTITIES), method.plain(), mark, dotted(location))
        case shape if shape in _SHAPES:
            fault = Fault(mark, key, "", kind(value), _SHAPES[shape])
        case _:
            fault = Fault(mark, key, details["msg"], kind(value))
    return location, fault


def _in_document(location: Location) -> Location:
    """Without the name of the identity method, which pydantic puts in after `identity`."""
    if location[:1] == ("identity",) and len(location) > 1 and location[1] in IDENTITIES:
        return ("identity", *location[2:])
    return location


def _not_one_of(words: list[str], value: Any, mark: Mark, key: str) -> Fault:
    allowed = ", ".join(f"`{word}`" for word in words)
    near = near_word(value, words) if isinstance(value, str) else ""
    return Fault(mark, key, "", shown(value), allowed, f"did you mean `{near}`?" if near else "")


def _missing(location: Location) -> str:
    if location == ("upstream", "url"):
        return "it is the one key without a default: set it in the file or pass --upstream URL"
    return "it has no default"
