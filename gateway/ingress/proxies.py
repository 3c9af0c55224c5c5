"""Who the client is when trusted proxies stand in front (`listen.trusted_proxies`).

`X-Forwarded-For` is believed only as far as each hop that vouches for it is trusted; from anyone else it is decoration.
The peer of the socket stays the peer: SEC-2 decisions about trusted networks use that, not what is found here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from gateway.protocol.messages import Headers

_HOPS_MAX = 32  # a chain longer than this is no chain of proxies


@dataclass(frozen=True, slots=True)
class Client:
    """The client's address and the scheme it used."""

    address: str
    scheme: bytes
    through_trusted_proxy: bool


class Networks:
    """A set of networks and the question whether an address is in one of them."""

    __slots__ = ("_networks", "contains")

    def __init__(self, networks: Iterable[str | IPv4Network | IPv6Network]) -> None:
        self._networks = tuple(ip_network(str(network)) for network in networks)
        # A worker sees few peers many times; parsing an address costs more than all other checks together.
        self.contains = lru_cache(maxsize=1024)(self._contains) if self._networks else _never

    def __bool__(self) -> bool:
        return bool(self._networks)

    def _contains(self, address: str) -> bool:
        parsed = parse_address(address)
        return parsed is not None and any(
            parsed in network for network in self._networks if network.version == parsed.version
        )


class TrustedProxies:
    """Finds the client behind the proxies of `listen.trusted_proxies`."""

    __slots__ = ("_networks",)

    def __init__(self, networks: Iterable[str | IPv4Network | IPv6Network] = ()) -> None:
        self._networks = Networks(networks)

    def trusts(self, peer: str) -> bool:
        """Whether what this peer forwards is believed."""
        return self._networks.contains(peer)

    def client(self, peer: str, secure: bool, headers: Headers) -> Client:
        """The rightmost address that no trusted proxy is at, and the scheme the nearest proxy was asked with."""
        scheme = b"https" if secure else b"http"
        if not self._networks.contains(peer):
            return Client(peer, scheme, False)
        address = peer
        for hop in reversed(_list(headers, b"x-forwarded-for")[-_HOPS_MAX:]):
            parsed = parse_address(hop.decode("latin-1"))
            if parsed is None:
                break  # whoever wrote this is not a proxy we know; the hop that passed it on is the last sure one
            address = str(parsed)
            if not self._networks.contains(address):
                break
        told = _list(headers, b"x-forwarded-proto")
        if told and told[-1].lower() in (b"http", b"https"):
            scheme = told[-1].lower()
        return Client(address, scheme, True)


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """An address with or without port, brackets or zone; IPv4 inside IPv6 is IPv4."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        parsed = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped
    return parsed


def _list(headers: Headers, name: bytes) -> list[bytes]:
    """A list header's elements over all its lines, in order."""
    return [
        element.strip()
        for key, value in headers
        if len(key) == len(name) and key.lower() == name
        for element in value.split(b",")
    ]


def _never(address: str) -> bool:
    return False
