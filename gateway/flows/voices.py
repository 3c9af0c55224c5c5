"""How an outcome is told: to a caller that confirmed, to one that auto-confirmed, to one that knows nothing of 2PHP.

The outcome is the same in all three; only the answer differs. One voice tells the first answer and every replay of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from gateway.flows import answers
from gateway.protocol import problems
from gateway.protocol.messages import Answer, Header, Headers
from gateway.protocol.outcome import without_ours
from gateway.protocol.phases import Phase

STREAMED_AFTER_S = 1.0  # RPL-6: an answer unfinished this long after its head is passed on as it comes


@dataclass(slots=True)
class Told:
    """What there is to tell of an executed intent."""

    server_id: UUID
    phase: Phase
    resource_id: str | None
    message: str | None
    status: int
    headers: Headers
    reason: bytes | None = None


class Voice(Protocol):
    """One way to tell."""

    @property
    def patience_s(self) -> float | None:
        """How long an answer may take to be complete before it is streamed; None: as long as it takes."""
        ...

    def executed(self, told: Told, body: bytes) -> Answer:
        """The upstream answered."""
        ...

    def unkept(self, told: Told) -> Answer:
        """It did, and its answer was too large to keep (RPL-6)."""
        ...

    def unreached(
        self, server_id: UUID, phase: Phase, resource_id: str | None, message: str | None, kind: str
    ) -> Answer:
        """Settled without an answer."""
        ...

    def in_doubt(self, server_id: UUID, path: bytes, kind: str) -> Answer:
        """It may have taken effect, and no answer came."""
        ...

    def in_doubt_answered(self, told: Told, path: bytes, body: bytes) -> Answer:
        """The same, with an answer that settles nothing (502, 504)."""
        ...


class Confirmed:
    """To a caller that confirmed: the statuses of a synchronous Phase 2 (P2-4, P2-5, REC-6)."""

    patience_s = None

    def executed(self, told: Told, body: bytes) -> Answer:
        """P2-4, P2-5."""
        return answers.executed(
            told.server_id, told.phase, told.resource_id, told.message, told.status, told.headers, body
        )

    def unkept(self, told: Told) -> Answer:
        """RPL-6."""
        return answers.executed_unkept(
            told.server_id, told.phase, told.resource_id, told.message, told.status, told.headers
        )

    def unreached(
        self, server_id: UUID, phase: Phase, resource_id: str | None, message: str | None, kind: str
    ) -> Answer:
        """P2-5."""
        return answers.without_response(server_id, phase, resource_id, message)

    def in_doubt(self, server_id: UUID, path: bytes, kind: str) -> Answer:
        """REC-6."""
        return answers.in_doubt(server_id, path)

    def in_doubt_answered(self, told: Told, path: bytes, body: bytes) -> Answer:
        """REC-6."""
        return answers.in_doubt(told.server_id, path)


class AutoConfirmed:
    """To a caller that auto-confirmed: the upstream's own status, and where the intent stands (ACM-1)."""

    patience_s = STREAMED_AFTER_S

    def executed(self, told: Told, body: bytes) -> Answer:
        """ACM-1: a 503 stays 503."""
        headers = without_ours(told.headers)
        headers += answers.standing(told.server_id, told.phase, told.resource_id, told.message)
        return Answer(told.status, headers, body, told.reason)

    def unkept(self, told: Told) -> Answer:
        """RPL-6."""
        answer = CONFIRMED.unkept(told)
        answer.status = told.status
        return answer

    def unreached(
        self, server_id: UUID, phase: Phase, resource_id: str | None, message: str | None, kind: str
    ) -> Answer:
        """What any proxy would say, and that the intent has FAILED.

        What was settled later, by a probe or a verdict, is told as to anybody else (REC-6).
        """
        if phase is Phase.COMMITTED or kind == "settled":
            return answers.without_response(server_id, phase, resource_id, message)
        answer = problems.to_answer(problems.bad_gateway(kind))
        answer.headers = [header for header in answer.headers if header[0] != b"DTT-2PHP-Message"]
        answer.headers += answers.standing(server_id, phase, resource_id, message)
        return answer

    def in_doubt(self, server_id: UUID, path: bytes, kind: str) -> Answer:
        """ACM-1: never a 2xx that a plain client would take for success."""
        answer = problems.to_answer(problems.in_doubt(kind))
        answer.headers = [header for header in answer.headers if header[0] != b"DTT-2PHP-Message"]
        answer.headers += self._open(server_id, path)
        return answer

    def in_doubt_answered(self, told: Told, path: bytes, body: bytes) -> Answer:
        """The upstream's own 502 or 504."""
        return Answer(told.status, without_ours(told.headers) + self._open(told.server_id, path), body, told.reason)

    def _open(self, server_id: UUID, path: bytes) -> list[Header]:
        return [
            *answers.standing(server_id, Phase.PROCESSING, None, answers.IN_DOUBT_MESSAGE),
            (b"Location", answers.poll_path(server_id, path)),
        ]


@dataclass(frozen=True, slots=True)
class Silent:
    """To a caller that knows nothing of 2PHP: the upstream's answer, with one added header at most (TRN-2)."""

    reveal_id: bool
    patience_s: float | None = STREAMED_AFTER_S

    def executed(self, told: Told, body: bytes) -> Answer:
        """TRN-2."""
        return Answer(told.status, [*told.headers, *self._revealed(told.server_id)], body, told.reason)

    def unkept(self, told: Told) -> Answer:
        """Nobody can ask for it: such a request has no ID of its own."""
        return self.executed(told, b"")

    def unreached(
        self, server_id: UUID, phase: Phase, resource_id: str | None, message: str | None, kind: str
    ) -> Answer:
        """What any proxy would say."""
        return self._proxys(problems.bad_gateway(kind), server_id)

    def in_doubt(self, server_id: UUID, path: bytes, kind: str) -> Answer:
        """REC-6: the 502 or 504 that any proxy would give."""
        return self._proxys(problems.bad_gateway(kind), server_id)

    def in_doubt_answered(self, told: Told, path: bytes, body: bytes) -> Answer:
        """The upstream's own 502 or 504."""
        return self.executed(told, body)

    def _proxys(self, problem: problems.Problem, server_id: UUID) -> Answer:
        answer = problems.to_answer(problem)
        answer.headers += self._revealed(server_id)
        return answer

    def _revealed(self, server_id: UUID) -> list[Header]:
        return [(b"DTT-2PHP-Server-Correlation-ID", str(server_id).encode())] if self.reveal_id else []


CONFIRMED = Confirmed()
AUTO_CONFIRMED = AutoConfirmed()
SILENT = {reveal_id: Silent(reveal_id) for reveal_id in (False, True)}
