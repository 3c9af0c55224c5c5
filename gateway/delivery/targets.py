"""URLs as they are dialled: parsed once, strictly, into the parts that are checked and then connected to (ACM-4).

No second parser sees the text: what `parse` returns is what goes to the resolver, into the Host header and on the
wire. So there is nothing that two parsers could read differently. Decides syntax only, not whether a target may be
called (`guard`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from hashlib import blake2b
from ipaddress import IPv6Address

from yarl import URL

from gateway.delivery.addresses import Address, ends_in_a_number, parse_ipv4

URL_BYTES_MAX = 2048  # what every HTTP implementation takes
HOST_BYTES_MAX = 253
DEFAULT_PORTS = {"https": 443, "http": 80}

# RFC 3986's characters and no others: no spaces, controls, backslashes, quotes or anything beyond ASCII.
_CHARACTERS = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://([^/?#]*)([^?#]*)(?:\?([^#]*))?(#.*)?")
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?")
_NAME = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_\-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_\-]{0,61}[a-z0-9_])?\.?")


class BadTarget(ValueError):
    """A URL that is refused, with the stable reason; never with the URL."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True, slots=True, repr=False)
class Target:
    """Where one delivery goes. `address` is set when the host was written as one; `trusted`: the operator named it."""

    scheme: str
    host: str
    port: int
    path: str
    query: str
    address: Address | None
    trusted: bool = False

    @property
    def url(self) -> URL:
        """For the HTTP client; built from the parts, so nothing is parsed or quoted again."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return URL.build(
            scheme=self.scheme, host=host, port=self.port, path=self.path, query_string=self.query, encoded=True
        )

    @property
    def host_key(self) -> int:
        """63 bits that stand for host and port: what limits and back-off go by, in memory and in the store."""
        digest = blake2b(f"{self.host}\0{self.port}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def __repr__(self) -> str:
        return "Target(…)"  # a path or query may carry a caller's secret


def parse(url: str) -> Target:
    """The parts of an absolute http(s) URL, the host in its one canonical form; BadTarget for anything else."""
    if len(url) > URL_BYTES_MAX:
        raise BadTarget("too-long")
    if not url.isascii():
        raise BadTarget("not-ascii")  # full-width digits and ideographic dots are addresses to some resolvers
    if _CHARACTERS.fullmatch(url) is None:
        raise BadTarget("syntax")
    match = _URL.fullmatch(url)
    if match is None:
        raise BadTarget("syntax")
    scheme, authority, path, query, fragment = match.groups()
    scheme = scheme.lower()
    if scheme not in DEFAULT_PORTS:
        raise BadTarget("scheme")
    if "@" in authority:
        raise BadTarget("credentials")
    if fragment is not None:
        raise BadTarget("fragment")
    host, port, address = split_authority(authority)
    return Target(scheme, host, DEFAULT_PORTS[scheme] if port is None else port, path or "/", query or "", address)


def split_authority(authority: str) -> tuple[str, int | None, Address | None]:
    """Of `host`, `host:port` or `[v6]:port`: the canonical host, the port if any, and the address if it is one."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise BadTarget("syntax")
    host, digits = match.groups()
    port = None if digits is None else int(digits)
    if port is not None and not 0 < port <= 65535:
        raise BadTarget("port")
    if host.startswith("["):
        address: Address = _parse_ipv6(host[1:-1])
        return str(address), port, address
    host = host.lower()
    if "%" in host:
        raise BadTarget("host-encoded")
    if not host or len(host) > HOST_BYTES_MAX or _NAME.fullmatch(host) is None:
        raise BadTarget("host")
    if ends_in_a_number(host):
        try:
            address = parse_ipv4(host)
        except ValueError:
            raise BadTarget("address-malformed") from None
        return str(address), port, address
    return host, port, None


def _parse_ipv6(text: str) -> IPv6Address:
    if "%" in text:
        raise BadTarget("zone")
    try:
        return IPv6Address(text)
    except ValueError:
        raise BadTarget("address-malformed") from None


def trusted(url: str) -> Target:
    """A URL of the operator's own, such as a compensation hook's: the same syntax, no guard."""
    return replace(parse(url), trusted=True)
