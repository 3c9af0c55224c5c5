"""What is done about an intent in doubt (REC-2), what a GET about it tells, and what an answer to a repeat settles.

Pure: time, chance and the route's policy are passed in. Nothing here is a guess: what does not tell is asked again,
and what cannot be asked is held for an operator.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import quote

import orjson

from gateway.protocol import outcome
from gateway.protocol.outcome import Doubtful, Settled
from gateway.protocol.records import Doubted

PAUSE_MAX_MS = 300_000  # an upstream that is back after hours is found within minutes
PAUSE_DOUBLINGS_MAX = 30
TRIES_PER_SEND_MAX = 20  # attempts that never got to send do not count as sends; an upstream away for hours ends them
BY_POLICY = "recovery: hold"

# REC-6: what callers are told of an outcome that no answer of the upstream gave.
PROBED_YES = "Settled by asking upstream: the request took effect."
PROBED_NO = "Settled by asking upstream: the request did not take effect."
RULED_YES = "Settled by an operator's verdict: the request took effect."
RULED_NO = "Settled by an operator's verdict: the request did not take effect."
SETTLED_LATER = frozenset({PROBED_YES, PROBED_NO, RULED_YES, RULED_NO})

# A repeat's answer that may come from a layer which never looked at the key: the credentials have expired, the first
# attempt still runs (409, as drafts of Idempotency-Key have it), too many requests, a precondition that the first
# attempt itself has changed. Any 5xx too. None of them tells what became of the first.
TELLS_NOTHING = frozenset({401, 403, 407, 408, 409, 412, 423, 425, 428, 429})
GONE = frozenset({404, 410})

_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True, slots=True)
class Limits:
    """The `recovery` section, and how long an upstream may take."""

    attempts: int
    backoff_ms: int
    upstream_timeout_ms: int


@dataclass(frozen=True, slots=True)
class UseEvidence:
    """DESIGN decision 7: a fenced gateway knew the outcome."""


@dataclass(frozen=True, slots=True)
class Hold:
    """For an operator's verdict. `news`: not simply what the route's policy says."""

    reason: str
    news: bool = True


@dataclass(frozen=True, slots=True)
class Wait:
    """Looked at again after a while."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class Redrive:
    """The same request once more."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A GET that tells. `ripe`: a no counts, because nothing of the attempt can still be under way."""

    ripe: bool
    ripe_in_ms: int


Decision = UseEvidence | Hold | Wait | Redrive | Probe


def decide(doubted: Doubted, policy: str | None, limits: Limits, *, chance: float) -> Decision:
    """REC-2: what to do about a doubt that is due. `policy` is None where the route is no more; 0 <= `chance` < 1."""
    if doubted.proven:
        return UseEvidence()
    if policy is None:
        return Hold("no route of the configuration is this intent's any more")
    if policy == "probe" and not doubted.payload_kept:
        return Hold("its payload was not kept, so upstream cannot be asked with its caller's credentials")
    if policy == "probe":
        ripe_at = (doubted.ended_at or doubted.read_at) + timedelta(milliseconds=limits.upstream_timeout_ms)
        ripe_in_ms = _milliseconds(ripe_at - doubted.read_at)
        return Probe(ripe=ripe_in_ms <= 0, ripe_in_ms=max(0, ripe_in_ms))
    if policy != "redrive":
        return Hold(BY_POLICY, news=False)
    if not doubted.payload_kept:
        return Hold("its payload was not kept, so it cannot be sent again")
    if doubted.sends >= limits.attempts:
        return Hold(f"recovery.attempts used up: sent {doubted.sends} times")
    if doubted.tries >= limits.attempts * TRIES_PER_SEND_MAX:
        return Hold(f"upstream could not be reached in {doubted.tries} attempts")
    pause = timedelta(milliseconds=pause_ms(limits.backoff_ms, doubted.tries - 1, chance=chance))
    left_ms = _milliseconds((doubted.ended_at or doubted.read_at) + pause - doubted.read_at)
    return Wait(left_ms) if left_ms > 0 else Redrive()


def pause_ms(first_ms: int, doublings: int, *, chance: float) -> int:
    """Exponential back-off with jitter: a fifth more or less, so that replicas do not ask together."""
    most = min(first_ms * 2 ** min(doublings, PAUSE_DOUBLINGS_MAX), max(first_ms, PAUSE_MAX_MS))
    return int(most * (0.8 + 0.4 * chance))


def _milliseconds(span: timedelta) -> int:
    """Rounded up: never earlier than it was said."""
    return -(-span // timedelta(milliseconds=1))


# --- an answer to a repeat


def of_repeat(method: str, status: int, in_doubt_statuses: Collection[int]) -> Settled | Doubtful:
    """REC-2: what an upstream's answer to a repeated request tells of the intent.

    An upstream that honours the key answers a repeat as it answered, or would have answered, the first; what a layer in
    front of that says settles nothing. A DELETE that finds nothing may have done it the first time.
    """
    if status >= 500 or status in TELLS_NOTHING or (method == "DELETE" and status in GONE):
        return Doubtful(f"upstream answered {status} to a repeat, which does not tell what became of the first attempt")
    return outcome.of_answer(status, in_doubt_statuses)


# --- a GET about an effect


@dataclass(frozen=True, slots=True)
class Yes:
    """The effect exists."""

    resource_id: str | None = None


@dataclass(frozen=True, slots=True)
class No:
    """The effect does not exist."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unsure:
    """The answer does not tell."""

    reason: str


def of_probe(status: int, body: bytes, pointer: str | None, *, complete: bool) -> Yes | No | Unsure:
    """REC-2: what a probe's answer tells."""
    if status in GONE:
        return No(f"upstream answered {status}")
    if not 200 <= status < 300:
        return Unsure(f"upstream answered {status}")
    if pointer is None:
        return Yes()
    try:
        document = orjson.loads(body) if complete else None
    except orjson.JSONDecodeError:
        document = None
    if document is None:
        return Unsure(f"upstream answered {status} without a JSON document")
    found = outcome.resolve_pointer(document, pointer)
    if found is None:
        return Unsure(f"upstream answered {status}, and null is at {pointer}")
    if found is outcome.NOWHERE:
        return No(f"upstream answered {status}, and nothing is at {pointer}")
    return Yes(outcome.as_id(str(found)) if isinstance(found, str | int) and not isinstance(found, bool) else None)


def of_verification(status: int) -> Yes | No | Unsure:
    """REC-5: only a 2xx confirms. What never looked at the resource is no answer yet."""
    if 200 <= status < 300:
        return Yes()
    if 400 <= status < 500 and status not in TELLS_NOTHING:
        return No(f"upstream answered {status}")
    return Unsure(f"upstream answered {status}")


def target_of(template: str, values: Mapping[str, str]) -> bytes:
    """A probe's or verification's target: every value percent-encoded, so that none adds a segment or a query."""
    return _PLACEHOLDER.sub(lambda match: quote(values[match[1]], safe=""), template).encode()
