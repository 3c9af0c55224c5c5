-- name: claim_late
-- RPL-3: crosses the PONR after the deadline, before the deadline + delta on this server's clock, on an intent that is under
-- REUSE and not cleaned up; consumes the nonce that authorizes it in the same transaction (REP-2). A nonce consumed before
-- fails the whole statement (nonces_single_use): then nothing has changed. Asked for only when `claim` found nothing.
-- An intent whose expiry nobody has swept yet expires here first, so that the trail says what happened (FSM-1, FSM-2).
WITH found AS (
    SELECT i.logical_key, i.phase FROM intents i
    WHERE i.bucket = $1 AND i.logical_key = $2 AND i.server_correlation_id = $3 AND i.path = $4
        AND i.phase IN ('WAITING_CONFIRM', 'TTL_EXPIRED')
    FOR UPDATE
), claimed AS (
    UPDATE intents i
    SET came_from = CASE i.phase WHEN 'WAITING_CONFIRM' THEN 'TTL_EXPIRED' ELSE i.phase END, phase = 'PROCESSING',
        phase_2_timestamp = now(), fence = i.fence + 1, attempt_id = $5
    FROM found f
    WHERE i.bucket = $1 AND i.logical_key = f.logical_key AND i.phase IN ('WAITING_CONFIRM', 'TTL_EXPIRED')
        AND i.replay_policy = 'REUSE' AND i.ponr_deadline <= now()
        AND now() < i.ponr_deadline + i.grace_ms * interval '1 millisecond'
    RETURNING i.logical_key, i.fence, i.method, i.path, i.query, i.execution, i.attempt_id, f.phase AS swept
), spent AS (
    INSERT INTO nonces (bucket, nonce, logical_key, attempt_id, consumed_at)
    SELECT $1, $9, logical_key, attempt_id, now() FROM claimed
), attempted AS (
    INSERT INTO attempts (bucket, logical_key, number, attempt_id, fence, started_at, holder)
    SELECT $1, logical_key, 1, attempt_id, fence, now(), $6 FROM claimed WHERE execution = 'sync'
), queued AS (
    INSERT INTO queue (bucket, logical_key, queued_at, sealed_with, sealed)
    SELECT $1, logical_key, now(), $8, $7 FROM claimed WHERE execution = 'async'
), audited AS (
    INSERT INTO events (bucket, logical_key, code, phase, detail)
    SELECT $1, c.logical_key, e.code, e.phase::phase, e.detail::jsonb
    FROM claimed c
    CROSS JOIN (VALUES (1, 'OBL-004', 'TTL_EXPIRED', NULL), (2, 'PONR', 'PROCESSING', '{"late": true}'))
        AS e (place, code, phase, detail)
    WHERE e.phase = 'PROCESSING' OR c.swept = 'WAITING_CONFIRM'
    ORDER BY e.place
)
SELECT c.logical_key, c.fence, c.method, c.path, c.query, c.execution, p.sealed, p.sealed_with
FROM claimed c JOIN payloads p ON p.bucket = $1 AND p.logical_key = c.logical_key;

-- name: consumed
-- REP-2: whether another attempt has consumed a nonce, in any bucket. `claim_late` sees its own bucket alone, so this is asked
-- first where there are several.
SELECT attempt_id FROM nonces WHERE nonce = $1 AND attempt_id <> $2 LIMIT 1;
