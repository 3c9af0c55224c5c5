"""Which addresses are really public, and every way to write one (ACM-4, RELIABILITY fact 4). Pure.

`ipaddress.is_global` is not the answer: it says yes to NAT64, 6to4, multicast and addresses that clouds keep for
themselves. So what is not public is listed here, from the IANA special-purpose registries, and of IPv6 only global
unicast is left over.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# The first match names the reason, so the narrow ones stand first.
_NOT_PUBLIC_V4 = [
    (IPv4Network(text), reason)
    for text, reason in (
        ("169.254.169.254/32", "metadata"),  # AWS, Google, Azure, DigitalOcean and others
        ("169.254.170.2/32", "metadata"),  # AWS container credentials
        ("100.100.100.200/32", "metadata"),  # Alibaba
        ("168.63.129.16/32", "metadata"),  # Azure's host, in the middle of public space
        ("192.0.0.192/32", "metadata"),  # Oracle
        ("0.0.0.0/8", "unspecified"),  # "this host": Linux connects to itself
        ("127.0.0.0/8", "loopback"),
        ("10.0.0.0/8", "private"),
        ("172.16.0.0/12", "private"),
        ("192.168.0.0/16", "private"),
        ("169.254.0.0/16", "link-local"),
        ("100.64.0.0/10", "carrier-nat"),
        ("192.0.2.0/24", "documentation"),
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("198.18.0.0/15", "benchmarking"),
        ("192.88.99.0/24", "6to4"),  # the old relay anycast
        ("192.0.0.0/24", "reserved"),
        ("192.31.196.0/24", "reserved"),  # AS112
        ("192.52.193.0/24", "reserved"),  # AMT
        ("192.175.48.0/24", "reserved"),  # AS112
        ("224.0.0.0/4", "multicast"),
        ("255.255.255.255/32", "broadcast"),
        ("240.0.0.0/4", "reserved"),
    )
]
_GLOBAL_UNICAST_V6 = IPv6Network("2000::/3")
_NOT_PUBLIC_V6 = [
    (IPv6Network(text), reason)
    for text, reason in (
        ("fd00:ec2::/32", "metadata"),  # AWS
        ("fd20:ce::254/128", "metadata"),  # Google
        ("::/128", "unspecified"),
        ("::1/128", "loopback"),
        ("::ffff:0:0:0/96", "ipv4-translated"),  # SIIT
        ("64:ff9b::/96", "nat64"),
        ("64:ff9b:1::/48", "nat64"),
        ("100::/64", "discard"),
        ("2001::/32", "teredo"),
        ("2001::/23", "reserved"),  # IETF protocol assignments: ORCHID, benchmarking, port control …
        ("2001:db8::/32", "documentation"),
        ("3fff::/20", "documentation"),
        ("2002::/16", "6to4"),
        ("2620:4f:8000::/48", "reserved"),  # AS112
        ("fc00::/7", "private"),
        ("fe80::/10", "link-local"),
        ("fec0::/10", "site-local"),
        ("ff00::/8", "multicast"),
    )
]
_IPV4_COMPATIBLE = IPv6Network("::/96")

_NUMBER = re.compile(r"0[xX][0-9a-fA-F]*|[0-9]+")
_IPV4_PARTS_MAX = 4


def not_public(address: Address) -> str | None:
    """Why an address is not one of the public Internet; None when it is."""
    address = as_connected(address)
    if isinstance(address, IPv4Address):
        return next((reason for network, reason in _NOT_PUBLIC_V4 if address in network), None)
    for network, reason in _NOT_PUBLIC_V6:
        if address in network:
            return reason
    if address in _IPV4_COMPATIBLE:
        # Decided by the address inside it, and never public: nothing routes it but a tunnel of our own.
        return not_public(IPv4Address(int(address))) or "ipv4-compatible"
    return None if address in _GLOBAL_UNICAST_V6 else "reserved"


def as_connected(address: Address) -> Address:
    """The address that a connection goes to: a mapped IPv6 address is an IPv4 one, and a zone is dropped."""
    if isinstance(address, IPv6Address):
        return address.ipv4_mapped or IPv6Address(int(address))
    return address


def parse_network(network: Network | str) -> Network:
    """A network of the configuration, which may already be one."""
    return ip_network(network) if isinstance(network, str) else network


def parse_sockaddr(text: str) -> Address:
    """An address as `getaddrinfo` and sockets write it."""
    return ip_address(text)


def ends_in_a_number(host: str) -> bool:
    """Whether resolvers would take a host for an IPv4 address in some notation rather than for a name."""
    last = host.removesuffix(".").rpartition(".")[2]
    return _NUMBER.fullmatch(last) is not None


def parse_ipv4(host: str) -> IPv4Address:
    """An IPv4 address in any notation that `inet_aton` and browsers know, or ValueError.

    One to four parts, each decimal, octal or hexadecimal; the last one fills what is left.
    """
    parts = host.removesuffix(".").split(".")
    if len(parts) > _IPV4_PARTS_MAX:
        raise ValueError("too many parts")
    *head, last = [_number(part) for part in parts]
    if any(part > 255 for part in head) or last >= 256 ** (_IPV4_PARTS_MAX - len(head)):
        raise ValueError("a part is too large")
    value = last
    for place, part in enumerate(head):
        value += part << 8 * (3 - place)
    return IPv4Address(value)


def _number(part: str) -> int:
    if _NUMBER.fullmatch(part) is None:
        raise ValueError("not a number")
    if part[:2] in ("0x", "0X"):
        return int(part[2:] or "0", 16)
    return int(part, 8) if part[0] == "0" else int(part)
