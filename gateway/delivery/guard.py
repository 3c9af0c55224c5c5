"""The address guard: callback URLs are hostile input (ACM-4, RELIABILITY fact 4).

Twice: at registration without DNS (`check_url`), so that a bad URL is a 400 and nothing happens; and for every
address that a name resolves to and a socket is opened for (`check_address`), which is what decides. The two
exceptions are the operator's: `allow_hosts` trusts a host wherever it resolves to, `allow_networks` trusts addresses;
both lift the port rule for what they name. Neither lifts `https`: that is `allow_http`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from gateway.delivery.addresses import Address, Network, as_connected, not_public, parse_network, parse_sockaddr
from gateway.delivery.targets import BadTarget, Target, parse, split_authority
from gateway.protocol.problems import Problem, refuse

# Names that are internal by definition; a single label always is one.
INTERNAL_SUFFIXES = (".localhost", ".local", ".internal", ".localdomain", ".home.arpa")

_DETAILS = {
    "scheme": "DTT-2PHP-Callback takes an https URL.",
    "port": "DTT-2PHP-Callback names a port that this gateway does not call.",
    "credentials": "DTT-2PHP-Callback takes a URL without a user name or password; callbacks are signed instead.",
    "fragment": "DTT-2PHP-Callback takes a URL without a fragment.",
    "too-long": "DTT-2PHP-Callback takes a URL of up to 2048 characters.",
    "not-ascii": "DTT-2PHP-Callback takes ASCII; write an international host name in its xn-- form.",
    "host-encoded": "DTT-2PHP-Callback takes a host name without percent-encoding.",
    "internal-name": "DTT-2PHP-Callback takes a public host; this name is internal by definition.",
    "trailing-dot": "DTT-2PHP-Callback takes a host name without a dot at its end.",
}
_SYNTAX_DETAIL = "DTT-2PHP-Callback takes one absolute https URL of valid characters."
_ADDRESS_DETAIL = "DTT-2PHP-Callback takes a public host; this address is not one."
_SYNTAX = frozenset({"syntax", "host", "address-malformed", "zone"})


class AddressGuard:
    """Where callbacks may go, under one configuration."""

    def __init__(
        self,
        *,
        allow_http: bool = False,
        allow_hosts: Iterable[str] = (),
        allow_networks: Iterable[Network | str] = (),
        ports: Collection[int] = (443, 8443),
    ) -> None:
        self._allow_http = allow_http
        self._ports = frozenset(ports)
        self._networks = [parse_network(network) for network in allow_networks]
        self._hosts = {_allowed_host(entry) for entry in allow_hosts}

    def check_url(self, url: str) -> Target:
        """What will be dialled, or the 400. Looks nothing up; repeats nothing of the URL."""
        try:
            return self._admit(parse(url))
        except BadTarget as bad:
            raise refusal(bad.reason) from None

    def check_address(self, address: Address | str) -> str | None:
        """Why nothing may connect to this address; None when it may."""
        if isinstance(address, str):
            address = parse_sockaddr(address)
        return None if self._in_allowed_network(address) else not_public(address)

    def _admit(self, target: Target) -> Target:
        if target.scheme == "http" and not self._allow_http:
            raise BadTarget("scheme")
        if (target.host, None) in self._hosts or (target.host, target.port) in self._hosts:
            return replace(target, trusted=True)
        if target.address is not None:
            if self._in_allowed_network(target.address):
                return target
            reason = not_public(target.address)
            if reason is not None:
                raise BadTarget(reason)
        else:
            _refuse_internal(target.host)
        if target.port not in self._ports:
            raise BadTarget("port")
        return target

    def _in_allowed_network(self, address: Address) -> bool:
        connected = as_connected(address)
        return any(address in network or connected in network for network in self._networks)


def refusal(reason: str) -> Problem:
    """The 400 for a callback URL, with a stable reason."""
    detail = _DETAILS.get(reason) or (_SYNTAX_DETAIL if reason in _SYNTAX else _ADDRESS_DETAIL)
    return refuse("callback-refused", 400, "Callback refused", detail, extra={"reason": reason})


def _refuse_internal(host: str) -> None:
    name = host.removesuffix(".")
    if "." not in name or name.endswith(INTERNAL_SUFFIXES):
        raise BadTarget("internal-name")
    if host.endswith("."):
        raise BadTarget("trailing-dot")  # certificates, allow-lists and pools know the name without it


def _allowed_host(entry: str) -> tuple[str, int | None]:
    """`callbacks.allow_hosts`, in the form that parsed URLs have. A bare IPv6 address needs no brackets there."""
    bare_ipv6 = entry.count(":") > 1 and not entry.startswith("[")
    host, port, _ = split_authority(f"[{entry}]" if bare_ipv6 else entry)
    return host.removesuffix("."), port
