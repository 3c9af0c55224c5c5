"""The example configurations: valid as they stand, valid with everything switched on, and complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.settings import SettingsError, changes_needing_restart, defaults_for, load, parse
from gateway.settings.keys import all_keys

CONFIG = Path(__file__).parents[2] / "config"
GATEWAY = (CONFIG / "gateway.yaml").read_text()
SWITCHED_OFF = re.compile(r"^( *)#(?=[a-z-])", re.MULTILINE)


@pytest.fixture
def surroundings(tls_files: Path, key_in_env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment and files that the examples name."""
    monkeypatch.setenv("TWOPHP_PARTNER_KEY", "A" * 24)
    monkeypatch.setenv("TWOPHP_JWT_SECRET", "secret")
    monkeypatch.setenv("TWOPHP_SYNC_TOKEN", "token")
    monkeypatch.setenv("TWOPHP_WEBHOOK_KEY", "whsec_" + "A" * 32)
    monkeypatch.setenv("TWOPHP_OWNER_URL", "postgresql://owner@db/orders")
    monkeypatch.setenv("DATABASE_URL", "postgresql://twophp:secret@db/orders")
    keys = tls_files / "keys"
    keys.mkdir()
    (keys / "k2").write_text("A" * 43 + "=\n")
    public = "MCowBQYDK2VwAyEAk8Blg1NlZ7LJwkXVwg1lR6rifinv32XQn08EwWA8/nU="
    (keys / "mobile.pem").write_text(f"-----BEGIN PUBLIC KEY-----\n{public}\n-----END PUBLIC KEY-----\n")
    (keys / "jwks.json").write_text("{}")


def test_the_gateway_example_is_valid_as_it_stands_and_needs_nothing() -> None:
    settings = load(CONFIG / "gateway.yaml")
    assert settings.warnings == ()
    assert [route.mode for route in settings.routes] == ["standard", "standard", "transparent", "off"]


def test_the_gateway_example_says_the_defaults() -> None:
    settings, defaults = load(CONFIG / "gateway.yaml"), defaults_for("http://127.0.0.1:3000")
    different = {name for name in settings.__dataclass_fields__ if getattr(settings, name) != getattr(defaults, name)}
    assert different == {"service", "routes"}
    assert changes_needing_restart(settings, defaults) == ["service.name"]
    differences = {"path", "methods", "resource_id", "verify", "compensation"}  # what has no default, or shows a choice
    for name in settings.routes[0].__dataclass_fields__:
        same = getattr(settings.routes[0], name) == getattr(defaults.routes[0], name)
        assert same != (name in differences), name


@pytest.mark.usefixtures("surroundings")
def test_every_line_that_is_switched_off_is_valid_when_switched_on() -> None:
    without_choices = re.sub(r"^#identity: .*\n", "", GATEWAY, flags=re.MULTILINE)
    text = SWITCHED_OFF.sub(r"\1", without_choices).replace("url: embedded", "url: postgresql://db/orders")
    settings = parse(text, "gateway.yaml")
    assert settings.listen.tls is not None
    assert [key.id for key in settings.encryption.keys] == ["k2", "k1"]
    assert [token.role for token in settings.tokens] == ["operations", "sync"]
    assert len(settings.signatures.keys) == 2
    assert settings.ledger is not None
    assert settings.egress[0].target == "inventory"
    assert (settings.routes[0].ttl_ms, settings.routes[0].max_ttl_ms) == (45_000, 300_000)


@pytest.mark.parametrize("line", re.findall(r"^#(identity: .*)$", GATEWAY, re.MULTILINE))
@pytest.mark.usefixtures("surroundings")
def test_every_identity_of_the_gateway_example_is_valid(line: str) -> None:
    text = re.sub(r"^#?identity: .*\n", "", GATEWAY, flags=re.MULTILINE).replace("  #tls:", "  tls:")
    assert parse(f"{text}\n{line}\n", "gateway.yaml").identity.method in line


def test_every_key_is_in_the_gateway_example() -> None:
    """Each in its own section, switched on or off."""
    sections: dict[str, str] = {}
    for block in re.split(r"^(?=#?[a-z]+:)", GATEWAY, flags=re.MULTILINE):
        name = block.lstrip("#").split(":")[0]
        sections[name] = sections.get(name, "") + block
    missing = []
    for key in all_keys():
        section, *rest = key.replace("[]", "").split(".")
        if section == "defaults" and rest:
            continue  # any key of a route
        if rest[-1:] in (["env"], ["file"]):
            rest.pop()  # where a secret can be is said once, at the top
        if not all(re.search(rf"\b{name}:", sections.get(section, "")) for name in [section, *rest]):
            missing.append(key)
    assert missing == []


@pytest.mark.usefixtures("surroundings")
def test_the_sidecar_example_is_valid_and_has_a_ttl_for_each_route() -> None:
    """TTL-4."""
    settings = load(CONFIG / "sidecar.yaml")
    assert settings.warnings == ()
    assert {route.path: route.ttl_ms for route in settings.routes} == {
        "/orders": 120_000,
        "/payments": 5_000,
        "/reports/**": 120_000,
        "/carts/**": 30_000,
        "/internal/**": 30_000,
    }


@pytest.mark.usefixtures("surroundings")
def test_the_chain_example_is_valid_and_calls_through_ports_of_its_own() -> None:
    """LED-2, COR-4."""
    settings = load(CONFIG / "chain.yaml")
    assert settings.warnings == ()
    assert settings.ledger is not None
    assert [(egress.target, egress.listen.port) for egress in settings.egress] == [
        ("inventory", 9001),
        ("billing", 9002),
    ]
    assert settings.tokens[0].writes_for == settings.service.name


def test_an_egress_port_that_nobody_could_know_is_refused() -> None:
    """COR-4: the application has to be told it."""
    with pytest.raises(SettingsError, match="port"):
        parse(
            "upstream: {url: http://127.0.0.1:1}\negress: [{listen: '127.0.0.1:0', target: a, url: 'http://a'}]",
            "a.yaml",
        )
