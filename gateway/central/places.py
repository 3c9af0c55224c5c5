"""Places in a list that is ordered by time and key, as the opaque text that a reader hands back."""

from __future__ import annotations

import base64
import binascii
import struct
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from gateway.store.ledger import BadCursor

KEY_BYTES = 16
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_SHAPE = struct.Struct(f">cq{KEY_BYTES}s")
_KIND = b"c"


class Place(NamedTuple):
    """After, or before, one entry."""

    at: datetime
    key: bytes

    def cursor(self) -> str:
        """As text."""
        packed = _SHAPE.pack(_KIND, (self.at - _EPOCH) // _MICROSECOND, self.key)
        return base64.urlsafe_b64encode(packed).decode().rstrip("=")

    @classmethod
    def of(cls, cursor: str | None, beginning: Place) -> Place:
        """The place that a cursor means; without one, the beginning of the list."""
        if cursor is None:
            return beginning
        try:
            packed = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
            kind, microseconds, key = _SHAPE.unpack(packed)
            at = _EPOCH + microseconds * _MICROSECOND
        except (ValueError, binascii.Error, struct.error, OverflowError):
            raise BadCursor from None
        if kind != _KIND:
            raise BadCursor
        return cls(at, key)


OLDEST = Place(datetime(1, 1, 1, tzinfo=UTC), b"")
NEWEST = Place(datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC), b"\xff" * KEY_BYTES)
