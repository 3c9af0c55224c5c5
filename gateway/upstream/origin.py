"""The upstream's address, taken apart once."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Origin:
    """Scheme, host and port of an upstream; `authority` is its own Host header."""

    host: str
    port: int
    secure: bool
    authority: bytes

    @classmethod
    def parse(cls, url: str) -> Origin:
        """An origin from `http(s)://host[:port]`; a ValueError says what else was found in the URL."""
        parts = urlsplit(url)
        if parts.scheme not in _DEFAULT_PORTS:
            raise ValueError(f"upstream URL {url!r}: the scheme must be http or https")
        if not parts.hostname:
            raise ValueError(f"upstream URL {url!r}: the host is missing")
        if parts.username is not None or parts.password is not None:
            raise ValueError("upstream URL: user and password do not belong in it")
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            # The raw target of the client is forwarded as it is (OPT-2), so there is nothing to join a path with.
            raise ValueError(f"upstream URL {url!r}: only scheme, host and port are allowed")
        default_port = _DEFAULT_PORTS[parts.scheme]
        port = parts.port or default_port
        host = parts.hostname.encode("idna").decode("ascii")  # also refuses labels that no resolver would take
        shown = f"[{host}]" if ":" in host else host
        authority = shown if port == default_port else f"{shown}:{port}"
        return cls(host, port, parts.scheme == "https", authority.encode("ascii"))
