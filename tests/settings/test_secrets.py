"""Secrets: named, read when asked for, and never shown: not in errors, not in representations."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from gateway.settings import Secret, SecretUnavailable, SettingsError, parse
from gateway.settings.secrets import StoreUrl
from tests.settings.conftest import UPSTREAM, Read

CANARY = "hunter2canary"


def test_a_secret_is_read_from_the_environment_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret(env="SOME_SECRET")
    monkeypatch.setenv("SOME_SECRET", " one\n")
    assert secret.reveal() == "one"
    monkeypatch.setenv("SOME_SECRET", "two")
    assert secret.reveal() == "two"
    monkeypatch.delenv("SOME_SECRET")
    with pytest.raises(SecretUnavailable, match="environment variable SOME_SECRET is not set"):
        secret.reveal()


def test_a_secret_is_read_from_a_file_when_asked_for(tmp_path: Path) -> None:
    """Rotating a mounted secret needs no restart."""
    file = tmp_path / "secret"
    secret = Secret(file=str(file))
    file.write_text("one\n")
    assert secret.reveal() == "one"
    file.write_text("two\n")
    assert secret.reveal() == "two"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"x" * 70_000, "is larger than 65536 bytes"),
    ],
)
def test_a_file_that_holds_no_secret_is_reported(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "secret"
    file.write_bytes(content)
    with pytest.raises(SecretUnavailable, match=reason):
        Secret(file=str(file)).reveal()


LITERALS = [
    "encryption: {keys: [CANARY]}",
    "encryption: {keys: CANARY}",
    "encryption: {keys: {CANARY: 1}}",
    "encryption: {keys: [{id: k, value: CANARY}]}",
    "encryption: {keys: [{id: k, key: CANARY}]}",
    "encryption: {keys: [{id: k, env: 'CANARY=='}]}",
    "encryption: {keys: [{id: k, env: [CANARY]}]}",
    "encryption: {keys: [{id: k, env: {CANARY: x}}]}",
    "encryption: CANARY",
    "encryption: [CANARY]",
    "callbacks: {signing_key: CANARY}",
    "callbacks: {signing_key: [CANARY]}",
    "callbacks: {signing_keys: CANARY}",
    "callbacks: {signing_keys: [CANARY, CANARY]}",
    "callbacks: {signing_keys: [{value: CANARY}]}",
    "callbacks: CANARY",
    "signatures: {keys: [{id: a, algorithm: ed25519, pem: CANARY}]}",
    "signatures: {keys: [CANARY]}",
    "identity: {method: jwt, algorithms: [HS256], secret: CANARY}",
    "identity: {method: jwt, algorithms: [HS256], secret: {literal: CANARY}}",
    "identity: {method: api_key, keys: [CANARY]}",
    "identity: {method: api_key, keys: [{name: a, sha256: CANARY}]}",
    "identity: {method: api_key, keys: [{name: a, key: CANARY}]}",
    "tokens: [CANARY]",
    "tokens: CANARY",
    "tokens: [{name: a, role: audit, sha256: CANARY}]",
    "tokens: [{name: a, role: audit, token: CANARY}]",
    "ledger: {central: 'https://x', token: CANARY}",
    "ledger: {central: 'https://u:CANARY@x', token: {env: HOME}}",
    "ledger: {central: 'https://CANARY@x', token: {env: HOME}}",
    "store: {url: CANARY}",
    "store: {url: 'postgres//u:CANARY@h'}",
    "store: {url: [postgresql://u:CANARY@h]}",
    "store: {url: {value: CANARY}}",
    "store: {url: {env: 'postgresql://u:CANARY@h'}}",
    "store: {url: 'postgresql://u:CANARY@h/d', buckets: 3}",
    "store: {url: 'postgresql://h/d?user=u&password=CANARY'}",
    "store: {url: postgresql://h/d, owner_url: 'postgresql://o:CANARY@h/d'}",
    "store: {owner_url: 'x:CANARY'}",
    "upstream: {url: 'http://u:CANARY@x'}",
    "upstream: {url: 'http://u:CAN/CANARY@x'}",
    "upstream: {url: 'ftp://u:CANARY@x'}",
    "upstream: {url: 'http://u:CANARY@x:port'}",
    "routes: [{path: /a, compensation: [{url: 'http://u:CANARY@x'}]}]",
    "egress: [{listen: '127.0.0.1:1', target: a, url: 'http://u:CANARY@x'}]",
    "listen: {tls: {cert: x, key: '-----BEGIN PRIVATE KEY----- CANARY'}}",
    "listen: {tls: {cert: x, key: |\n    -----BEGIN PRIVATE KEY-----\n    CANARY\n  }}",
    "tokens: *CANARY",
    "ledger: {central: 'https://x', token: !CANARY x}",
    "ledger: {token: 'CANARY",
    "ledger: {token: {CANARY",
    "CANARY",
]


@pytest.mark.parametrize("text", LITERALS)
def test_a_secret_written_into_the_configuration_is_refused_and_not_repeated(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-4, OPS-2: not in the message, nor anywhere in the exception that a log might print."""
    text = text.replace("CANARY", CANARY)
    with pytest.raises(SettingsError) as caught:
        parse(text if "upstream" in text else UPSTREAM + text, "x")
    error = caught.value
    told = str(error) + repr(error) + repr(error.errors)
    if f"{{{CANARY}" not in text:  # a key is no secret, and unknown keys are named
        assert CANARY not in told
    assert error.__suppress_context__ or error.__context__ is None


