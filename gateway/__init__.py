"""The 2PHP gateway: a reverse proxy that gives unmodified HTTP services the 2-Phase HTTP Protocol."""

__version__ = "0.1.0"
