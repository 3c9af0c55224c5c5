"""Ways to read a configuration text and to look at what is wrong with it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.settings import Fault, Settings, SettingsError, parse

UPSTREAM = "upstream: {url: 'http://127.0.0.1:3000'}\n"

Read = Callable[[str], Settings]
Faults = Callable[[str], list[Fault]]


@pytest.fixture
def read() -> Read:
    """Settings of a text, which need not name an upstream."""

    def read(text: str) -> Settings:
        return parse(text if "upstream" in text else text + "\n" + UPSTREAM, "gateway.yaml")

    return read


@pytest.fixture
def faults(read: Read) -> Faults:
    """What is wrong with a text."""

    def faults(text: str) -> list[Fault]:
        with pytest.raises(SettingsError) as caught:
            read(text)
        return list(caught.value.errors)

    return faults


@pytest.fixture
def key_in_env(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of an environment variable that holds an encryption key."""
    monkeypatch.setenv("TWOPHP_KEY_K1", base64.b64encode(bytes(range(32))).decode())
    return "TWOPHP_KEY_K1"


@pytest.fixture
def tls_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with certificate files; what is in them is read by listeners, not by the settings."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tls").mkdir()
    for name in ("server.pem", "server.key", "clients.pem"):
        (tmp_path / "tls" / name).write_text("-----BEGIN SOMETHING-----\n")
    return tmp_path
