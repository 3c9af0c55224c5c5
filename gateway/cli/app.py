"""The commands: serve, central, demo, check, schema, migrate, keys, deliveries, in-doubt, ledger."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway import __version__
from gateway.cli import deliveries, in_doubt, keys, ledger
from gateway.settings import Overrides, Settings, SettingsError, json_schema, load

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(keys.app, name="keys")
app.add_typer(deliveries.app, name="deliveries")
app.add_typer(in_doubt.app, name="in-doubt")
app.add_typer(ledger.app, name="ledger")

EXIT_CONFIG = 2
EXIT_REFUSED = 78  # EX_CONFIG: a restart would not help

ConfigFile = Annotated[Path, typer.Option("-c", "--config", help="The configuration file.")]
LogLevel = Annotated[str, typer.Option(help="debug, info, warning or error.", envvar="TWOPHP_LOG_LEVEL")]


@app.callback(invoke_without_command=True)
def twophp(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """The 2PHP gateway: register, confirm, execute once, never lose the outcome."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def serve(
    config: Annotated[Path | None, typer.Option("-c", "--config", help="The configuration file.")] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT of the data port.")] = None,
    operator: Annotated[str | None, typer.Option(help="HOST:PORT of the operator listener.")] = None,
    upstream: Annotated[str | None, typer.Option(help="URL of the service behind the gateway.")] = None,
    log_level: LogLevel = "info",
) -> None:
    """Run a gateway. Without -c: --upstream, the embedded store, and one route /** in standard mode."""
    from gateway.telemetry import logs

    if log_level not in logs.LEVELS:
        typer.echo(f"--log-level: {log_level!r} is not one of {', '.join(logs.LEVELS)}", err=True)
        raise typer.Exit(EXIT_CONFIG)
    overrides = Overrides(listen=listen, operator=operator, upstream=upstream)
    settings = _load(config, overrides)
    logs.configure(log_level)
    _warn(settings)
    raise typer.Exit(run_gateway(settings, config, overrides, log_level))


def run_gateway(settings: Settings, config: Path | None, overrides: Overrides, log_level: str) -> int:
    """Supervise until stopped; the exit status."""
    import uvloop

    from gateway.runtime.supervisor import Source, StartRefused, Supervisor
    from gateway.store.embedded import EmbeddedError

    async def run() -> int:
        return await Supervisor(settings, Source(config, overrides), log_level=log_level).run()

    try:
        return uvloop.run(run())
    except (StartRefused, EmbeddedError) as error:
        typer.echo(f"twophp: {error}", err=True)
        return EXIT_REFUSED


@app.command()
def central(config: ConfigFile, log_level: LogLevel = "info") -> None:
    """Run the central ledger and its page."""
    from gateway.cli.central import run_central

    raise typer.Exit(run_central(config, log_level))


@app.command()
def demo(log_level: LogLevel = "warning") -> None:
    """Everything at once on loopback: a sample service, an embedded Postgres, the gateway, and lines to paste."""
    from gateway.cli.demo import run_demo

    raise typer.Exit(run_demo(log_level))


@app.command()
def check(config: ConfigFile) -> None:
    """Validate a configuration, a gateway's or a central ledger's, without starting anything (OPS-2)."""
    from gateway.cli.central import check_central, is_central

    if is_central(config):
        raise typer.Exit(check_central(config))
    settings = _load(config, Overrides())
    _warn(settings)
    typer.echo(f"{config}: ok, {len(settings.routes)} routes to {settings.upstream.url}")


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration, for editors."""
    import orjson

    sys.stdout.buffer.write(orjson.dumps(json_schema(), option=orjson.OPT_INDENT_2) + b"\n")


@app.command()
def migrate(config: ConfigFile) -> None:
    """Bring the store to this release's schema, as its owner."""
    from gateway.store.migrate import MigrationError
    from gateway.store.migrate import migrate as apply

    settings = _load(config, Overrides())

    async def run() -> list[str]:
        store = settings.store
        if not store.embedded:
            return await apply(store.owner.reveal(), buckets=store.buckets, request_url=store.url.reveal())
        from gateway.store.embedded import EmbeddedPostgres

        async with EmbeddedPostgres(store.data_dir) as url:
            return await apply(url, buckets=store.buckets)

    try:
        applied = asyncio.run(run())
    except MigrationError as error:
        typer.echo(f"twophp: {error}", err=True)
        raise typer.Exit(EXIT_REFUSED) from None
    typer.echo("\n".join(f"applied {name}" for name in applied) or "up to date")


def _warn(settings: Settings) -> None:
    for warning in settings.warnings:
        typer.echo(f"warning: {warning}", err=True)


def _load(config: Path | None, overrides: Overrides) -> Settings:
    try:
        return load(config, overrides=overrides)
    except SettingsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(EXIT_CONFIG) from None
