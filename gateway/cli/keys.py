"""`twophp keys`: make an encryption key, and put one in front of the embedded store's ring (SEC-4)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.vault import BadKey, new_key, rotate_key_file
from gateway.vault.key_file import FILE_NAME

app = typer.Typer(no_args_is_help=True, help="Encryption keys.")


@app.command()
def new() -> None:
    """Print a new key: base64 of 32 random bytes, for an environment variable or a file of its own."""
    typer.echo(new_key())


@app.command()
def callback(
    caller: Annotated[str, typer.Argument(help="The caller's digest, as the ledger shows it.")],
    config: Annotated[Path, typer.Option("-c", "--config", help="The configuration file.")],
) -> None:
    """Print the key that one caller's callbacks are signed with (`callbacks.per_caller: true`), newest key first."""
    from gateway.delivery.signing import caller_key
    from gateway.settings import SettingsError, load

    try:
        callbacks = load(config).callbacks
        digest = bytes.fromhex(caller)
    except (SettingsError, ValueError) as error:
        typer.echo(f"twophp: {error}", err=True)
        raise typer.Exit(2) from None
    if not callbacks.per_caller or not callbacks.all_signing_keys:
        typer.echo("twophp: callbacks.per_caller is not set, or there are no signing keys", err=True)
        raise typer.Exit(2)
    for key in callbacks.all_signing_keys:
        typer.echo(caller_key(key.reveal(), digest))


@app.command()
def rotate(
    data_dir: Annotated[Path, typer.Option(help="The embedded store's data directory.")] = Path(".twophp"),
) -> None:
    """Put a new key first in the embedded store's key file; older keys go on opening what they sealed.

    With keys in the configuration, rotate there: put the new one first and send SIGHUP.
    """
    path = data_dir / FILE_NAME
    try:
        keys = rotate_key_file(path)
    except FileNotFoundError:
        typer.echo(f"twophp: {path} does not exist: no embedded store has made its key there yet", err=True)
        raise typer.Exit(2) from None
    except BadKey as error:
        typer.echo(f"twophp: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(f"{path}: {keys[0].id} seals from the next start or reload on; {len(keys) - 1} older keys open")
