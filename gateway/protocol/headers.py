"""The DTT-2PHP-* header fields: their names, and how the ones a client sends are read.

Look-ups go through any case-insensitive multi-mapping (`getall`); what is written is raw bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from gateway.protocol import problems

# The twelve of the draft's section 14.
ENABLED = "DTT-2PHP-Enabled"
CLIENT_CORRELATION_ID = "DTT-2PHP-Client-Correlation-ID"
AUTO_CONFIRM = "DTT-2PHP-Auto-Confirm"
CALLBACK = "DTT-2PHP-Callback"
REQUESTED_TTL = "DTT-2PHP-Requested-TTL"
SERVER_CORRELATION_ID = "DTT-2PHP-Server-Correlation-ID"
PHASE_STATE = "DTT-2PHP-Phase-State"
TTL = "DTT-2PHP-TTL"
PONR_DEADLINE = "DTT-2PHP-PONR-Deadline"
RESOURCE_ID = "DTT-2PHP-Resource-ID"
REPLAY_POLICY = "DTT-2PHP-Replay-Policy"
MESSAGE = "DTT-2PHP-Message"

# Extensions of ours.
UPSTREAM_STATUS = "DTT-2PHP-Upstream-Status"  # P2-4
AUTHORIZATION_NONCE = "DTT-2PHP-Authorization-Nonce"  # SEC-3

PREFIX = b"dtt-2php-"

# What a client may not send twice: two values would leave it open which one is meant.
SINGLE_VALUED = (
    ENABLED,
    CLIENT_CORRELATION_ID,
    SERVER_CORRELATION_ID,
    AUTO_CONFIRM,
    CALLBACK,
    REQUESTED_TTL,
)

_OPAQUE_ID = re.compile(r"[\x21-\x7e]{1,255}")
_WHOLE_NUMBER = re.compile(r"[0-9]{1,15}")
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class HeaderMap(Protocol):
    """A case-insensitive multi-mapping of header values."""

    def getall(self, key: str, default: list[str], /) -> list[str]:
        """Every value of a header, in order."""
        ...

    def __iter__(self) -> Iterator[str]:
        """The names."""
        ...


class NoFields:
    """The map of a request that is known to carry no 2PHP field: nothing is looked for."""

    def getall(self, key: str, default: list[str], /) -> list[str]:
        """None of any."""
        return default

    def __iter__(self) -> Iterator[str]:
        """No names."""
        return iter(())


NO_FIELDS = NoFields()


@dataclass(slots=True)
class Handshake:
    """What a request says about 2PHP, checked for syntax."""

    enabled: bool
    client_correlation_id: str | None
    server_correlation_id: UUID | None
    auto_confirm: bool
    callback: str | None
    requested_ttl_ms: int | None


def is_enabled(headers: HeaderMap) -> bool:
    """OPT-1: `DTT-2PHP-Enabled: true`, in any case; any other value does not opt in."""
    values = headers.getall(ENABLED, [])
    return bool(values) and any(value.strip().lower() == "true" for value in values)


def speaks(headers: HeaderMap) -> bool:
    """Whether a request carries any 2PHP field (TRN-2)."""
    return any(name[: len(PREFIX)].lower() == "dtt-2php-" for name in headers)


def parse(headers: HeaderMap) -> Handshake:
    """Read the 2PHP fields of a request that opted in, or raise the 400 that says which one is wrong."""
    found: dict[str, str] = {}
    for name in SINGLE_VALUED:
        values = headers.getall(name, [])
        if len(values) > 1:
            raise problems.repeated_header(name)
        if values:
            found[name] = values[0].strip()
    return Handshake(
        enabled=found.get(ENABLED, "").lower() == "true",
        client_correlation_id=_client_id(found),
        server_correlation_id=_server_id(found),
        auto_confirm=found.get(AUTO_CONFIRM, "").lower() == "true",
        callback=found.get(CALLBACK),
        requested_ttl_ms=_requested_ttl_ms(found),
    )


def opaque_id(value: bytes) -> str:
    """A client correlation ID that came in a path (RPL-5)."""
    text = value.decode("latin-1")
    if not _OPAQUE_ID.fullmatch(text):
        raise problems.malformed_client_correlation_id()
    return text


def _client_id(found: Mapping[str, str]) -> str | None:
    value = found.get(CLIENT_CORRELATION_ID)
    if value is not None and not _OPAQUE_ID.fullmatch(value):
        raise problems.malformed_client_correlation_id()
    return value


def _server_id(found: Mapping[str, str]) -> UUID | None:
    value = found.get(SERVER_CORRELATION_ID)
    if value is None:
        return None
    if not _UUID.fullmatch(value):
        raise problems.malformed_server_correlation_id()
    return UUID(value)


def _requested_ttl_ms(found: Mapping[str, str]) -> int | None:
    value = found.get(REQUESTED_TTL)
    if value is None:
        return None
    if not _WHOLE_NUMBER.fullmatch(value) or int(value) == 0:
        raise problems.malformed_requested_ttl()
    return int(value)
