"""Standard Webhooks verification as a receiver would write it from the specification, with nothing of ours in it."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping


def signatures_by(secret: str, headers: Mapping[str, str], body: bytes) -> list[int]:
    """The places in `webhook-signature` that this secret made."""
    assert secret.startswith("whsec_")
    key = base64.b64decode(secret[len("whsec_") :])
    signed = headers["webhook-id"].encode() + b"." + headers["webhook-timestamp"].encode() + b"." + body
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    found = headers["webhook-signature"].split(" ")
    return [place for place, signature in enumerate(found) if signature == f"v1,{expected}"]
