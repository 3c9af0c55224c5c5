"""Headers and body as one string of bytes, exactly: what was registered is what is sent (P2-3), what was answered is
what is replayed (RPL-1).

    version (1) | header count (2) | name and value lengths (4 each) | names and values | body

All lengths stand first, so that packing is one join and unpacking is slices. Order, case, repetition and bytes that
are no text are kept. Must not look into what it packs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

VERSION = 1
HEADERS_MAX = 65535  # the two bytes of the count; the edge allows far fewer

_LENGTHS_AT = 3


class BadFrame(Exception):
    """Bytes that `pack` did not make."""


def pack(headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bytes:
    parts = [part for header in headers for part in header]
    head = _head(len(headers)).pack(VERSION, len(headers), *map(len, parts))
    return b"".join((head, *parts, body))


def unpack(packed: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    if len(packed) < _LENGTHS_AT or packed[0] != VERSION:
        raise BadFrame("not a packed message of a version we know")
    count = int.from_bytes(packed[1:_LENGTHS_AT], "big")
    layout = _head(count)
    end = layout.size
    if end > len(packed):
        raise BadFrame("a packed message ends within its header lengths")
    lengths = iter(layout.unpack_from(packed)[2:])
    headers: list[tuple[bytes, bytes]] = []
    for name_bytes, value_bytes in zip(lengths, lengths, strict=True):
        middle = end + name_bytes
        start, end = end, middle + value_bytes
        headers.append((packed[start:middle], packed[middle:end]))
    if end > len(packed):
        raise BadFrame("a packed message ends within its headers")
    return headers, packed[end:]


@lru_cache(maxsize=256)  # one small layout per number of headers seen; the edge's default limit is 256 of them
def _head(count: int) -> Struct:
    assert count <= HEADERS_MAX, "more headers than a packed message can count"
    return Struct(f"!BH{2 * count}I")