def test_a_representation_shows_where_a_secret_is_and_never_what_it_is(
    read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNC", CANARY)
    monkeypatch.setenv("DSN", f"postgresql://u:{CANARY}@h/d")
    monkeypatch.setenv("TWOPHP_KEY_K1", "A" * 43 + "=")
    settings = read(
        "ledger: {central: 'https://x', token: {env: SYNC}}\nencryption: {keys: [{id: k1, env: TWOPHP_KEY_K1}]}\n"
        f"store: {{url: {{env: DSN}}, owner_url: 'postgresql://o:{CANARY}@h/d'}}"
    )
    assert settings.ledger is not None
    assert settings.ledger.token.reveal() == CANARY
    assert settings.store.url.reveal() == f"postgresql://u:{CANARY}@h/d"
    assert settings.store.owner.reveal() == f"postgresql://o:{CANARY}@h/d"
    assert "SYNC" in repr(settings)
    assert CANARY not in repr(settings) + str(settings) + str(settings.warnings)
    assert "A" * 43 not in repr(settings)


def test_a_password_in_the_store_url_works_and_is_warned_about(read: Read, key_in_env: str) -> None:
    keys = f"encryption: {{keys: [{{id: k1, env: {key_in_env}}}]}}"
    settings = read(f"store: {{url: 'postgresql://u:{CANARY}@h/d'}}\n{keys}")
    assert [str(warning) for warning in settings.warnings] == [
        "gateway.yaml:1:14: store.url: a password stands in the configuration; "
        "write `url: {env: NAME}` or `{file: PATH}`"
    ]
    for url in (
        "postgresql://u@h/d",
        "postgres:///d?host=/run/pg",
        "postgresql://h:5432,i:5432/d?target_session_attrs=primary",
    ):
        assert read(f"store: {{url: '{url}'}}\n{keys}").warnings == ()


def test_the_store_is_embedded_unless_a_url_is_named(
    read: Read, key_in_env: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read("").store.embedded
    assert read("store: {url: embedded}").store.owner == StoreUrl()
    monkeypatch.setenv("DSN", "postgresql://h/d")
    store = read(f"store: {{url: {{env: DSN}}}}\nencryption: {{keys: [{{id: k1, env: {key_in_env}}}]}}").store
    assert not store.embedded
    assert store.owner is store.url


def test_settings_carry_no_secret_when_they_are_sent_to_a_worker(read: Read, key_in_env: str) -> None:
    settings = read(f"encryption: {{keys: [{{id: k1, env: {key_in_env}}}]}}")
    sent = pickle.dumps(settings)
    assert settings.encryption.keys[0].reveal().encode() not in sent
    assert pickle.loads(sent) == settings
