"""Running a central ledger, and checking its configuration."""

from __future__ import annotations

from pathlib import Path

import typer

from gateway.settings import SettingsError
from gateway.settings.central import CentralSettings
from gateway.settings.central_loading import is_central, load_central

__all__ = ["check_central", "is_central", "run_central"]

EXIT_CONFIG = 2
EXIT_REFUSED = 78  # EX_CONFIG: a restart would not help


def run_central(config: Path, log_level: str) -> int:
    """Serve until stopped; the exit status."""
    import uvloop

    from gateway.runtime.central import Central
    from gateway.runtime.supervisor import StartRefused
    from gateway.store.embedded import EmbeddedError
    from gateway.telemetry import logs

    if log_level not in logs.LEVELS:
        typer.echo(f"--log-level: {log_level!r} is not one of {', '.join(logs.LEVELS)}", err=True)
        return EXIT_CONFIG
    settings = _load(config)
    if settings is None:
        return EXIT_CONFIG
    logs.configure(log_level)

    async def run() -> int:
        return await Central(settings, config).run()

    try:
        return uvloop.run(run())
    except (StartRefused, EmbeddedError) as error:
        typer.echo(f"twophp: {error}", err=True)
        return EXIT_REFUSED


def check_central(config: Path) -> int:
    """OPS-2: say what is wrong, or that nothing is; the exit status."""
    settings = _load(config)
    if settings is None:
        return EXIT_CONFIG
    typer.echo(f"{config}: ok, a central ledger on {settings.listen.host}:{settings.listen.port}")
    return 0


def _load(config: Path) -> CentralSettings | None:
    try:
        settings = load_central(config)
    except SettingsError as error:
        typer.echo(str(error), err=True)
        return None
    for warning in settings.warnings:
        typer.echo(f"warning: {warning}", err=True)
    return settings
