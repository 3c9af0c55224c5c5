"""Any order of what clients, operators, clocks and crashes do to one service's intents, against a small model.

The store is a real Postgres; the model is a page of Python that says what each step may change.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID, uuid4

import asyncpg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gateway.protocol.phases import TERMINAL, TRANSITIONS, Phase
from gateway.protocol.records import Claimed, NewIntent, Registered, Settlement
from gateway.store.intents import IntentStore
from gateway.store.leases import Lease
from gateway.store.lines import Line
from gateway.store.recovery import RecoveryStore
from gateway.store.sweeps import Sweeps
from gateway.store.verdicts import Verdict, Verdicts
from tests.postgres import database_url
from tests.store.rows import (
    AN_HOUR_MS,
    BOB,
    SERVICE,
    Superuser,
    claim_of,
    doubt_of,
    new_intent,
    observed,
    settlement_of,
)

T = TypeVar("T")
LEASE_MS = 60_000
NO_LEASE_MS = 1  # of the rescuer: it has been in touch for longer than this
EXAMPLES, STEPS = 40, 30  # some 1200 steps in about fifteen seconds
TABLES = ("intents", "payloads", "attempts", "responses", "in_doubt", "evidence", "events", "holders", "queue")


@dataclass
class Known:
    """What the model knows of one intent."""

    new: NewIntent
    phase: Phase = Phase.WAITING_CONFIRM
    age_ms: int = 0
    in_doubt: bool = False
    claimed: Claimed | None = None  # the attempt whose outcome would count
    settlement: Settlement | None = None  # what settled it
    sends: int = 0  # attempts that were begun

    @property
    def waits(self) -> bool:
        return self.phase is Phase.WAITING_CONFIRM and self.age_ms < AN_HOUR_MS

    @property
    def runs(self) -> bool:
        return self.phase is Phase.PROCESSING and not self.in_doubt


class Ground:
    """One database and one set of connections for every example of a run."""

    def __init__(self, url: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.store: IntentStore = observed(url, [])
        self.sweeps = Sweeps(url, buckets=1, lease_ms=NO_LEASE_MS)
        self.recoveries = RecoveryStore(url, service=SERVICE, buckets=1)
        self.verdicts = Verdicts(url, service=SERVICE, buckets=1)
        self.lease_line = Line(url)
        self.connection = self.run(asyncpg.connect(url))
        tables = self.run(self.connection.fetch("SELECT relname FROM pg_class WHERE relname = ANY ($1)", list(TABLES)))
        self._clear = "TRUNCATE " + ", ".join(row["relname"] for row in tables)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    def clear(self) -> None:
        """An empty ledger."""
        self.run(self.connection.execute(self._clear))

    def close(self) -> None:
        self.run(self.store.close())
        for line in (self.sweeps.line, self.recoveries.line, self.verdicts.line, self.lease_line):
            self.run(line.close())
        self.run(self.connection.close())
        self.loop.close()


class Intents(RuleBasedStateMachine):
    """One service; `ground` is set by the test."""

    ground: Ground
    intents = Bundle("intents")

    @initialize()
    def begin(self) -> None:
        ground = self.ground
        ground.clear()
        self.run = ground.run
        self.store, self.sweeps, self.recoveries = ground.store, ground.sweeps, ground.recoveries
        self.connection, self.verdicts = ground.connection, ground.verdicts
        self.superuser = Superuser(ground.connection)
        self.known: dict[bytes, Known] = {}
        self.zombies: list[Claimed] = []
        self.enter()

    def enter(self) -> None:
        """A worker comes up."""
        self.lease = Lease(self.ground.lease_line, LEASE_MS)
        self.run(self.lease.enter())

    # --- Phase 1

    @rule(target=intents, number=st.integers(1, 4))
    def register(self, number: int) -> bytes:
        """P1-3, P1-5: registered once; a repeat finds what was registered, whatever became of it."""
        new = new_intent(f"c-{number}")
        found = self.run(self.store.register(new))
        known = self.known.get(new.key.logical)
        if known is None:
            assert isinstance(found, Registered)
            self.known[new.key.logical] = Known(new)
        else:
            assert found is not None
            assert not isinstance(found, Registered)
            assert found.server_correlation_id == known.new.server_correlation_id
        return new.key.logical

    # --- Phase 2

    @rule(key=intents)
    def confirm(self, key: bytes) -> None:
        """P2-2: once, before the deadline, whatever came before."""
        known = self.known[key]
        claim = claim_of(known.new, holder=self.lease.holder)
        claimed = self.run(self.store.claim(claim))
        assert (claimed is not None) is known.waits
        if claimed is not None:
            known.phase, known.claimed = Phase.PROCESSING, claimed
            known.sends += 1
            again = self.run(self.store.claim(claim))  # REC-7: the acknowledgement was lost
            assert again is not None
            assert again.fence == claimed.fence

    @rule(key=intents)
    def race(self, key: bytes) -> None:
        """P2-8: of several at once, one crosses."""
        known = self.known[key]

        async def all_at_once() -> list[Claimed | None]:
            claims = [claim_of(known.new, holder=self.lease.holder) for _ in range(3)]
            return await asyncio.gather(*(self.store.claim(claim) for claim in claims))

        won = [claimed for claimed in self.run(all_at_once()) if claimed is not None]
        assert len(won) == known.waits
        if won:
            known.phase, known.claimed = Phase.PROCESSING, won[0]
            known.sends += 1

    @rule(key=intents)
    def stranger(self, key: bytes) -> None:
        """SEC-2, P2-7: another caller's key is another key, and a pair that does not belong together is nobody's."""
        known = self.known[key]
        others = new_intent(known.new.client_correlation_id, caller=BOB)
        claim = claim_of(others, server_correlation_id=known.new.server_correlation_id)
        assert self.run(self.store.claim(claim)) is None
        assert self.run(self.store.claim(claim_of(known.new, server_correlation_id=uuid4()))) is None

    # --- outcomes

    @rule(key=intents, phase=st.sampled_from([Phase.COMMITTED, Phase.FAILED]))
    def settle(self, key: bytes, phase: Phase) -> None:
        """REC-1: the attempt that holds the fence settles, once."""
        known = self.known[key]
        if known.claimed is None:
            return
        settlement = settlement_of(known.claimed, phase)
        ours = self.run(self.store.settle(settlement))
        if known.runs:
            assert ours
            known.phase, known.settlement = phase, settlement
        else:  # its own outcome again is no contradiction; anything else is refused
            same = known.settlement is not None and known.settlement.phase is phase
            same = same and known.settlement.fence == known.claimed.fence  # type: ignore[union-attr]
            assert ours is same

    @rule(key=intents)
    def doubt(self, key: bytes) -> None:
        """REC-2: no answer; it stays PROCESSING."""
        known = self.known[key]
        if known.claimed is not None and known.runs:
            assert self.run(self.store.doubt(doubt_of(known.claimed)))
            known.in_doubt = True
            known.claimed = None  # an attempt says one thing: after this it has no outcome to tell

    @precondition(lambda self: self.zombies)
    @rule(data=st.data(), phase=st.sampled_from([Phase.COMMITTED, Phase.FAILED]))
    def late_outcome(self, data: st.DataObject, phase: Phase) -> None:
        """REC-1: whatever a zombie comes back with is refused."""
        zombie = data.draw(st.sampled_from(self.zombies))
        assert not self.run(self.store.settle(settlement_of(zombie, phase)))

    # --- time

    @rule(key=intents, hours=st.integers(1, 2))
    def time_passes(self, key: bytes, hours: int) -> None:
        """For one intent: to its deadline, or past its grace."""
        known = self.known[key]
        if known.phase in (Phase.WAITING_CONFIRM, Phase.TTL_EXPIRED):
            self.run(self.superuser.age(known.new.key, hours * AN_HOUR_MS))
            known.age_ms += hours * AN_HOUR_MS

    @rule()
    def sweep(self) -> None:
        """TTL-2: two sweepers at once; each row once."""

        async def twice() -> None:
            await asyncio.gather(self.sweeps.expire(), self.sweeps.expire())
            await asyncio.gather(self.sweeps.abandon(), self.sweeps.abandon())

        self.run(twice())
        for known in self.known.values():
            if known.phase is Phase.WAITING_CONFIRM and known.age_ms >= AN_HOUR_MS:
                known.phase = Phase.TTL_EXPIRED
            if known.phase is Phase.TTL_EXPIRED and known.age_ms >= 2 * AN_HOUR_MS:
                known.phase = Phase.ABANDONED

    # --- crashes

    @rule()
    def crash(self) -> None:
        """kill -9 of the worker; its lease runs out, and another comes up."""
        self.run(
            self.connection.execute(
                "UPDATE holders SET lease_until = now() - interval '1 second' WHERE holder = $1", self.lease.holder
            )
        )
        self.enter()

    @rule()
    def rescue(self) -> None:
        """REC-1, REC-2: what the dead held is in doubt under a higher fence; what the living hold is left alone."""
        self.run(self.sweeps.rescue())
        for known in self.known.values():
            if known.runs and known.claimed is not None and known.claimed.holder != self.lease.holder:
                known.in_doubt = True
                self.zombies.append(known.claimed)
                known.claimed = None

    @rule()
    def redrive(self) -> None:
        """REC-2: the next attempt, under a higher fence, of whatever is in doubt; each once."""
        self.run(self.connection.execute("UPDATE in_doubt SET next_at = now()"))
        for doubted in self.run(self.recoveries.due(10, 60_000)):
            known = self.known[doubted.key.logical]
            assert known.phase is Phase.PROCESSING
            assert known.in_doubt
            attempt: UUID = uuid4()
            taken = self.run(self.recoveries.redrive(doubted, attempt, self.lease.holder))
            assert taken is not None
            assert taken.claimed.fence > doubted.fence
            assert self.run(self.recoveries.redrive(doubted, uuid4(), self.lease.holder)) is None
            known.in_doubt, known.claimed = False, taken.claimed
            known.sends += 1

    @rule(key=intents, phase=st.sampled_from([Phase.COMMITTED, Phase.FAILED]))
    def resolve(self, key: bytes, phase: Phase) -> None:
        """REC-2: a verdict counts once, and only on what is in doubt."""
        known = self.known[key]
        verdict = Verdict(phase, "ops", "looked", None, "by verdict")
        found = self.run(self.verdicts.resolve(known.new.server_correlation_id, verdict))
        assert found is not None
        assert found[0] is known.in_doubt
        if known.in_doubt:
            known.phase, known.in_doubt = phase, False

    # --- always

    @invariant()
    def the_ledger_is_as_the_model_says(self) -> None:
        if not hasattr(self, "known"):
            return
        for key, known in self.known.items():
            intent = self.run(self.store.read(known.new.key))
            assert intent is not None
            assert intent.stored_phase is known.phase
            assert (intent.in_doubt is not None) is known.in_doubt
            phases = [Phase(phase) for _, phase in self.run(self.superuser.events(known.new.key)) if phase]
            assert phases[-1] is known.phase
            for before, after in itertools.pairwise(phases):
                assert after in TRANSITIONS[before].values()
            attempts = "SELECT count(*) FROM attempts WHERE logical_key = $1"
            assert self.run(self.superuser.value(attempts, key)) == known.sends
            kept = self.run(self.superuser.count("payloads", known.new.key))
            assert kept == (known.phase not in TERMINAL)  # TTL-2, REC-2: kept while it may have to be sent


@pytest.fixture
def ground(template_database: str, postgres_url: str) -> Iterator[Ground]:
    """Its own database, and its own loop: hypothesis calls plain functions."""
    name = f"twophp_test_{os.getpid()}_machine"
    asyncio.run(_execute(postgres_url, f"CREATE DATABASE {name} TEMPLATE {template_database}"))
    ground = Ground(database_url(postgres_url, name))
    yield ground
    ground.close()
    asyncio.run(_execute(postgres_url, f"DROP DATABASE {name} WITH (FORCE)"))


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def test_any_order_of_steps_keeps_to_the_model(ground: Ground) -> None:
    """FSM-1, P1-5, P2-2, P2-8, RPL-2, TTL-2, REC-1, REC-2, REC-7, SEC-2."""
    Intents.ground = ground
    bounds = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        phases=[HypothesisPhase.generate],  # a failing order is short enough to read, and shrinking it takes minutes
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Intents, settings=bounds)  # type: ignore[no-untyped-call]
