"""Guards, each broken in one place: whoever breaks one for real must hear of it from a test (`mutation` runs them)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Mutant:
    """One breakage: where, what stands there, what would stand there, and which tests must notice."""

    name: str
    path: str
    old: str
    new: str
    tests: str

    def apply(self, root: Path) -> str:
        """Break the copy; returns what the file was."""
        target = root / self.path
        text = target.read_text()
        assert text.count(self.old) == 1, f"{self.name}: {self.path} has it {text.count(self.old)} times"
        target.write_text(text.replace(self.old, self.new))
        return text


INTENTS, BACKGROUND, RECOVERY = (f"gateway/store/sql/{name}.sql" for name in ("intents", "background", "recovery"))
EXECUTE, SETTLE, VOICES = (f"gateway/flows/{name}.py" for name in ("execute", "settle", "voices"))
MACHINE = "tests/rig/test_state_machine.py"

MUTANTS = (
    # --- crossing the PONR (P2-2)
    Mutant(
        "no phase guard in the claim",
        INTENTS,
        "AND i.path = t.path AND i.phase = 'WAITING_CONFIRM' AND now() < i.ponr_deadline",
        "AND i.path = t.path AND now() < i.ponr_deadline",
        "tests/store/test_claims.py",
    ),
    Mutant(
        "no deadline guard in the claim",
        INTENTS,
        "AND i.path = t.path AND i.phase = 'WAITING_CONFIRM' AND now() < i.ponr_deadline",
        "AND i.path = t.path AND i.phase = 'WAITING_CONFIRM'",
        "tests/store/test_claims.py",
    ),
    Mutant(
        "a claim by any server id",
        INTENTS,
        "i.logical_key = t.logical_key AND i.server_correlation_id = t.server_correlation_id\n        AND i.path",
        "i.logical_key = t.logical_key\n        AND i.path",
        MACHINE,
    ),
    Mutant(
        "a replica's clock decides",
        "gateway/protocol/intents.py",
        "return phase_at(self.stored_phase, self.ponr_deadline, self.grace_ms, self.read_at)",
        "return phase_at(self.stored_phase, self.ponr_deadline, self.grace_ms, datetime.now(self.read_at.tzinfo))",
        "tests/protocol/test_replay.py",
    ),
    Mutant(
        "abandoned before its grace is over",
        BACKGROUND,
        "            AND i.ponr_deadline + i.grace_ms * interval '1 millisecond' <= now()\n",
        "",
        "tests/store/test_expiry.py",
    ),
    Mutant(
        "no re-read of one's own claim after a lost acknowledgement",
        "gateway/store/intents.py",
        "                row = await self._own_claim.submit(claim)",
        "                row = None",
        "tests/store/test_lost_acknowledgements.py",
    ),
    Mutant(
        "one's own claim although it was taken over",
        INTENTS,
        "WHERE a.attempt_id IS NOT NULL OR i.execution = 'async';",
        "WHERE true;",
        "tests/store/test_lost_acknowledgements.py",
    ),
    # --- outcomes (REC-1, REC-9, P2-4)
    Mutant(
        "no fence in the settlement",
        INTENTS,
        "AND i.fence = t.fence AND i.phase = 'PROCESSING'\n    RETURNING",
        "AND i.phase = 'PROCESSING'\n    RETURNING",
        "tests/store/test_claims.py",
    ),
    Mutant(
        "answered before it is durable",
        SETTLE,
        "        ours = await desk.intents.settle(settlement)\n    except StoreAway:\n",
        '        desk.spawn(desk.intents.settle(settlement), "settle")\n        ours = True\n    except StoreAway:\n',
        "tests/e2e/test_operations.py -k kept_until",
    ),
    Mutant(
        "a success that is not durable after five seconds",
        SETTLE,
        '        except TimeoutError:\n            return voice.in_doubt(server_id, path, "reset")',
        "        except TimeoutError:\n            return answer",
        "tests/e2e/test_operations.py -k kept_until",
    ),
    Mutant(
        "a 502 is a failure",
        "gateway/protocol/outcome.py",
        "    if status in in_doubt_statuses:",
        "    if status in in_doubt_statuses and status != 502:",
        "tests/protocol/test_outcome.py",
    ),
    Mutant(
        "a reset after sending is a failure",
        "gateway/protocol/outcome.py",
        "    if sent:\n        return Doubtful",
        '    if sent and kind != "reset":\n        return Doubtful',
        "tests/protocol/test_outcome.py",
    ),
    Mutant(
        "a 2xx for what is in doubt",
        VOICES,
        "        answer = problems.to_answer(problems.in_doubt(kind))\n",
        "        answer = problems.to_answer(problems.in_doubt(kind))\n        answer.status = 200\n",
        "tests/e2e/test_direct.py -k doubt",
    ),
    Mutant(
        "the payload is erased on doubt",
        INTENTS,
        ")\nSELECT logical_key FROM doubted;",
        "), erased AS (DELETE FROM payloads p USING doubted d WHERE p.logical_key = d.logical_key)"
        "\nSELECT logical_key FROM doubted;",
        MACHINE,
    ),
    # --- sending (REC-1, REC-4, REC-8)
    Mutant(
        "no look at the lease before the first byte",
        EXECUTE,
        "        return self._desk.lease.surely_held(self._attempt.holder)",
        "        return True",
        "tests/e2e/test_crash.py -k frozen",
    ),
    Mutant(
        "a lease is surely held for longer than it was asked for",
        "gateway/store/leases.py",
        "        return (holder is None or holder == self.holder) and self._clock() < self._sure_until",
        "        return (holder is None or holder == self.holder) and self._clock() < self._sure_until + 5",
        "tests/store/test_rescue.py",
    ),
    Mutant(
        "an older name's work is still one's own",
        "gateway/store/leases.py",
        "        return (holder is None or holder == self.holder) and self._clock() < self._sure_until",
        "        return self._clock() < self._sure_until",
        "tests/store/test_rescue.py",
    ),
    Mutant(
        "sent twice when the connection is lost",
        "gateway/upstream/client.py",
        "            exchange.abort()\n            raise\n",
        "            exchange.abort()\n"
        "            return await self.open(method, target, headers, body, timeout_s=1, read_timeout_s=1)\n",
        "tests/upstream/test_at_most_once.py",
    ),
    # --- taking over (REC-1, DESIGN decision 7)
    Mutant(
        "the rescuer does not wait a lease after a reconnect",
        "gateway/store/sweeps.py",
        "        return await self.line.fetch_unbroken(self._lease_ms / 1000, SQL[name], *args)",
        "        return await self.line.fetch(SQL[name], *args)",
        "tests/store/test_rescue.py",
    ),
    Mutant(
        "nor after the server's start",
        BACKGROUND,
        "lease_until < now() AND pg_postmaster_start_time() < now() - $1::bigint * interval '1 millisecond'",
        "lease_until < now() AND $1::bigint > 0",
        "tests/store/test_rescue.py",
    ),
    Mutant(
        "a rescue without a higher fence",
        BACKGROUND,
        "UPDATE intents i SET fence = i.fence + 1\n    FROM lost l",
        "UPDATE intents i SET fence = i.fence\n    FROM lost l",
        "tests/store/test_rescue.py",
    ),
    Mutant(
        "the dead renew their lease",
        BACKGROUND,
        "WHERE holder = $1 AND NOT dead\nRETURNING true;",
        "WHERE holder = $1\nRETURNING true;",
        "tests/store/test_rescue.py",
    ),
    Mutant(
        "a redrive by whoever looked once",
        RECOVERY,
        "WHERE d.bucket = $1 AND d.logical_key = $2 AND d.next_at = $4 FOR UPDATE",
        "WHERE d.bucket = $1 AND d.logical_key = $2 AND $4::timestamptz IS NOT NULL FOR UPDATE",
        "tests/store/test_recovery.py " + MACHINE,
    ),
    Mutant(
        "evidence overrides a later send",
        RECOVERY,
        "a.fence > p.fence AND a.sent IS NOT FALSE)\n    RETURNING",
        "a.fence > p.fence AND false)\n    RETURNING",
        "tests/store/test_evidence.py",
    ),
    Mutant(
        "a probe's no counts at once",
        "gateway/flows/recover.py",
        "        case recovery.No(reason=reason) if probe.ripe:",
        "        case recovery.No(reason=reason):",
        "tests/e2e/test_probe.py -k not_before_nothing",
    ),
    Mutant(
        "a repeat's 5xx settles",
        "gateway/protocol/recovery.py",
        "    if status >= 500 or status in TELLS_NOTHING",
        "    if status in TELLS_NOTHING",
        "tests/e2e/test_redrive.py -k settles_only",
    ),
    # --- keys and callers (P1-5, P1-6, P1-8, SEC-2, RPL-2, RPL-4)
    Mutant(
        "one key for all callers",
        "gateway/protocol/identity.py",
        'digest = _digest(b"logical", service, caller, client_correlation_id)',
        'digest = _digest(b"logical", service, client_correlation_id)',
        "tests/protocol/test_identity.py",
    ),
    Mutant(
        "another request under the same id",
        "gateway/protocol/replay.py",
        "    if existing.replay_key != replay_key:\n        return Refuse(problems.key_reused())",
        '    if existing.replay_key == b"":\n        return Refuse(problems.key_reused())',
        "tests/protocol/test_replay.py",
    ),
    Mutant(
        "an executed intent answers 408 after its TTL",
        "gateway/protocol/replay.py",
        "    if phase in EXECUTED:\n        return ReturnStored(intent)",
        "    if phase in EXECUTED and intent.read_at < intent.ponr_deadline:\n        return ReturnStored(intent)",
        "tests/protocol/test_replay.py",
    ),
    Mutant(
        "one pending intent too many",
        INTENTS,
        "LIMIT g.max_pending) AS cheap) <= g.max_pending - g.rows",
        "LIMIT g.max_pending) AS cheap) <= g.max_pending - g.rows + 1",
        "tests/store/test_pending.py",
    ),
    Mutant(
        "a key twice in one batch",
        "gateway/store/batches.py",
        "            elif row.key.logical in batch:\n                later.append(waiting)\n",
        '            elif row.key.logical in batch:\n                batch[row.key.logical + b"x"] = waiting\n',
        "tests/store/test_batches.py",
    ),
    Mutant(
        "a key is free before its horizon",
        BACKGROUND,
        "        AND i.settled_at + i.horizon_ms * interval '1 millisecond' < now()\n",
        "",
        "tests/store/test_expiry.py",
    ),
    Mutant(
        "a poll by anybody",
        "gateway/flows/look.py",
        "    if intent.caller != caller:",
        '    if intent.caller == b"":',
        "tests/e2e/test_in_doubt.py -k another_caller",
    ),
    # --- callbacks (ACM-2 .. ACM-4)
    Mutant(
        "the callback's row is not in the transaction",
        "gateway/store/sql/direct.sql",
        "WHERE t.id IS NOT NULL AND",
        "WHERE t.id IS NULL AND",
        "tests/e2e/test_callbacks.py -k tells_that_the_ponr",
    ),
    Mutant(
        "callbacks signed with nothing of theirs",
        "gateway/delivery/signing.py",
        "hook.sign(name, at, text) for hook in hooks",
        'hook.sign(name, at, "") for hook in hooks',
        "tests/delivery/test_signing.py",
    ),
    Mutant(
        "callbacks to anywhere",
        "gateway/delivery/guard.py",
        "        return None if self._in_allowed_network(address) else not_public(address)",
        "        return None",
        "tests/delivery/test_guard.py tests/delivery/test_sender.py",
    ),
    # --- late confirmations (RPL-3, SEC-3, REP-2)
    Mutant(
        "a late confirmation under REJECT",
        "gateway/store/sql/replay.sql",
        "AND i.replay_policy = 'REUSE' AND i.ponr_deadline <= now()",
        "AND i.ponr_deadline <= now()",
        "tests/store/test_late_claims.py",
    ),
    Mutant(
        "a late confirmation after delta",
        "gateway/store/sql/replay.sql",
        "        AND now() < i.ponr_deadline + i.grace_ms * interval '1 millisecond'\n",
        "",
        "tests/store/test_late_claims.py",
    ),
    Mutant(
        "a nonce that is not consumed",
        "gateway/store/sql/replay.sql",
        "SELECT $1, $9, logical_key, attempt_id, now() FROM claimed",
        "SELECT $1, $9, logical_key, attempt_id, now() FROM claimed WHERE false",
        "tests/store/test_late_claims.py",
    ),
    Mutant(
        "a signature that nobody verifies",
        "gateway/ingress/signatures.py",
        "            verifier.verify(message, max_age=None)",
        "            pass",
        "tests/ingress/test_signatures.py",
    ),
)
