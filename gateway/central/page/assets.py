"""The style sheet, the script and the mark: our own files, told apart by content so that they may be kept for ever."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from gateway.operator import refusals
from gateway.operator.calls import Call
from gateway.protocol.messages import Answer

FOLDER = Path(__file__).with_name("static")
TYPES = {".css": b"text/css; charset=utf-8", ".js": b"text/javascript; charset=utf-8", ".svg": b"image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file."""

    body: bytes
    content_type: bytes
    version: str


def load() -> Mapping[str, Asset]:
    """All of them, by name: read once, so that no path of a request's ever reaches the disk."""
    found: dict[str, Asset] = {}
    for path in sorted(FOLDER.iterdir()):
        body = path.read_bytes()
        found[path.name] = Asset(body, TYPES[path.suffix], sha256(body).hexdigest()[:16])
    return found


ASSETS = load()


def url(name: str) -> str:
    """Where a page finds one."""
    return f"/static/{name}?v={ASSETS[name].version}"


async def asset(sources: object, call: Call) -> Answer:
    """Open to anyone: the login page needs them, and they say nothing."""
    found = ASSETS.get(call.segments["name"])
    if found is None:
        raise refusals.no_such_path()
    kept = b"public, max-age=31536000, immutable" if call.query == f"v={found.version}" else b"no-cache"
    headers = [
        (b"Content-Type", found.content_type),
        (b"Cache-Control", kept),
        (b"Cross-Origin-Resource-Policy", b"same-origin"),
    ]
    return Answer(200, headers, found.body)
