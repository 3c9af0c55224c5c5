"""A client that signs its confirmations (RFC 9421), with the library that such clients use."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from http_message_signatures import HTTPMessageSigner, MappingKeyResolver, algorithms
from multidict import CIMultiDict

COVERED = ("@method", "@path", "dtt-2php-client-correlation-id", "dtt-2php-server-correlation-id")


@dataclass
class Message:
    """A request before it is sent."""

    method: str
    url: str
    headers: CIMultiDict[str]


@dataclass
class Signer:
    """Signs with one key."""

    key: Any
    keyid: str = "k"
    algorithm: Any = algorithms.HMAC_SHA256
    _resolver: Any = field(init=False)

    def __post_init__(self) -> None:
        self._resolver = MappingKeyResolver(public_keys={}, private_keys={self.keyid: self.key})

    def sign(
        self,
        url: str,
        headers: dict[str, str],
        *,
        covered: Sequence[str] = COVERED,
        nonce: str | None = "",
        created_s: int = 0,
        expires_s: int | None = 60,
        label: str = "sig1",
        method: str = "POST",
    ) -> dict[str, str]:
        """The headers with a signature among them. Times are seconds from now; an empty nonce is a new one."""
        now = datetime.datetime.now(datetime.UTC)
        message = Message(method, url, CIMultiDict(headers))
        HTTPMessageSigner(signature_algorithm=self.algorithm, key_resolver=self._resolver).sign(
            message,
            key_id=self.keyid,
            created=now + datetime.timedelta(seconds=created_s),
            expires=None if expires_s is None else now + datetime.timedelta(seconds=expires_s),
            nonce=uuid.uuid4().hex if nonce == "" else nonce,
            label=label,
            covered_component_ids=covered,
            append_if_signature_exists=True,
        )
        return dict(message.headers)
