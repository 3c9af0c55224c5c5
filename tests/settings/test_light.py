"""A worker that is handed ready settings loads neither pydantic nor PyYAML: memory of an idle worker is a promise."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

from gateway.settings import defaults_for

ROOT = Path(__file__).parents[2]

WORKER = """
import pickle, sys
settings = pickle.load(sys.stdin.buffer)
from gateway.settings import Route, SettingsError, changes_needing_restart
assert settings.routes[0] == Route(path="/**", ttl_ms=30_000, grace_ms=5_000, max_ttl_ms=300_000, timeout_ms=30_000)
assert changes_needing_restart(settings, settings) == []
print([name for name in ("pydantic", "pydantic_core", "yaml") if name in sys.modules])
"""


def test_settings_can_be_handed_to_a_process_that_knows_no_pydantic() -> None:
    sent = pickle.dumps(defaults_for("http://127.0.0.1:3000"))
    worker = subprocess.run([sys.executable, "-c", WORKER], input=sent, capture_output=True, cwd=ROOT, timeout=30)
    assert worker.stderr == b""
    assert worker.stdout.strip() == b"[]"


def test_settings_import_nothing_else_of_ours() -> None:
    program = "import gateway.settings.loading, gateway.settings.schema, sys; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, cwd=ROOT, timeout=30, check=True)
    ours = {name for name in found.stdout.decode().split() if name.startswith("gateway.")}
    assert {name.split(".")[1] for name in ours} == {"settings"}
