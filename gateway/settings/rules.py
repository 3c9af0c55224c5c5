"""What a value may be: the small vocabulary that the sections of the model are annotated with.

A `Rule` reads one value as the YAML has it and returns the typed one, or raises `Refused` with what is allowed instead.
pydantic finds rules and sections through the two `__get_pydantic_…__` methods. Nothing here imports pydantic at module
level: a worker that is handed ready settings never loads it (about 10 MiB of resident memory).

Must not know single keys (see `sections`, `access`, `routes`), nor files and lines (see `faults`).
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, ClassVar, cast

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

UNITS = ("_ms", "_bytes")  # attribute names carry the unit, the YAML's values do: `timeout: 30s` is `timeout_ms`


def contract_key(attribute: str) -> str:
    """The YAML key of an attribute: its name without the unit."""
    for unit in UNITS:
        attribute = attribute.removesuffix(unit)
    return attribute


class Refused(ValueError):
    """A value that is not allowed: what would be, and perhaps what was meant; or a problem beyond the value itself.

    `shown=False` keeps the value found out of the message, because it is or may be a secret.
    """

    def __init__(self, allowed: str = "", *, hint: str = "", problem: str = "", shown: bool = True) -> None:
        super().__init__(allowed or problem)
        self.allowed = allowed
        self.hint = hint
        self.problem = problem
        self.shown = shown


class Rule:
    """Reads one value. Subclasses say `allowed`, `parse` and the JSON Schema that editors check the same thing with."""

    schema: ClassVar[dict[str, Any]] = {}

    def parse(self, value: object) -> Any:
        raise NotImplementedError

    def json_schema(self) -> dict[str, Any]:
        return dict(self.schema)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(self.parse)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return self.json_schema()


class Says:
    """What a key is for, shown by editors through the JSON Schema."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "description": self.text}


class Section:
    """A mapping of the YAML: unknown keys are refused, a key left empty counts as left out."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {
        "extra": "forbid",
        "alias_generator": contract_key,
        "hide_input_in_errors": True,
    }

    @classmethod
    def accept(cls, data: object) -> object:
        """The mapping before its keys are read. Sections override it to refuse other shapes in their own words."""
        return without_empty(cls, data) if isinstance(data, dict) else data

    def check(self) -> None:
        """Rules between keys of this one mapping; raises `Refused`. Rules between sections are in `checks`."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        def checked(section: Section) -> Section:
            section.check()
            return section

        # The reference goes from the inner schema to the outer one: a section that is used in several places is
        # looked up by it, and would otherwise be found without `accept` and `check`.
        inner: Any = dict(handler.resolve_ref_schema(handler(source)))
        ref = inner.pop("ref", None)
        accepted = core_schema.no_info_before_validator_function(cls.accept, inner)
        return core_schema.no_info_after_validator_function(checked, accepted, ref=ref)


def without_empty(section: type[Section], data: dict[Any, Any]) -> dict[Any, Any]:
    """A key with nothing behind it, as when all that stood below is commented out, counts as left out."""
    known = {contract_key(field.name) for field in dataclasses.fields(cast(Any, section))}
    return {key: value for key, value in data.items() if value is not None or key not in known}


class Flag(Rule):
    """`true` or `false`; the other words that YAML 1.1 took for them are text here, so that `mode: off` works."""

    schema: ClassVar[dict[str, Any]] = {"type": "boolean"}

    def parse(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(str(value).lower())
        raise Refused("`true` or `false`", hint=f"write `{meant}`" if meant else "")


class Whole(Rule):
    """A whole number within bounds."""

    def __init__(self, least: int, most: int) -> None:
        self.least = least
        self.most = most

    def parse(self, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most:
            return value
        raise Refused(f"a whole number from {self.least} to {self.most}")

    def json_schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


class PowerOfTwo(Whole):
    """A power of two within bounds (DESIGN decision 3)."""

    def parse(self, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value in self.values():
            return value
        raise Refused(f"a power of two from {self.least} to {self.most}")

    def values(self) -> list[int]:
        return [1 << bit for bit in range(self.most.bit_length()) if self.least <= 1 << bit <= self.most]

    def json_schema(self) -> dict[str, Any]:
        return {"type": "integer", "enum": self.values()}


class Text(Rule):
    """Some text that is not empty."""

    schema: ClassVar[dict[str, Any]] = {"type": "string", "minLength": 1}

    def parse(self, value: object) -> str:
        if isinstance(value, str) and value:
            return value
        raise Refused("text that is not empty", hint=f'write "{value}"' if isinstance(value, int) else "")
