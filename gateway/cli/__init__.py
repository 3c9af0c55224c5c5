"""The `twophp` command. Nothing here is imported by a serving worker."""


def main() -> None:
    """Run the command line."""
    from gateway.cli.app import app

    app()
