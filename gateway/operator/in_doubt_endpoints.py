"""What is in doubt, and the operator's verdict on it (REC-2, REC-6).

A verdict settles an intent exactly once, with a reason, under the name of the token; the second one hears how it was
settled. Everything about it is in the audit trail, refused verdicts too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol
from uuid import UUID

from gateway.operator import parameters, refusals
from gateway.operator.access import OPERATORS, READERS
from gateway.operator.calls import Call, Endpoint, json
from gateway.protocol.deadlines import iso
from gateway.protocol.messages import Answer
from gateway.protocol.phases import Phase
from gateway.protocol.recovery import RULED_NO, RULED_YES
from gateway.store.ledger import BadCursor, LedgerQueries
from gateway.store.verdicts import Standing, Verdict

LIMIT = 100
LIMIT_MAX = 1000
REASON_CHARACTERS_MAX = 2000
BODY_BYTES_MAX = 16 * 1024  # a reason of that length, with escapes
VERDICTS = {
    "committed": (Phase.COMMITTED, RULED_YES),
    "failed": (Phase.FAILED, RULED_NO),
}
_RESOURCE_ID = re.compile(r"[\x21-\x7e]{1,255}")


class Verdicts(Protocol):
    """Who writes verdicts down."""

    async def resolve(self, server_correlation_id: UUID, verdict: Verdict) -> tuple[bool, Standing] | None:
        """Whether it settled the intent, and how that stands; None when there is none."""
        ...


class Sources(Protocol):
    """Where answers come from."""

    @property
    def ledger(self) -> LedgerQueries:
        """What is in doubt."""
        ...

    @property
    def verdicts(self) -> Verdicts:
        """Who writes verdicts down."""
        ...

    @property
    def policy_of(self) -> Callable[[str, bytes], str | None]:
        """The `recovery` of the route that a method and path have now."""
        ...


async def in_doubt(sources: Sources, call: Call) -> Answer:
    """REC-2: what nobody knows the outcome of, and what is done about it."""
    given = parameters.parse(call.query, takes=("after", "limit"))
    limit = parameters.limit(given, default=LIMIT, most=LIMIT_MAX)
    try:
        page = await sources.ledger.in_doubt(after=parameters.after(given), limit=limit)
    except BadCursor:
        raise parameters.bad_cursor() from None
    for row in page.rows:
        row["policy"] = sources.policy_of(row["method"], row["path"].encode("latin-1"))
    return json({"items": page.rows, "next": page.next})


async def one(sources: Sources, call: Call) -> Answer:
    """One intent with all that is known of it, in doubt or settled since."""
    parameters.parse(call.query, takes=())
    found = await sources.ledger.intent(parameters.path_server_id(call.segments["server_correlation_id"]))
    if found is None:
        raise refusals.intent_unknown()
    return json(found)


async def resolve(sources: Sources, call: Call) -> Answer:
    """REC-2: an operator's verdict, once."""
    parameters.parse(call.query, takes=())
    server_id = parameters.path_server_id(call.segments["server_correlation_id"])
    verdict = _verdict(call)
    found = await sources.verdicts.resolve(server_id, verdict)
    if found is None:
        raise refusals.intent_unknown()
    won, standing = found
    if not won:
        raise refusals.not_in_doubt(_told(server_id, standing), running=standing.settled_at is None)
    return json(_told(server_id, standing))


def _verdict(call: Call) -> Verdict:
    given = call.document(takes=("verdict", "reason", "resource_id"), needs=("verdict", "reason"))
    word, reason, resource_id = given["verdict"], given["reason"], given.get("resource_id")
    if not isinstance(word, str) or word not in VERDICTS:
        raise refusals.member_invalid("verdict", "committed or failed")
    if not isinstance(reason, str) or not reason.strip() or len(reason) > REASON_CHARACTERS_MAX or "\0" in reason:
        raise refusals.member_invalid("reason", f"text of 1 to {REASON_CHARACTERS_MAX} characters")
    if resource_id is not None:
        if word != "committed":
            raise refusals.member_invalid("resource_id", "nothing where the verdict is failed")
        if not isinstance(resource_id, str) or not _RESOURCE_ID.fullmatch(resource_id):
            raise refusals.member_invalid("resource_id", "1 to 255 visible ASCII characters without spaces")
    phase, message = VERDICTS[word]
    return Verdict(phase, call.reader, reason.strip(), resource_id, message)


def _told(server_id: UUID, standing: Standing) -> dict[str, Any]:
    return {
        "server_correlation_id": str(server_id),
        "phase": standing.phase.value,
        "in_doubt": standing.in_doubt,
        "settled_by": standing.settled_by,
        "settled_at": None if standing.settled_at is None else iso(standing.settled_at),
    }


ENDPOINTS: tuple[Endpoint[Any], ...] = (
    Endpoint("/v1/in-doubt", in_doubt, roles=READERS),
    Endpoint("/v1/in-doubt/{server_correlation_id}", one, roles=READERS),
    Endpoint(
        "/v1/in-doubt/{server_correlation_id}/resolve",
        resolve,
        roles=OPERATORS,
        methods=("POST",),
        body_max_bytes=BODY_BYTES_MAX,
    ),
)
