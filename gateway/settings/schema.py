"""The JSON Schema of the configuration, for editors: `twophp schema > gateway.schema.json`."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from gateway.settings.durations import duration_text, size_text
from gateway.settings.loading import document_adapter

SCHEMA_ID = "https://2php.dev/schemas/gateway.json"


class _Generator(GenerateJsonSchema):
    """Defaults as they are written (`30s`, not 30000), and no titles: the key is the title."""

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        made = super().default_schema(schema)
        made["default"] = _written(made.get("default"), made) if "default" in made else None
        if made["default"] is None:
            del made["default"]
        return made

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """The schema, draft 2020-12."""
    schema = document_adapter().json_schema(schema_generator=_Generator)
    header = {"$schema": GenerateJsonSchema.schema_dialect, "$id": SCHEMA_ID}
    return header | schema | {"title": "2PHP gateway configuration"}


def _written(default: Any, schema: dict[str, Any]) -> Any:
    if isinstance(default, list):
        return [_written(item, schema.get("items", {})) for item in default]
    match schema.get("format"):
        case "2php-duration" if default is not None:
            return duration_text(default)
        case "2php-size" if default is not None:
            return size_text(default)
    return default
