"""OPS-2: an error names file, line, column, key, what was found, what is allowed, and what was probably meant."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from gateway.settings import SettingsError, parse
from gateway.settings.keys import all_keys
from tests.settings.conftest import Faults

ERRORS = (Path(__file__).parent / "errors.txt").read_text()


def _blocks() -> list[tuple[str, list[str]]]:
    """The configurations of errors.txt, each with the errors it brings."""
    blocks = []
    for block in ERRORS.split("\n\n"):
        lines = block.strip("\n").split("\n")
        expected = [line.removeprefix("=> ") for line in lines if line.startswith("=> ")]
        if expected:
            blocks.append(("\n".join(line for line in lines if not line.startswith("=> ")), expected))
    return blocks


@pytest.fixture
def surroundings(tls_files: Path, key_in_env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configurations of errors.txt refer to."""
    monkeypatch.setenv("SHORT_KEY", "c2hvcnQ=")
    monkeypatch.setenv("WEBHOOK_KEY", "whsec_" + "A" * 32)
    monkeypatch.setenv("EMPTY", " ")
    monkeypatch.delenv("NOT_SET", raising=False)


@pytest.mark.parametrize(("text", "expected"), _blocks(), ids=[text for text, _ in _blocks()])
@pytest.mark.usefixtures("surroundings")
def test_an_error_names_place_key_found_and_allowed(faults: Faults, text: str, expected: list[str]) -> None:
    """OPS-2, SEC-3, SEC-6."""
    assert [str(fault) for fault in faults(text)] == [f"gateway.yaml:{line}" for line in expected]


@pytest.mark.parametrize("text", ["- a", "just text", "3", "true"])
def test_a_text_that_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"^x:1:1: found .*; allowed: a mapping of sections") as caught:
        parse(text, "x")
    assert len(caught.value.errors) == 1


def test_everything_that_is_wrong_is_reported_at_once_in_the_order_of_the_file(faults: Faults) -> None:
    """OPS-2: also rules between sections, beside values that are wrong in themselves."""
    text = (
        "listen: {host: 0.0.0.0}\n"  # SEC-6
        "workers: 0\n"
        "workers: 2\n"  # twice
        "tokens: [{name: a, role: x, sha256: y}]\n"
        "store: {url: postgresql://db/x}\n"  # without a key
        "routes:\n"
        "  - {path: x}\n"
        "  - {path: /b, replay_policy: REUSE}\n"  # SEC-3
        "  - {path: /b, ttl: 5}\n"
        "upstream: {url: http://x, color: red}\n"
    )
    keys = [(fault.mark.line, fault.key) for fault in faults(text)]
    assert keys == [
        (1, "listen.host"),
        (2, "workers"),
        (3, "workers"),
        (4, "tokens[0].role"),
        (4, "tokens[0].sha256"),
        (5, "encryption.keys"),
        (7, "routes[0].path"),
        (8, "routes[1].replay_policy"),
        (9, "routes[2].ttl"),
        (10, "upstream.color"),
    ]


def test_a_wrong_value_does_not_bring_further_errors_with_it(faults: Faults) -> None:
    """`replay_proof` is there, only misspelt: SEC-3 must not be reported as well."""
    (fault,) = faults("routes: [{path: /a, replay_policy: REUSE, replay_proof: tokn}]")
    assert fault.key == "routes[0].replay_proof"
    assert fault.hint == "did you mean `token`?"
    (fault,) = faults("store: {url: postgresql://db/x}\nencryption: {keys: [{id: k1, env: NOT_SET_ANYWHERE}]}")
    assert fault.key == "encryption.keys[0]"


def test_one_line_that_is_wrong_for_many_routes_is_reported_once(faults: Faults) -> None:
    (fault,) = faults("defaults: {replay_policy: REUSE}\nroutes: [{path: /a}, {path: /b}, {path: /c}]")
    assert fault.key == "defaults.replay_policy"


def test_long_and_unprintable_values_are_shown_short_and_on_one_line(faults: Faults) -> None:
    (fault,) = faults(f"service: {{name: '{'x' * 500}'}}")
    assert fault.found == f"`{'x' * 80}…`"
    (fault,) = faults('service: {name: "a\\nb\\u202e"}')
    assert fault.found == "`a\\nb\\u202e`"
    assert "\n" not in str(fault)


def test_no_key_can_be_given_a_wrong_value_without_being_named(faults: Faults) -> None:
    """OPS-2: whatever the key, a value of another shape is reported at that key."""
    for key in all_keys():
        if key == "identity.method" or ".tls." in key:
            continue
        *parents, last = key.split(".")
        wrong = "{no: such}" if last not in ("json",) else "[3]"
        text = f"{{{last}: {wrong}}}"
        for parent in reversed(parents):
            text = f"{{{parent[:-2]}: [{text}]}}" if parent.endswith("[]") else f"{{{parent}: {text}}}"
        if key.startswith("identity."):
            method = {"header": "api_key", "keys[]": "api_key", "keys": "api_key", "trusted_networks": "trusted_header"}
            text = text.replace("identity: {", f"identity: {{method: {method.get(key.split('.')[1], 'jwt')}, ")
        expected = key.replace("[]", "[0]")
        named = [fault.key for fault in faults(text[1:-1].replace("'", ""))]
        assert any(name == expected or name.startswith(f"{expected}.") for name in named), (key, named)


def test_an_error_can_be_sent_from_process_to_process(faults: Faults) -> None:
    error = SettingsError(faults("workers: 0\nenabled: 1"))
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_name_of_the_file_is_the_one_that_was_given(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"^etc/gw\.yaml:2:10: workers: "):
        parse("enabled: true\nworkers: x\nupstream: {url: http://x}", "etc/gw.yaml")
