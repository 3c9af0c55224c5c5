"""Raw paths route (decision 14): `%2F` is data, and a path that decoding would turn into another route is refused.

Pure functions over raw path bytes. They never rewrite the path that is forwarded: upstream gets the client's bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator
from urllib.parse import unquote_to_bytes

from gateway.ingress import refusals

# Upstreams that decode twice exist, that decode thrice hardly; past this many layers a path is nobody's honest path.
_DECODINGS_MAX = 3
_SUSPICIOUS = re.compile(rb"%|//|/\.|;|\\")
_SEGMENT = re.compile(rb"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@]|%[0-9A-Fa-f]{2})+")
_PARAMETERS = re.compile(rb";[^/]*")
_SLASHES = re.compile(rb"/{2,}")


def check(path: bytes, classify: Callable[[bytes], Hashable]) -> None:
    """Refuse a path that some upstream could read as one of another route or phase.

    `classify` tells routes and phases apart (equal values: no difference that matters). A path without anything to
    decode or remove costs one search.
    """
    if not _SUSPICIOUS.search(path):
        return
    own = classify(path)
    for form in variants(path):
        if classify(form) != own:
            raise refusals.ambiguous_path()


def variants(path: bytes) -> set[bytes]:
    """The other paths that this one may be taken for: decoded, dots removed, slashes merged, parameters dropped."""
    forms: set[bytes] = set()
    for decoded in _decodings(path):
        for plain in (decoded, _PARAMETERS.sub(b"", decoded)):
            forms.add(plain)
            for dotless in (_remove_dots(plain), _remove_dots(_SLASHES.sub(b"/", plain))):
                forms.add(dotless)
                if dotless != plain:  # file-system rules leave no slash where a dot segment was last
                    forms.add(dotless.rstrip(b"/") or b"/")
    forms.discard(path)
    return forms


def decode_segment(segment: bytes) -> str:
    """An identifier of ours from a path: one segment, percent-decoded once (RPL-5)."""
    if not _SEGMENT.fullmatch(segment):
        raise refusals.malformed_segment()
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise refusals.malformed_segment() from None


def _decodings(path: bytes) -> Iterator[bytes]:
    """The path as it is and after each round of decoding that changes it; a backslash is a slash to some."""
    yield path
    for _ in range(_DECODINGS_MAX):
        decoded = unquote_to_bytes(path).replace(b"\\", b"/")
        if decoded == path:
            return
        yield decoded
        path = decoded


def _remove_dots(path: bytes) -> bytes:
    """RFC 3986 section 5.2.4 for a path that begins with a slash."""
    kept: list[bytes] = []
    segments = path.split(b"/")[1:]
    for segment in segments:
        if segment == b"..":
            if kept:
                kept.pop()
        elif segment != b".":
            kept.append(segment)
    if segments and segments[-1] in (b".", b".."):
        kept.append(b"")
    return b"/" + b"/".join(kept)
