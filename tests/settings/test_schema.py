"""The JSON Schema: what it accepts is what editors accept, and every key says what it is for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gateway.settings import json_schema
from gateway.settings.keys import all_keys
from gateway.settings.nodes import read as read_nodes
from tests.settings.test_contract import CONTRACT

CONFIG = Path(__file__).parents[2] / "config"


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def _plain(text: str) -> Any:
    return read_nodes(text, "x")[0].plain()


def _without_nothing(value: Any) -> Any:
    """A key with nothing behind it is left out, as the settings do."""
    if isinstance(value, dict):
        return {key: _without_nothing(inner) for key, inner in value.items() if inner is not None}
    return [_without_nothing(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "text",
    [
        CONTRACT,
        (CONFIG / "gateway.yaml").read_text(),
        (CONFIG / "sidecar.yaml").read_text(),
        "upstream: {url: http://x}\nidentity: {anonymous: allow}",
        "upstream: {url: http://x}\nidentity: {method: jwt, jwks: {file: x}}",
        "upstream: {url: http://x}\nstore: {url: {env: X}}",
        "upstream: {url: http://x}\nroutes: [{path: /a, mode: off}]",
    ],
)
def test_the_schema_accepts_what_the_settings_accept(validator: jsonschema.Draft202012Validator, text: str) -> None:
    assert [error.message for error in validator.iter_errors(_without_nothing(_plain(text)))] == []


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        "upstream: {}",
        "upstream: {url: x}",
        "upstream: {url: http://x, timout: 3s}",
        "upstream: {url: http://x, timeout: 3}",
        "upstream: {url: http://x}\nlimits: {buffered: 3MB}",
        "upstream: {url: http://x}\nworkers: 0",
        "upstream: {url: http://x}\nstore: {buckets: 3}",
        "upstream: {url: http://x}\nstore: {url: mysql://x}",
        "upstream: {url: http://x}\nroutes: [{mode: off}]",
        "upstream: {url: http://x}\nroutes: [{path: /a, mode: of}]",
        "upstream: {url: http://x}\nidentity: {method: mtls, header: x}",
        "upstream: {url: http://x}\nledger: {central: http://x, token: literal}",
    ],
)
def test_the_schema_refuses_what_the_settings_refuse(validator: jsonschema.Draft202012Validator, text: str) -> None:
    assert not validator.is_valid(_plain(text))


def test_the_schema_can_be_printed_and_names_itself() -> None:
    schema = json.loads(json.dumps(json_schema()))
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["required"] == ["upstream"]


def test_every_key_is_there_and_says_what_it_is_for() -> None:
    schema = json_schema()
    for key in all_keys():
        for found in _properties(schema, schema, key.replace("[]", "").split(".")):
            assert found.get("description"), key


def test_defaults_are_shown_as_they_are_written() -> None:
    definitions = json_schema()["$defs"]
    assert definitions["Upstream"]["properties"]["timeout"]["default"] == "30s"
    assert definitions["Limits"]["properties"]["buffered"]["default"] == "64MiB"
    assert definitions["Callbacks"]["properties"]["schedule"]["default"][:3] == ["5s", "5m", "30m"]
    assert "default" not in definitions["Listen"]["properties"]["tls"]


def _properties(root: dict[str, Any], schema: dict[str, Any], path: list[str]) -> list[dict[str, Any]]:
    """Every place of the schema that a path of keys leads to."""
    schema = root["$defs"][schema["$ref"].rpartition("/")[2]] | schema if "$ref" in schema else schema
    if "items" in schema and path:
        return _properties(root, schema["items"], path)
    if "anyOf" in schema and path:
        return [found for choice in schema["anyOf"] for found in _properties(root, choice, path)]
    if not path:
        return [schema]
    below = schema.get("properties", {}).get(path[0])
    return _properties(root, below, path[1:]) if below else []
