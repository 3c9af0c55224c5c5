"""Rules for hosts, listen addresses, networks, origins and URLs.

A URL with a user name or password in it is refused wherever it stands but in `store.url` (see `secrets`), unshown.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, ClassVar
from urllib.parse import SplitResult, urlsplit

from gateway.settings.rules import Refused, Rule

Network = IPv4Network | IPv6Network

_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*\.?")
_VISIBLE = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener there (SEC-6). A name other than localhost may be anything."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def is_host(host: str) -> bool:
    """An IP address, without brackets, or a host name."""
    try:
        ip_address(host)
    except ValueError:
        # Digits and dots alone would be an address in a notation that resolvers disagree about.
        return _HOST_NAME.fullmatch(host) is not None and not re.fullmatch(r"[0-9.]+", host)
    return True


class Host(Rule):
    schema: ClassVar[dict[str, Any]] = {"type": "string", "examples": ["127.0.0.1", "::1", "0.0.0.0"]}

    def parse(self, value: object) -> str:
        if isinstance(value, str) and is_host(value):
            return value
        hints = {"*": "write `0.0.0.0` for all interfaces"}
        hint = hints.get(value, "") if isinstance(value, str) else ""
        if isinstance(value, str) and value.startswith("[") and value.endswith("]"):
            hint = f"write `{value[1:-1]}` without brackets"
        raise Refused("an address or host name such as `127.0.0.1`, `::1` or `localhost`", hint=hint)


class HostPort(Rule):
    """`HOST:PORT`, an IPv6 address in brackets."""

    schema: ClassVar[dict[str, Any]] = {"type": "string", "pattern": "^.+:[0-9]{1,5}$", "examples": ["127.0.0.1:9001"]}

    def parse(self, value: object) -> Address:
        allowed = "HOST:PORT such as `127.0.0.1:8080` or `[::1]:8080`"
        if not isinstance(value, str):
            raise Refused(allowed, hint=f"write `127.0.0.1:{value}`" if isinstance(value, int) else "")
        host, colon, port = value.rpartition(":")
        if ":" in host and not (host.startswith("[") and host.endswith("]")):
            raise Refused(allowed, hint="put an IPv6 address in brackets")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not is_host(host) or not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
            raise Refused(allowed, hint=f"write `127.0.0.1{value}`" if value.startswith(":") else "")
        return Address(host, int(port))


class NetworkRange(Rule):
    """A network in CIDR form; a single address is a network of one."""

    schema: ClassVar[dict[str, Any]] = {"type": "string", "examples": ["127.0.0.0/8", "fd00::/8"]}

    def parse(self, value: object) -> Network:
        allowed = "a network such as `10.0.0.0/8`, `fd00::/8` or a single address"
        if not isinstance(value, str):
            raise Refused(allowed)
        try:
            return ip_network(value)
        except ValueError:
            try:
                wider = ip_network(value, strict=False)
            except ValueError:
                raise Refused(allowed) from None
            raise Refused(allowed, hint=f"did you mean `{wider}`?") from None


class AllowedHost(Rule):
    """`host` or `host:port`, as `callbacks.allow_hosts` names exceptions (ACM-4)."""

    schema: ClassVar[dict[str, Any]] = {"type": "string", "examples": ["hooks.internal", "hooks.internal:8080"]}

    def parse(self, value: object) -> str:
        if isinstance(value, str):
            if is_host(value):
                return value.lower()
            try:
                return str(HostPort().parse(value)).lower()
            except Refused:
                pass
        raise Refused("a host or host:port such as `hooks.internal` or `hooks.internal:8080`")


class Origin(Rule):
    """A web origin for CORS, or `*`."""

    schema: ClassVar[dict[str, Any]] = {"type": "string", "examples": ["https://app.example.com", "*"]}

    def parse(self, value: object) -> str:
        allowed = "`*` or an origin such as `https://app.example.com`"
        if value == "*":
            return "*"
        url = _split(value, allowed, ("http", "https"))
        if url.path or url.query or url.fragment:
            hint = f"write `{url.scheme}://{url.netloc}`: an origin has no path"
            raise Refused(allowed, hint=hint)
        return f"{url.scheme}://{url.netloc}".lower()


class HttpUrl(Rule):
    """An http or https URL; with `origin=True` nothing may follow host and port."""

    schema: ClassVar[dict[str, Any]] = {"type": "string", "pattern": "^https?://"}

    def __init__(self, *, origin: bool = False) -> None:
        self.origin = origin

    def parse(self, value: object) -> str:
        allowed = "an http or https URL such as `http://127.0.0.1:3000`"
        url = _split(value, allowed, ("http", "https"))
        if url.fragment:
            raise Refused(allowed, hint="a URL here has no fragment")
        if not self.origin:
            return url.geturl()
        if url.path not in ("", "/") or url.query:
            hint = f"write `{url.scheme}://{url.netloc}`: paths are forwarded as they come, none is put in front"
            raise Refused("an http or https URL of scheme, host and port alone", hint=hint)
        return f"{url.scheme}://{url.netloc}"


def _split(value: object, allowed: str, schemes: tuple[str, ...]) -> SplitResult:
    if not isinstance(value, str) or not _VISIBLE.fullmatch(value) or "\\" in value:
        raise Refused(allowed)
    try:
        url = urlsplit(value)
        port = url.port
    except ValueError:
        raise Refused(allowed) from None
    if "@" in url.netloc:
        raise Refused(allowed, hint="a URL carries no user name or password", shown=False)
    if url.scheme not in schemes:
        bare = "://" not in value and url.scheme != "unix"
        raise Refused(allowed, hint=f"write `{schemes[0]}://{value}`" if bare else "")
    if url.hostname is None or not is_host(url.hostname) or port == 0 or url.netloc.endswith(":"):
        raise Refused(allowed)
    return url
