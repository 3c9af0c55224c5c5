"""Writing to the central ledger: registration, sync, clients' own rows, and operators' deeds (LED-2 .. LED-4, COR-4).

A sync token writes for its own service, which is its `service` or else its name, and reads nothing (SEC-5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import UUID

import orjson

from gateway.central import refusals
from gateway.central.wire import BODY_BYTES_MAX, BadEntry, lines_of, row_of
from gateway.operator import parameters
from gateway.operator import refusals as common
from gateway.operator.access import OPERATORS, WRITERS
from gateway.operator.calls import Call, Endpoint, json
from gateway.protocol.messages import Answer

if TYPE_CHECKING:
    from gateway.central.endpoints import Sources

DOCUMENT_BYTES_MAX = 16 << 10
CLIENT_ROWS_MAX = 1000
CLIENT_ROWS_BYTES_MAX = 2 << 20
PULL_TOKEN_CHARACTERS_MAX = 512
NDJSON = "application/x-ndjson"


def writes_for(call: Call) -> str:
    """The service that a sync token writes for."""
    assert call.token is not None
    return call.token.service or call.token.name


async def register(sources: Sources, call: Call) -> Answer:
    """LED-4: first contact, or a new address."""
    parameters.parse(call.query, takes=())
    members = ("name", "service_ledger_id", "operator_url", "pull_token")
    given = call.document(takes=members, needs=("name",))
    if given["name"] != writes_for(call):
        raise refusals.other_service()
    given_id = given.get("service_ledger_id")
    id_ = None if given_id is None else _uuid(given_id)
    url, token = given.get("operator_url"), given.get("pull_token")
    if url is not None and not _is_origin(url):
        raise common.member_invalid("operator_url", "an http or https URL of scheme, host and port alone")
    if token is not None and not (_is_visible(token) and len(token) <= PULL_TOKEN_CHARACTERS_MAX):
        raise common.member_invalid("pull_token", "visible ASCII characters")
    return json({"service_ledger_id": str(await sources.services.register(given["name"], id_, url, token))})


async def sync(sources: Sources, call: Call) -> Answer:
    """LED-2: a batch, all or nothing, stored once however often it comes."""
    given = parameters.parse(call.query, takes=("service_ledger_id",))
    if "service_ledger_id" not in given:
        raise common.parameter_missing("service_ledger_id")
    if call.headers.get("Content-Type", "").partition(";")[0].strip().lower() != NDJSON:
        raise refusals.content_type_unknown()
    service = await sources.services.writer(_uuid(given["service_ledger_id"]), writes_for(call))
    id_ = service.service_ledger_id
    async with sources.ingest.turns:
        lines = lines_of(call.body, call.headers.get("Content-Encoding", "").strip().lower())
        rows = await sources.ingest.decode(lines, service_ledger_id=id_, source=service.name)
        return json({"received": len(rows), "stored": await sources.ingest.store(id_, rows)})


async def client_rows(sources: Sources, call: Call) -> Answer:
    """COR-4: the rows of a client that registers itself: one entry, or a list of them."""
    parameters.parse(call.query, takes=())
    try:
        found = orjson.loads(call.body)
    except orjson.JSONDecodeError:
        raise common.body_malformed() from None
    documents = found if isinstance(found, list) else [found]
    if not 0 < len(documents) <= CLIENT_ROWS_MAX:
        raise refusals.too_many_lines(CLIENT_ROWS_MAX)
    first = documents[0]
    id_ = _uuid(first.get("service_ledger_id") if isinstance(first, dict) else None)
    service = await sources.services.writer(id_, writes_for(call))
    rows = []
    for number, document in enumerate(documents, 1):
        try:
            if isinstance(document, dict) and document.get("actor") == "server":
                raise BadEntry("only gateways write server rows: `actor` is client here")
            rows.append(row_of(document, service_ledger_id=str(id_), source=service.name))
        except BadEntry as bad:
            raise refusals.bad_line(number, str(bad)) from None
    await sources.ingest.require_unmoved(id_, rows)
    return json({"received": len(rows), "stored": await sources.ingest.store(id_, rows)})


async def pull(sources: Sources, call: Call) -> Answer:
    """LED-3: the latest entries of a service, now."""
    parameters.parse(call.query, takes=())
    await _require_own(sources, call)
    return json(await sources.puller.pull(call.segments["service_ledger_id"]))


async def revoke(sources: Sources, call: Call) -> Answer:
    """LED-4: nothing of a service is taken any more."""
    parameters.parse(call.query, takes=())
    return json(await sources.services.revoke(await _require_own(sources, call)))


async def restore(sources: Sources, call: Call) -> Answer:
    """LED-4: a service may come back."""
    parameters.parse(call.query, takes=())
    return json(await sources.services.restore(await _require_own(sources, call)))


async def _require_own(sources: Sources, call: Call) -> UUID:
    """The service of the path, unless the token is restricted to another (SEC-5)."""
    id_ = _uuid(call.segments["service_ledger_id"])
    assert call.token is not None
    if call.token.service is not None and (await sources.services.one(id_)).name != call.token.service:
        raise refusals.service_unknown()
    return id_


def _uuid(value: Any) -> UUID:
    return parameters.path_id(value if isinstance(value, str) else "", refusals.service_id_malformed())


def _is_visible(value: object) -> bool:
    return isinstance(value, str) and bool(value) and all("\x21" <= character <= "\x7e" for character in value)


def _is_origin(value: object) -> bool:
    """Scheme, host and port: nothing that could carry a password, or lead elsewhere on that host."""
    if not isinstance(value, str) or not _is_visible(value) or "\\" in value:
        return False
    try:
        url = urlsplit(value)
        return (
            url.scheme in ("http", "https")
            and bool(url.hostname)
            and "@" not in url.netloc
            and url.port != 0
            and value == f"{url.scheme}://{url.netloc}"
        )
    except ValueError:
        return False


ENDPOINTS: tuple[Endpoint[Sources], ...] = (
    Endpoint("/v1/services", register, roles=WRITERS, methods=("POST",), body_max_bytes=DOCUMENT_BYTES_MAX),
    Endpoint("/v1/services/{service_ledger_id}/pull", pull, roles=OPERATORS, methods=("POST",)),
    Endpoint("/v1/services/{service_ledger_id}/revoke", revoke, roles=OPERATORS, methods=("POST",)),
    Endpoint("/v1/services/{service_ledger_id}/restore", restore, roles=OPERATORS, methods=("POST",)),
    Endpoint("/v1/sync", sync, roles=WRITERS, methods=("POST",), body_max_bytes=BODY_BYTES_MAX),
    Endpoint("/v1/ledger/entries", client_rows, roles=WRITERS, methods=("POST",), body_max_bytes=CLIENT_ROWS_BYTES_MAX),
)
