"""YAML text as a tree that remembers where everything stands.

Plain scalars are read by the rules of YAML 1.2's core schema, without floats: only `true` and `false` are booleans, so
that `mode: off` and a hook's `on:` are text; a number too long to be one (a digest made of digits) is text. Duplicate
keys, tags, and a merge of anything but a mapping are faults. No message quotes a value: it may be a secret.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from gateway.settings.faults import Fault, Location, Mark, SettingsError, dotted

NODES_MAX = 100_000  # aliases can make a small text a huge tree
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_TAG = "tag:yaml.org,2002:"


class _Composer(yaml.SafeLoader):
    """PyYAML's reader with its implicit types replaced."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - an empty table of its own; add_implicit_resolver fills it


_Composer.add_implicit_resolver(f"{_TAG}bool", re.compile(r"(?:true|false)\Z"), list("tf"))
_Composer.add_implicit_resolver(f"{_TAG}null", re.compile(r"(?:null|~|)\Z"), ["n", "~", ""])
_Composer.add_implicit_resolver(f"{_TAG}int", re.compile(_INTEGER.pattern + r"\Z"), list("-0123456789"))
_Composer.add_implicit_resolver(f"{_TAG}merge", re.compile(r"<<\Z"), ["<"])


@dataclass(slots=True)
class Node:
    """A value and where it stands; a mapping knows where its keys stand, too."""

    value: Any  # a scalar, dict[str, Node] or list[Node]
    mark: Mark
    keys: dict[str, Mark] = field(default_factory=dict)

    def plain(self) -> Any:
        """The value without positions."""
        if isinstance(self.value, dict):
            return {key: child.plain() for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain() for child in self.value]
        return self.value

    def child(self, part: str | int) -> Node | None:
        if isinstance(self.value, dict):
            return self.value.get(part)
        if isinstance(self.value, list) and isinstance(part, int) and part < len(self.value):
            child: Node = self.value[part]
            return child
        return None

    def find(self, location: Location) -> tuple[Node, Mark, bool]:
        """The node at a location, or the nearest one above it; its mark; whether all of the location was there."""
        node, mark = self, self.mark
        for part in location:
            child = node.child(part)
            if child is None:
                return node, mark, False
            node, mark = child, child.mark
        return node, mark, True

    def put(self, location: tuple[str, ...], value: Any, mark: Mark) -> None:
        """Sets a scalar below mappings, making those that are missing. What is in the way is left to validation."""
        node = self
        for part in location[:-1]:
            child = node.child(part)
            if child is None or child.value is None:
                child = Node({}, mark)
                if isinstance(node.value, dict):
                    node.value[part] = child
            node = child
        if isinstance(node.value, dict):
            node.value[location[-1]] = Node(value, mark)


def read(text: str, name: str) -> tuple[Node, list[Fault]]:
    """The tree of a text, and what is wrong with it as YAML. Raises `SettingsError` if there is no tree at all."""
    try:
        composer = _Composer(text)
        try:
            root = composer.get_single_node()
        finally:
            composer.dispose()
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        mark = Mark(name, place.line + 1, place.column + 1) if place else Mark(name)
        raise SettingsError([_syntax_fault(mark, _problem(error))]) from None
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        mark = Mark(name, before.count("\n") + 1, error.position - (before.rfind("\n") + 1) + 1)
        raise SettingsError([Fault(mark, "", "not valid YAML: a character that text files do not have")]) from None
    except RecursionError:
        raise SettingsError([Fault(Mark(name), "", "not valid YAML: nested too deeply")]) from None
    if root is None:
        return Node({}, Mark(name, 1, 1)), []
    builder = _Builder(name)
    return builder.build(root, ()), builder.faults


class _Builder:
    """Turns PyYAML's nodes into ours and collects faults on the way."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.faults: list[Fault] = []
        self.seen = 0

    def mark(self, node: yaml.Node) -> Mark:
        return Mark(self.name, node.start_mark.line + 1, node.start_mark.column + 1)

    def fault(self, node: yaml.Node, location: Location, message: str, hint: str = "") -> None:
        self.faults.append(Fault(self.mark(node), dotted(location), message, hint=hint))

    def build(self, node: yaml.Node, location: Location, above: tuple[yaml.Node, ...] = ()) -> Node:
        self.seen += 1
        if self.seen > NODES_MAX or any(node is other for other in above):
            problem = "an alias leads back to itself, or to far too much"
            raise SettingsError([Fault(self.mark(node), dotted(location), f"not valid here: {problem}")])
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, location, (*above, node))
        if isinstance(node, yaml.SequenceNode):
            items = [self.build(item, (*location, index), (*above, node)) for index, item in enumerate(node.value)]
            return Node(items, self.mark(node))
        return Node(self.scalar(node, location), self.mark(node))

    def scalar(self, node: yaml.Node, location: Location) -> str | int | bool | None:
        text = str(node.value)
        match node.tag.removeprefix(_TAG):
            case "str" | "merge":
                return text
            case "null":
                return None
            case "bool" if text in ("true", "false"):
                return text == "true"
            case "int" if _INTEGER.fullmatch(text):
                return int(text)
        self.fault(node, location, "tags are not supported", "write the value without `!`")
        return None

    def mapping(self, node: yaml.MappingNode, location: Location, above: tuple[yaml.Node, ...]) -> Node:
        built = Node({}, self.mark(node))
        merged: list[Node] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.fault(key_node, location, "a key is a single word, not a list or mapping", "quote it if it is one")
                continue
            key = str(key_node.value)
            if key_node.tag == f"{_TAG}merge":
                merged += self.merges(value_node, location, above)
                continue
            mark = self.mark(key_node)
            if key in built.value:
                first = f"it already stands in line {built.keys[key].line}"
                self.faults.append(Fault(mark, dotted((*location, key)), "a key may stand here only once", hint=first))
                continue
            built.value[key] = self.build(value_node, (*location, key), above)
            built.keys[key] = mark
        for base in merged:
            for key, child in base.value.items():
                if key not in built.value:
                    built.value[key] = child
                    built.keys[key] = base.keys.get(key, child.mark)
        return built

    def merges(self, node: yaml.Node, location: Location, above: tuple[yaml.Node, ...]) -> list[Node]:
        """The mappings behind `<<`; earlier ones win, as everywhere in YAML."""
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not all(isinstance(each, yaml.MappingNode) for each in nodes):
            self.fault(node, location, "`<<` merges a mapping or a list of mappings")
            return []
        return [self.build(each, location, above) for each in nodes]


def _problem(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "cannot be read"
    return f"{error.context} {problem}" if problem.startswith("but ") else problem


def _syntax_fault(mark: Mark, problem: str) -> Fault:
    hint = ""
    if "'{'" in problem or "'}'" in problem:
        hint = "put a value that contains { or } in quotes when it stands inside of { }"
    elif "\\t" in problem:
        hint = "indent with spaces, not with tabs"
    elif "mapping values are not allowed" in problem:
        hint = "put a value that contains `: ` in quotes, and check the indentation"
    # An alias or a tag may be a secret that was not quoted; tokens of the syntax itself are short.
    safe = re.sub(
        r"'([^']*)'", lambda quoted: quoted[0] if len(quoted[1]) < 4 or quoted[1][0] == "<" else "'…'", problem
    )
    return Fault(mark, "", f"not valid YAML: {safe}", hint=hint)
