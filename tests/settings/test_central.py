"""The central ledger's configuration: its example, its defaults, its errors, and what a reload takes over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.settings import SettingsError
from gateway.settings.central import CentralDocument, central_changes_needing_restart
from gateway.settings.central_loading import is_central, load_central, parse_central
from gateway.settings.keys import all_keys
from tests.settings.test_examples import SWITCHED_OFF

CONFIG = Path(__file__).parents[2] / "config"
EXAMPLE = (CONFIG / "central.yaml").read_text()


def test_the_example_is_valid_as_it_stands_and_says_the_defaults() -> None:
    """OPS-2."""
    assert load_central(CONFIG / "central.yaml") == parse_central("{}")
    assert [warning.key for warning in load_central(CONFIG / "central.yaml").warnings] == ["tokens"]


def test_every_line_that_is_switched_off_is_valid_when_switched_on(
    tls_files: Path, key_in_env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OPS-2."""
    monkeypatch.setenv("TWOPHP_OWNER_URL", "postgresql://owner@db/ledger")
    (tls_files / "keys").mkdir()
    (tls_files / "keys" / "k2").write_text("A" * 43 + "=\n")
    settings = parse_central(SWITCHED_OFF.sub(r"\1", EXAMPLE).replace("url: embedded", "url: postgresql://db/ledger"))
    assert settings.listen.tls is not None
    assert [token.role for token in settings.tokens] == ["operations", "audit", "sync"]
    assert settings.tokens[1].service == "orders"
    assert dict(settings.retention.services) == {"orders": 30 * 86_400_000, "billing": 3650 * 86_400_000}
    assert settings.warnings == ()


def test_the_example_names_every_key() -> None:
    """A key that nobody can find does not exist."""
    for key in all_keys(CentralDocument):
        assert re.search(rf"\b{key.rpartition('.')[2]}\b", EXAMPLE), key


def test_everything_that_is_wrong_is_said_at_once_with_its_place() -> None:
    """OPS-2."""
    text = "listen: {prt: 1}\nretention:\n  default: 90\n  services: {orders: 1h}\n"
    text += "tokens: [{name: a, role: boss, sha256: x}]\n"
    with pytest.raises(SettingsError) as wrong:
        parse_central(text, "central.yaml")
    places = [(fault.mark.line, fault.key) for fault in wrong.value.errors]
    assert places == [
        (1, "listen.prt"),
        (3, "retention.default"),
        (4, "retention.services"),
        (5, "tokens[0].role"),
        (5, "tokens[0].sha256"),
    ]


def test_rules_between_sections_are_checked() -> None:
    """SEC-5, SEC-6, DESIGN decision 12."""
    digest = "0" * 64
    for text, key in [
        ("listen: {host: 0.0.0.0}", "listen.host"),
        ("store: {url: postgresql://db/x}", "encryption.keys"),
        ("store: {owner_url: postgresql://db/x}", "store.owner_url"),
        (
            f"tokens: [{{name: a, role: audit, sha256: {digest}}}, {{name: b, role: sync, sha256: {digest}}}]",
            "tokens[1].sha256",
        ),
    ]:
        with pytest.raises(SettingsError) as wrong:
            parse_central(text)
        assert [fault.key for fault in wrong.value.errors] == [key]
    assert parse_central("listen: {host: 0.0.0.0, plaintext: allowed}").listen.host == "0.0.0.0"


def test_a_reload_takes_over_tokens_and_retention_but_no_address() -> None:
    """OPS-1."""
    old = parse_central("{}")
    new = parse_central("retention: {default: 5d}\nstalled: {processing: 1m}")
    assert central_changes_needing_restart(old, new) == []
    changed = parse_central("listen: {port: 1}\nstore: {data_dir: x}\npage: {enabled: false}")
    assert central_changes_needing_restart(old, changed) == ["listen.port", "store.data_dir", "page"]


def test_a_central_ledgers_file_is_told_from_a_gateways(tmp_path: Path) -> None:
    """OPS-2: `twophp check` takes both."""
    assert is_central(CONFIG / "central.yaml")
    assert not is_central(CONFIG / "gateway.yaml")
    assert not is_central(tmp_path / "missing.yaml")
