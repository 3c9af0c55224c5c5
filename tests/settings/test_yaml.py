"""How YAML is read: the traps of YAML 1.1, what is left empty, anchors and merges, and texts that are no YAML."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from gateway.settings import SettingsError, parse
from gateway.settings.nodes import read as read_nodes
from tests.settings.conftest import UPSTREAM, Faults, Read


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("on", "on"),
        ("yes", "yes"),
        ("No", "No"),
        ("y", "y"),
        ("True", "True"),
        ("true", True),
        ("false", False),
        ("'true'", "true"),
        ("truely", "truely"),
        ("null", None),
        ("~", None),
        ("", None),
        ("none", "none"),
        ("nullable", "nullable"),
        ("~a", "~a"),
        ("0", 0),
        ("-1", -1),
        ("17", 17),
        ("'17'", "17"),
        ("017", "017"),
        ("0x1F", "0x1F"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("1.5", "1.5"),
        ("1e3", "1e3"),
        (".inf", ".inf"),
        ("2024-01-01", "2024-01-01"),
        ("=", "="),
        ("9" * 18, 10**18 - 1),
        ("9" * 64, "9" * 64),
        ("!!str 17", "17"),
    ],
)
def test_a_plain_scalar_is_what_it_looks_like(text: str, value: object) -> None:
    node, faults = read_nodes(f"key: {text}", "x")
    assert faults == []
    assert node.plain() == {"key": value}
    assert type(node.plain()["key"]) is type(value)


def test_mode_off_and_the_key_on_are_text(read: Read) -> None:
    """OPT-3: YAML 1.1 would read both as booleans."""
    routes = read("routes: [{path: /a, mode: off}, {path: /b, compensation: [{on: [FAILED], url: 'http://c'}]}]").routes
    assert routes[0].mode == "off"
    assert routes[1].compensation[0].on == ("FAILED",)


def test_a_digest_made_of_digits_needs_no_quotes(read: Read) -> None:
    assert read(f"tokens: [{{name: a, role: audit, sha256: {'1234567890123456' * 4}}}]").tokens[0].sha256[:4] == "1234"


@pytest.mark.parametrize(
    "text",
    [
        "cors:",
        "cors: {origins: }",
        "listen:\n  tls:\n  port:",
        "ledger:",
        "routes:",
        "defaults: ~",
        "tokens: null",
        "identity:",
    ],
)
def test_a_key_with_nothing_behind_it_counts_as_left_out(read: Read, text: str) -> None:
    assert read(text) == read("")


def test_anchors_and_merges_save_typing_and_errors_still_point_at_the_text(read: Read, faults: Faults) -> None:
    text = (
        "routes:\n"
        "  - &slow {path: /a, ttl: 2m, timeout: 90s}\n"
        "  - {<<: *slow, path: /b, timeout: 5s}\n"
        "  - {<<: [{ttl: 3m}, *slow], path: /c}\n"
    )
    assert [(route.path, route.ttl_ms, route.timeout_ms) for route in read(text).routes] == [
        ("/a", 120_000, 90_000),
        ("/b", 120_000, 5_000),
        ("/c", 180_000, 90_000),
    ]
    assert [str(fault.mark) for fault in faults(text.replace("ttl: 2m", "ttl: 2"))] == ["gateway.yaml:2:27"] * 2


def test_aliases_cannot_blow_a_small_text_up(faults: Faults) -> None:
    lines = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    (fault,) = faults("\n".join(lines))
    assert "far too much" in fault.problem


@pytest.mark.parametrize("text", ["[" * 5000, "{a: " * 5000, "- " * 5000 + "x"])
def test_nesting_without_end_is_refused(faults: Faults, text: str) -> None:
    (fault,) = faults(text)
    assert "not valid YAML" in fault.problem


@pytest.mark.parametrize(("text", "place"), [("a: b\nc: \x00", "2:4"), ("\x07", "1:1")])
def test_control_characters_are_refused_with_their_place(faults: Faults, text: str, place: str) -> None:
    (fault,) = faults(text)
    assert str(fault) == f"gateway.yaml:{place}: not valid YAML: a character that text files do not have"


@given(st.text(alphabet="abu:{}[]-#&*!|>'\"%@`,? \n\t~<0=\\é", max_size=60))
@example("? ")
@example("&a *a")
@example("!<")
@example("%YAML 9.9\n---\n")
@example("upstream: &a {url: *a}")
@example("identity: {method: {}}")
@example("? {a: b}\n: c")
def test_no_text_does_anything_but_load_or_be_refused(text: str) -> None:
    for whole in (text, UPSTREAM + text, f"{UPSTREAM}routes: {text}"):
        assert _refusals(whole) >= 0


def _refusals(text: str) -> int:
    """How many things are wrong with a text, each of them with its place."""
    try:
        parse(text, "x")
    except SettingsError as error:
        return sum(str(fault).startswith("x:") for fault in error.errors) or -1
    return 0


_scalars = st.sampled_from(
    ["", 0, -1, 7, True, None, "x", "/a", "5s", "1MiB", "off", "http://a", {}, [], [{}], {"env": "PATH"}]
)


_sections = ["listen", "operator", "upstream", "store", "identity", "tokens", "callbacks", "routes", "ledger", "egress"]
_keys = ["url", "host", "port", "tls", "path", "method", "mode", "keys", "methods", "probe", "json", "on", "env", "ttl"]
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(_keys), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(_sections), _values, max_size=3))
def test_no_tree_of_known_keys_does_anything_but_load_or_be_refused(tree: dict[str, object]) -> None:
    assert _refusals(yaml.safe_dump(tree)) >= 0
