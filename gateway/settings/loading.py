"""From a file, a text or the command line to `Settings`, or to everything that is wrong with them at once.

A text becomes a tree with positions (`nodes`), overrides are put in, the model is validated (`explain` tells what is
wrong), and the rules between sections are checked (`checks`, `route_checks`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gateway.settings.addresses import HostPort
from gateway.settings.checks import Finding, check
from gateway.settings.explain import explain, kind, shown
from gateway.settings.faults import Fault, Location, Mark, SettingsError, dotted
from gateway.settings.model import Document, Settings, settings_from
from gateway.settings.nodes import Node, read
from gateway.settings.route_checks import check_routes
from gateway.settings.rules import Refused

FILE_MAX_BYTES = 1 << 20  # thousands of routes fit; a log file given by mistake does not
COMMAND_LINE = Mark("command line")


@dataclass(frozen=True, slots=True)
class Overrides:
    """What `twophp serve` was told on its command line; it goes before the file."""

    listen: str | None = None
    operator: str | None = None
    upstream: str | None = None


def load(path: Path | None, *, overrides: Overrides | None = None) -> Settings:
    """Settings from a file, or without one from the overrides alone. Raises `SettingsError`."""
    overrides = overrides or Overrides()
    if path is not None:
        return parse(text_of(path), str(path), overrides=overrides)
    every_path = Node({"path": Node("/**", COMMAND_LINE)}, COMMAND_LINE)
    root = Node({"routes": Node([every_path], COMMAND_LINE)}, COMMAND_LINE)
    return _settings(root, [], overrides)


def parse(text: str, name: str = "settings", *, overrides: Overrides | None = None) -> Settings:
    """Settings from a text; `name` is what errors call it. Raises `SettingsError`."""
    root, faults = read(text, name)
    return _settings(root, faults, overrides or Overrides())


def defaults_for(upstream_url: str, listen: str | None = None, operator: str | None = None) -> Settings:
    """Settings without a file: embedded store, one route `/**` in standard mode. Addresses are `HOST:PORT`."""
    return load(None, overrides=Overrides(listen=listen, operator=operator, upstream=upstream_url))


@lru_cache(maxsize=1)
def document_adapter() -> TypeAdapter[Document]:
    """The validator of the model; built once, when first needed."""
    return TypeAdapter(Document)


def text_of(path: Path) -> str:
    """The text of a configuration file. Raises `SettingsError`."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_MAX_BYTES + 1)
    except OSError as error:
        raise SettingsError([Fault(Mark(str(path)), "", error.strerror or "cannot be read")]) from None
    if len(content) > FILE_MAX_BYTES:
        raise SettingsError([Fault(Mark(str(path)), "", f"larger than {FILE_MAX_BYTES} bytes: not a configuration")])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        mark = Mark(str(path), before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1)
        raise SettingsError([Fault(mark, "", "not valid YAML: not UTF-8 text")]) from None


def _settings(root: Node, faults: list[Fault], overrides: Overrides) -> Settings:
    if not isinstance(root.value, dict):
        allowed = "a mapping of sections, such as `upstream: {url: http://127.0.0.1:3000}`"
        fault = Fault(root.mark, "", found=kind(root.plain()), allowed=allowed)
        raise SettingsError([*faults, fault])
    faults = faults + list(_override(root, overrides))
    if root.value.get("upstream") is None or root.value["upstream"].value is None:
        # So that what is missing is called `upstream.url`, not `upstream`.
        root.value["upstream"] = Node({}, root.value["upstream"].mark if "upstream" in root.value else root.mark)
    data = root.plain()
    document: Document | None
    wrong: list[Location] = []
    try:
        document = document_adapter().validate_python(data)
    except ValidationError as error:
        explained = explain(error, root)
        faults += [fault for _, fault in explained]
        wrong = [location for location, _ in explained]
        document = _without(data, wrong)
    warnings: list[Fault] = []
    for finding in _findings(document, wrong):
        fault = located(finding, root)
        if fault not in faults and fault not in warnings:  # one line of `defaults` can be wrong for many routes
            (warnings if finding.warning else faults).append(fault)
    if faults or document is None:
        raise SettingsError(faults)
    return settings_from(document, tuple(warnings))


def _override(root: Node, overrides: Overrides) -> Iterator[Fault]:
    for option, text in (("listen", overrides.listen), ("operator", overrides.operator)):
        if text is None:
            continue
        mark = Mark(f"--{option}")
        try:
            address = HostPort().parse(text)
        except Refused as refused:
            yield Fault(mark, option, "", shown(text), refused.allowed, refused.hint)
            continue
        root.put((option, "host"), address.host, mark)
        root.put((option, "port"), address.port, mark)
    if overrides.upstream is not None:
        root.put(("upstream", "url"), overrides.upstream, Mark("--upstream"))


def _without(data: Any, wrong: list[Location]) -> Document | None:
    """The document without the values that are wrong, so that rules between the others are checked in the same go."""
    data = copy.deepcopy(data)
    for location in wrong:
        _leave_out(data, location)
    for _ in range(2):
        _stand_in(data)
        try:
            return document_adapter().validate_python(data)
        except ValidationError as error:
            # What cannot be left out, such as a token's name, takes its section with it.
            for details in error.errors(include_url=False, include_input=False):
                _leave_out(data, details["loc"][:1])
    return None


def _stand_in(data: dict[str, Any]) -> None:
    """Something for the keys that have no default and that most other rules need not know."""
    data.setdefault("upstream", {}).setdefault("url", "http://127.0.0.1")
    for index, route in enumerate(data.get("routes") or ()):
        if isinstance(route, dict):
            route.setdefault("path", f"/{index}")


def _leave_out(data: Any, location: Location) -> None:
    """Removes a key; an item of a list goes with its list, so that other items keep their positions."""
    holders = [data]
    for part in location[:-1]:
        try:
            holders.append(holders[-1][part])
        except (KeyError, IndexError, TypeError):
            return  # its parent is gone already
    for holder, part in zip(reversed(holders), reversed(location), strict=True):
        if isinstance(holder, dict):
            holder.pop(part, None)
            return


def _findings(document: Document | None, wrong: list[Location]) -> Iterator[Finding]:
    """What the checks find, but for what may only follow from a value that was left out as wrong."""
    if document is None:
        return
    unsure = {_part(location) for location in wrong}
    for finding in (*check(document), *check_routes(document)):
        if not unsure.intersection(_part(location) for location in (finding.location, *finding.about)):
            yield finding


def _part(location: Location) -> Location:
    """The part of a document that a location belongs to: a section, or one entry of a list."""
    return location[:2] if len(location) > 1 and isinstance(location[1], int) else location[:1]


def located(finding: Finding, root: Node) -> Fault:
    """A finding at its place in the file."""
    node, mark, complete = root.find(finding.location)
    if not complete and finding.about:
        _, mark, _ = root.find(finding.about[0])  # what is missing has no place; what asks for it has
    value = node.plain() if complete else None
    found = shown(value) if complete and not isinstance(value, dict | list) and _is_plain(finding.location) else ""
    return Fault(mark, dotted(finding.location), finding.message, found, hint=finding.hint)


def _is_plain(location: Location) -> bool:
    """Whether the value there is nobody's secret."""
    return location[-1] != "sha256" and location[0] != "store"
