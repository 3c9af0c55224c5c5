"""Cross-origin use of the DTT-2PHP headers (`cors.origins`).

A browser asks before it sends our headers, and an unmodified upstream does not know them: preflights that name one of
them, from a listed origin, are answered here, and answers to listed origins expose our headers. Everything else is the
upstream's own business and passes through (OPT-2). Whether a route is ours is the handler's question.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gateway.protocol import headers as fields
from gateway.protocol.headers import PREFIX
from gateway.protocol.messages import Answer, Header, Headers, first_value

PREFLIGHT_MAX_AGE_S = 600  # browsers cap it at minutes to hours; ten minutes lets a changed configuration take effect

_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_EXPOSED = ", ".join(
    (
        fields.SERVER_CORRELATION_ID,
        fields.PHASE_STATE,
        fields.TTL,
        fields.PONR_DEADLINE,
        fields.RESOURCE_ID,
        fields.REPLAY_POLICY,
        fields.MESSAGE,
        fields.UPSTREAM_STATUS,
    )
).encode()
_VARY_PREFLIGHT = b"Origin, Access-Control-Request-Method, Access-Control-Request-Headers"


class Cors:
    """The answers that listed origins get."""

    __slots__ = ("_origins",)

    def __init__(self, origins: Iterable[str] = ()) -> None:
        self._origins = frozenset(origin.lower().encode() for origin in origins)

    def preflight(self, method: str, headers: Headers) -> Answer | None:
        """The answer to a preflight that names one of our headers; None: not ours to answer."""
        if method != "OPTIONS" or not self._origins:
            return None
        origin = self._listed(headers)
        wanted_method = first_value(headers, b"access-control-request-method")
        wanted = first_value(headers, b"access-control-request-headers")
        if origin is None or wanted_method is None or wanted is None or not _TOKEN.fullmatch(wanted_method):
            return None
        names = [name.strip() for name in wanted.split(b",")]
        if not any(name.lower().startswith(PREFIX) for name in names) or not all(map(_TOKEN.fullmatch, names)):
            return None
        return Answer(
            204,
            [
                *self._allow(origin),
                (b"Access-Control-Allow-Methods", wanted_method),
                (b"Access-Control-Allow-Headers", b", ".join(names)),
                (b"Access-Control-Max-Age", str(PREFLIGHT_MAX_AGE_S).encode()),
                (b"Vary", _VARY_PREFLIGHT),
            ],
        )

    def expose(self, request: Headers, answer: list[Header]) -> None:
        """Let a listed origin read our headers of this answer; what the upstream said of origins stays as it is."""
        if not self._origins:
            return
        origin = self._listed(request)
        if origin is None:
            return
        if first_value(answer, b"access-control-allow-origin") is None:
            answer.extend(self._allow(origin))
            answer.append((b"Vary", b"Origin"))
        answer.append((b"Access-Control-Expose-Headers", _EXPOSED))

    def _listed(self, headers: Headers) -> bytes | None:
        origin = first_value(headers, b"origin")
        if origin is not None and (origin.lower() in self._origins or b"*" in self._origins):
            return origin
        return None

    def _allow(self, origin: bytes) -> list[Header]:
        if origin.lower() in self._origins:
            return [(b"Access-Control-Allow-Origin", origin), (b"Access-Control-Allow-Credentials", b"true")]
        return [(b"Access-Control-Allow-Origin", b"*")]  # an origin that only `*` lists never gets credentials
