"""What services send: entries as NDJSON, compressed or not, each line checked against the schema (LED-1, COR-2).

Nothing of a batch is used before all of it has been read. What is wrong is said by line and field, never by value.
Must not know who sends (see `ingest`), nor how entries are stored.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

import orjson
import zstandard

from gateway.central import refusals
from gateway.central.places import KEY_BYTES
from gateway.central.rows import WIRE_FIELDS
from gateway.protocol.entries import ENDPOINT_CHARACTERS_MAX, OUTCOMES
from gateway.protocol.phases import Phase

LINES_MAX = 5000
BODY_BYTES_MAX = 8 << 20
PLAIN_BYTES_MAX = 32 << 20  # 5,000 lines of a whole entry have some 5 MB; a bomb ends here
WINDOW_BYTES_MAX = 8 << 20  # memory of the decompressor; what `zstd -19` and every library's default stay below
CHUNK_BYTES = 512  # of the body at a time: a few bytes can stand for 128 KiB
NUMBER_MAX = 2**63 - 1
TTL_MS_MAX = 10 * 365 * 86_400_000  # ten years: a time and this many are still a time

_ID = re.compile(r"[\x21-\x7e]{1,255}").fullmatch
_ENDPOINT = re.compile(rf"[^\x00]{{1,{ENDPOINT_CHARACTERS_MAX}}}", re.S).fullmatch
_FIELDS = frozenset(WIRE_FIELDS)
_OUTCOMES = {phase.value: phase.value if phase in OUTCOMES else None for phase in Phase}
_CALLBACKS = frozenset({None, "pending", "delivered", "dead"})


class Row(NamedTuple):
    """One entry as the store takes it, without what is the same for the whole batch."""

    phase_1_timestamp: datetime
    entry_key: bytes
    actor: str
    entry_id: str
    version: int
    client_correlation_id: str
    server_correlation_id: str | None
    service_endpoint: str
    source: str
    target: str | None
    parent_reference_id: str
    phase: str
    phase_2_timestamp: datetime | None
    ttl_ms: int | None
    outcome: str | None
    payload_ref: str | None
    transaction_reference: str | None
    in_doubt: datetime | None
    callback: str | None


class BadEntry(Exception):
    """An entry that does not fit the schema; the text says which field and what it takes."""


def lines_of(body: bytes, encoding: str) -> list[bytes]:
    """The lines of a body, or the 400, 413 or 415."""
    if encoding == "zstd":
        body = _plain(body)
    elif encoding not in ("", "identity"):
        raise refusals.encoding_unknown()
    if body.count(b"\n") + (not body.endswith(b"\n")) > LINES_MAX:  # counted first: a list of empty lines is large
        raise refusals.too_many_lines(LINES_MAX)
    lines = body.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _plain(body: bytes) -> bytes:
    """One frame, decompressed bit by bit, so that a small body cannot become a huge one."""
    plain = bytearray()
    frame = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX).decompressobj()
    start = 0
    try:
        while start < len(body) and not frame.eof:
            plain += frame.decompress(body[start : start + CHUNK_BYTES])
            start += CHUNK_BYTES
            if len(plain) > PLAIN_BYTES_MAX:
                raise refusals.plain_too_large(PLAIN_BYTES_MAX)
    except zstandard.ZstdError:
        raise refusals.body_not_zstd() from None
    if not frame.eof or frame.unused_data or start < len(body):  # cut short; or something follows
        raise refusals.body_not_zstd()
    return bytes(plain)


def rows_of(lines: Collection[bytes], *, service_ledger_id: str, source: str) -> Iterator[Row]:
    """The rows of some lines, one by one, or the 400 that names the first bad line."""
    for number, line in enumerate(lines, 1):
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError:
            raise refusals.bad_line(number, "a line is one JSON object") from None
        try:
            yield row_of(document, service_ledger_id=service_ledger_id, source=source)
        except BadEntry as bad:
            raise refusals.bad_line(number, str(bad)) from None


def row_of(document: Any, *, service_ledger_id: str, source: str) -> Row:
    """One entry, checked: sixteen fields and the four of the wire, of the right types, by the rules of COR-2."""
    if type(document) is not dict or document.keys() != _FIELDS:
        raise BadEntry(f"an entry has exactly the members {', '.join(WIRE_FIELDS)}")
    client_id, server_id = document["client_correlation_id"], document["server_correlation_id"]
    actor, parent = document["actor"], document["parent_reference_id"]
    entry_id, phase = document["entry_id"], document["phase"]
    _identify("client_correlation_id", client_id)
    _identify("parent_reference_id", parent)
    _identify("entry_id", entry_id)
    if document["service_ledger_id"] != service_ledger_id or document["source"] != source:
        raise BadEntry("`service_ledger_id` and `source` take those of the service that sends")
    target = document["target"]
    if actor == "server":
        _identify("server_correlation_id", server_id)
        if target is not None:
            raise BadEntry("`target` is null on server rows")
        if parent != client_id:
            raise BadEntry("`parent_reference_id` on server rows is the client correlation ID of the call")
    elif actor == "client":
        if server_id is not None:
            _identify("server_correlation_id", server_id)
        _identify("target", target)
    else:
        raise BadEntry("`actor` takes client or server")
    if type(phase) is not str or phase not in _OUTCOMES:
        raise BadEntry(f"`phase` takes {', '.join(_OUTCOMES)}")
    if document["outcome"] != _OUTCOMES[phase]:
        raise BadEntry("`outcome` is the phase once that is an outcome, and null before")
    endpoint = document["service_endpoint"]
    if type(endpoint) is not str or not _ENDPOINT(endpoint):
        raise BadEntry("`service_endpoint` takes text")
    callback = document["callback"]
    if callback is not None and (type(callback) is not str or callback not in _CALLBACKS):
        raise BadEntry("`callback` takes pending, delivered, dead or null")
    version, ttl_ms = document["version"], document["ttl_ms"]
    if type(version) is not int or not 0 < version <= NUMBER_MAX:
        raise BadEntry("`version` takes a whole number greater than 0")
    if not (ttl_ms is None and actor == "client") and (type(ttl_ms) is not int or not 0 < ttl_ms <= TTL_MS_MAX):
        raise BadEntry(f"`ttl_ms` takes a whole number from 1 to {TTL_MS_MAX}; null on client rows that were told none")
    reference, payload_ref = document["transaction_reference"], document["payload_ref"]
    if reference is not None:
        _identify("transaction_reference", reference)
    if payload_ref is not None:
        _identify("payload_ref", payload_ref)
    phase_2, in_doubt = document["phase_2_timestamp"], document["in_doubt"]
    return Row(
        _moment("phase_1_timestamp", document["phase_1_timestamp"]),
        entry_key(service_ledger_id, actor, entry_id),
        actor,
        entry_id,
        version,
        client_id,
        server_id,
        endpoint,
        source,
        target,
        parent,
        phase,
        None if phase_2 is None else _moment("phase_2_timestamp", phase_2),
        ttl_ms,
        document["outcome"],
        payload_ref,
        reference,
        None if in_doubt is None else _moment("in_doubt", in_doubt),
        callback,
    )


def entry_key(service_ledger_id: str, actor: str, entry_id: str) -> bytes:
    """A row's identity in 16 bytes. Nobody can make it another service's: the ledger ID is part of it."""
    return sha256(f"{service_ledger_id}\n{actor}\n{entry_id}".encode()).digest()[:KEY_BYTES]


def _identify(name: str, value: Any) -> None:
    if type(value) is not str or not _ID(value):
        raise BadEntry(f"`{name}` takes 1 to 255 visible ASCII characters without spaces")


def _moment(name: str, value: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(value)
    except (ValueError, TypeError):
        raise BadEntry(f"`{name}` takes a time in ISO 8601 with its offset, such as 2030-01-31T12:00:00.000Z") from None
    if moment.tzinfo is None or not 1 < moment.year < 9999:
        raise BadEntry(f"`{name}` takes a time in ISO 8601 with its offset, such as 2030-01-31T12:00:00.000Z")
    return moment
