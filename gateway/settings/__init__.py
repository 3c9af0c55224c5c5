"""Settings: the YAML of the Contract as a frozen typed model; an error names file, line, key, found and allowed.

Imports nothing of ours. The model is light; `load`, `parse`, `defaults_for`, `Overrides` and `json_schema` bring PyYAML
and pydantic with them, so they are imported when first asked for: a worker that is handed ready settings needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.settings.faults import Fault, Mark, SettingsError
from gateway.settings.model import Settings
from gateway.settings.reload import changes_needing_restart
from gateway.settings.routes import Route
from gateway.settings.secrets import Secret, SecretUnavailable

if TYPE_CHECKING:
    from gateway.settings.loading import Overrides, defaults_for, load, parse
    from gateway.settings.schema import json_schema

__all__ = [
    "Fault",
    "Mark",
    "Overrides",
    "Route",
    "Secret",
    "SecretUnavailable",
    "Settings",
    "SettingsError",
    "changes_needing_restart",
    "defaults_for",
    "json_schema",
    "load",
    "parse",
]


def __getattr__(name: str) -> Any:
    if name in ("Overrides", "defaults_for", "load", "parse"):
        from gateway.settings import loading

        return getattr(loading, name)
    if name == "json_schema":
        from gateway.settings.schema import json_schema

        return json_schema
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
