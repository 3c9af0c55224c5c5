"""Rules for text with a shape of its own: names, header names, digests, JSON pointers, paths and path patterns.

What is a host, an address or a URL is in `addresses`.
"""

from __future__ import annotations

import difflib
import re
from typing import Any, ClassVar

from gateway.settings.rules import Refused, Rule

WELL_KNOWN = "/.well-known/2php"  # RPL-5: ours on the data port, so no route can own it

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, 5.6.2
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")
_POINTER = re.compile(r"(?:/(?:[^~/]|~[01])*)+")  # RFC 6901, but not the whole document
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
# The characters of a raw path (RFC 3986: pchar and `/`); a percent sign starts an octet. Decision 14: raw paths route.
_RAW_PATH = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{2})*")
_RAW_TARGET = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*")


class Name(Rule):
    """A name that is safe in ledger rows (`<service>:<path>`), metrics and file names."""

    schema: ClassVar[dict[str, Any]] = {"type": "string", "pattern": f"^{_NAME.pattern}$"}

    def parse(self, value: object) -> str:
        if isinstance(value, str) and _NAME.fullmatch(value):
            return value
        hint = f'write "{value}"' if isinstance(value, int) and not isinstance(value, bool) else ""
        raise Refused("a name of 1 to 63 letters, digits, `.`, `_` or `-`, a letter or digit first", hint=hint)


class HeaderName(Rule):
    schema: ClassVar[dict[str, Any]] = {"type": "string", "pattern": f"^{_TOKEN.pattern}$"}

    def parse(self, value: object) -> str:
        if isinstance(value, str) and _TOKEN.fullmatch(value):
            return value
        raise Refused("a header name such as `X-Api-Key`")


class Sha256(Rule):
    """A digest. What stands there by mistake may be the token itself, so it is never shown."""

    schema: ClassVar[dict[str, Any]] = {"type": "string", "pattern": f"^{_SHA256.pattern}$"}

    def parse(self, value: object) -> str:
        if isinstance(value, str) and _SHA256.fullmatch(value):
            return value.lower()
        raise Refused(
            "the SHA-256 of the secret as 64 hexadecimal digits",
            hint="make it with: printf %s TOKEN | sha256sum",
            shown=False,
        )


class JsonPointer(Rule):
    schema: ClassVar[dict[str, Any]] = {"type": "string", "pattern": f"^{_POINTER.pattern}$"}

    def parse(self, value: object) -> str:
        if isinstance(value, str) and _POINTER.fullmatch(value):
            return value
        hint = f"write `/{value.replace('.', '/')}`" if isinstance(value, str) and _NAME.fullmatch(value) else ""
        raise Refused("a JSON pointer such as `/id` or `/data/id`", hint=hint)


class PathPattern(Rule):
    """A route's path: exact (`/orders`), or with `/**` for it and all below."""

    schema: ClassVar[dict[str, Any]] = {"type": "string", "pattern": "^/", "examples": ["/orders", "/orders/**"]}

    def parse(self, value: object) -> str:
        allowed = "an exact path such as `/orders`, or `/orders/**` for it and all below"
        if not isinstance(value, str) or not value.startswith("/"):
            raise Refused(allowed, hint=f"write `/{value}`" if isinstance(value, str) and value else "")
        base = value.removesuffix("/**")
        if "*" in base:
            raise Refused(allowed, hint="`*` has a meaning only as `/**` at the end")
        if any(mark in value for mark in "{}"):
            raise Refused(allowed, hint="a path has no placeholders; `/**` stands for anything below")
        _raw_path(base, allowed)
        if base == WELL_KNOWN or base.startswith(WELL_KNOWN + "/"):
            raise Refused(f"a path outside of `{WELL_KNOWN}/`, which the gateway answers itself")
        return value


class ConfirmSuffix(Rule):
    """What is appended to a Phase 1 path to confirm it (P2-1)."""

    schema: ClassVar[dict[str, Any]] = {"type": "string", "pattern": "^/.*[^/]$"}

    def parse(self, value: object) -> str:
        allowed = "a path suffix that starts with `/` and goes on, such as `/confirm`"
        if not isinstance(value, str) or not value.startswith("/"):
            raise Refused(allowed, hint=f"write `/{value}`" if isinstance(value, str) and value else "")
        if value.endswith("/") or "*" in value:
            raise Refused(allowed)
        _raw_path(value, allowed)
        return value


class PathTemplate(Rule):
    """A path with placeholders, asked of the upstream by a probe or a verification."""

    def __init__(self, *placeholders: str) -> None:
        self.placeholders = placeholders

    def parse(self, value: object) -> str:
        known = " and ".join(f"{{{name}}}" for name in self.placeholders)
        allowed = f"a path such as `/orders/{{{self.placeholders[0]}}}`; it may contain {known}"
        if not isinstance(value, str) or not value.startswith("/"):
            raise Refused(allowed)
        for name in _PLACEHOLDER.findall(value):
            if name not in self.placeholders:
                near = difflib.get_close_matches(name, self.placeholders, 1)
                raise Refused(allowed, hint=f"did you mean `{{{near[0]}}}`?" if near else "")
        if not _RAW_TARGET.fullmatch(_PLACEHOLDER.sub("x", value)):
            raise Refused(allowed, hint="percent-encode anything but letters, digits and the usual marks of a path")
        return value

    def json_schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": "^/", "examples": [f"/orders/{{{self.placeholders[0]}}}"]}


def _raw_path(path: str, allowed: str) -> None:
    """Refuses what no request's raw path can be, so that a route which could never match is not kept silently."""
    if not _RAW_PATH.fullmatch(path):
        raise Refused(allowed, hint="write the path as it is sent: percent-encoded, without query or fragment")
    segments = re.sub("%2e", ".", path, flags=re.IGNORECASE).split("/")
    if "." in segments or ".." in segments:
        raise Refused(allowed, hint="a path has no `.` or `..` segments")
