"""`python -m gateway`: the same as `twophp`."""

from gateway.cli import main

main()
