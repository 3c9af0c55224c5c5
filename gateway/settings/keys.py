"""The Contract's keys as a list, taken from the model, and the near misses in it ("did you mean")."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from gateway.settings.faults import Location, dotted
from gateway.settings.model import Document
from gateway.settings.rules import Section, contract_key

KNOWN_HERE_MAX = 8  # so many keys can be read at a glance; where there are more, a key of the same name is more likely


def all_keys(document: type[Section] = Document) -> tuple[str, ...]:
    """Every key with its path, `upstream.timeout` or `routes[].ttl`, in the order of the Contract."""
    return tuple(dict.fromkeys(_keys(document, "")))


def near_key(location: Location, document: type[Section] = Document) -> str:
    """What an unknown key at this location was probably meant to be, as a hint; else what is allowed there."""
    *parents, last = location
    parent = "".join("[]" if isinstance(part, int) else f".{part}" for part in parents).lstrip(".")
    siblings = [key.rpartition(".")[2] for key in all_keys(document) if key.rpartition(".")[0] == parent]
    if last in siblings:
        return "it does not go with this `identity.method`"  # the one mapping whose keys depend on another key
    near = near_word(str(last), siblings)
    if near:
        return f"did you mean `{dotted((*parents, near))}`?"
    elsewhere = [key for key in all_keys(document) if key.rpartition(".")[2] == str(last).lower()]
    if elsewhere and len(siblings) > KNOWN_HERE_MAX:
        return "did you mean " + " or ".join(f"`{key.replace('[]', '[…]')}`" for key in elsewhere[:3]) + "?"
    return "known here: " + ", ".join(f"`{key}`" for key in siblings)


def near_word(word: str, words: Sequence[str]) -> str:
    """The one of the words that was probably meant: case, dashes and small slips aside."""
    normal = {_normal(known): known for known in words}
    near = difflib.get_close_matches(_normal(word), list(normal), 1, cutoff=0.65)
    # `certificate` for `cert`: too different in length for the ratio, yet plainly meant.
    near = near or [known for known in normal if len(known) > 2 and _normal(word).startswith(known)]
    return normal[near[0]] if near else ""


def _normal(word: str) -> str:
    return word.lower().replace("-", "_")


def _keys(section: type[Section], prefix: str) -> Iterator[str]:
    hints = typing.get_type_hints(section)
    for field in dataclasses.fields(typing.cast(Any, section)):
        key = f"{prefix}{contract_key(field.name)}"
        yield key
        for part, in_list in _sections(hints[field.name], False):
            yield from _keys(part, f"{key}[]." if in_list else f"{key}.")


def _sections(hint: Any, in_list: bool) -> Iterator[tuple[type[Section], bool]]:
    if isinstance(hint, type) and issubclass(hint, Section):
        yield hint, in_list
    origin = typing.get_origin(hint)
    for argument in typing.get_args(hint):
        yield from _sections(argument, in_list or origin is tuple)
