-- name: register
-- P1-3: intent (the ledger row), payload and audit event in one transaction, for a batch of one bucket. Returns the rows that
-- were inserted; a key that is missing from the result was either consumed before (P1-5) or past its limit (P1-8).
-- $2, $3 and $4 are the distinct (caller, route) groups of the batch, their limits and their rows in it; `grp` is a row's.
WITH room AS MATERIALIZED (
    SELECT ARRAY(
        SELECT CASE
            WHEN (SELECT count(*) FROM (
                    SELECT FROM payloads p
                    WHERE p.bucket = $1 AND p.pending_of = g.pending_of AND p.ponr_deadline > now()
                    LIMIT g.max_pending) AS cheap) <= g.max_pending - g.rows
            THEN g.rows
            ELSE g.max_pending - (SELECT count(*) FROM (
                    SELECT FROM payloads p
                    JOIN intents i ON i.bucket = $1 AND i.logical_key = p.logical_key AND i.phase = 'WAITING_CONFIRM'
                    WHERE p.bucket = $1 AND p.pending_of = g.pending_of AND p.ponr_deadline > now()
                    LIMIT g.max_pending) AS exact)
            END
        FROM unnest($2::bigint[], $3::integer[], $4::integer[]) WITH ORDINALITY AS g (pending_of, max_pending, rows, ord)
        ORDER BY g.ord
    ) AS free
), placed AS MATERIALIZED (
    -- Where a group does not fit whole, its places go to keys that are new: a repeat takes none.
    SELECT ARRAY(
        SELECT n.logical_key FROM (
            SELECT t.logical_key, t.grp, row_number() OVER (PARTITION BY t.grp ORDER BY t.logical_key) AS place
            FROM unnest($6::bytea[], $25::integer[]) AS t (logical_key, grp)
            WHERE (SELECT free FROM room)[t.grp] < ($4::integer[])[t.grp]
                AND NOT EXISTS (SELECT FROM intents i WHERE i.bucket = $1 AND i.logical_key = t.logical_key)) AS n
        WHERE n.place <= (SELECT free FROM room)[n.grp]
    ) AS keys
), input AS (
    SELECT * FROM unnest(
        $6::bytea[], $7::uuid[], $8::text[], $9::bytea[], $10::bytea[], $11::text[], $12::bytea[], $13::bytea[], $14::text[],
        $15::text[], $16::text[], $17::text[], $18::bytea[], $19::bigint[], $20::bigint[], $21::bigint[], $22::bigint[],
        $23::bytea[], $24::smallint[], $25::integer[]
    ) AS t (
        logical_key, server_correlation_id, client_correlation_id, replay_key, caller, method, path, query, route,
        execution, replay_policy, transaction_reference, payload_sha256, payload_bytes, ttl_ms, grace_ms, horizon_ms,
        sealed, sealed_with, grp)
), registered AS (
    INSERT INTO intents (
        bucket, logical_key, server_correlation_id, client_correlation_id, replay_key, caller, source, method, path, query,
        route, execution, replay_policy, parent_reference_id, transaction_reference, payload_sha256, payload_bytes,
        ttl_ms, grace_ms, horizon_ms, phase_1_timestamp, ponr_deadline, keep_until)
    SELECT
        $1, t.logical_key, t.server_correlation_id, t.client_correlation_id, t.replay_key, t.caller, $5, t.method, t.path, t.query,
        t.route, t.execution, t.replay_policy, t.client_correlation_id, t.transaction_reference, t.payload_sha256, t.payload_bytes,
        t.ttl_ms, t.grace_ms, t.horizon_ms, now(), now() + t.ttl_ms * interval '1 millisecond',
        now() + (t.ttl_ms + t.horizon_ms) * interval '1 millisecond'
    FROM input t
    WHERE (SELECT free FROM room)[t.grp] >= ($4::integer[])[t.grp]
        OR t.logical_key = ANY ((SELECT keys FROM placed)::bytea[])
    ON CONFLICT (logical_key, bucket) DO NOTHING
    RETURNING logical_key, phase_1_timestamp, ponr_deadline
), won AS MATERIALIZED (
    SELECT array_agg(logical_key) AS keys FROM registered
), paid AS (
    INSERT INTO payloads (bucket, logical_key, pending_of, ponr_deadline, sealed_with, sealed)
    SELECT $1, t.logical_key, ($2::bigint[])[t.grp], now() + t.ttl_ms * interval '1 millisecond', t.sealed_with, t.sealed
    FROM input t
    WHERE t.logical_key = ANY ((SELECT keys FROM won)::bytea[])
), audited AS (
    INSERT INTO events (bucket, logical_key, code, phase)
    SELECT $1, logical_key, 'OBL-001', 'WAITING_CONFIRM' FROM registered
)
SELECT logical_key, phase_1_timestamp, ponr_deadline FROM registered;

-- name: claim
-- P2-2: crosses the PONR, once, before the deadline on this server's clock, and creates the attempt, or on an asynchronous
-- route the queue's row (ASY-1). Returns the rows it claimed, with the sealed request.
WITH claimed AS (
    UPDATE intents i
    SET came_from = i.phase, phase = 'PROCESSING', phase_2_timestamp = now(), fence = i.fence + 1, attempt_id = t.attempt_id
    FROM unnest($2::bytea[], $3::uuid[], $4::bytea[], $5::uuid[], $6::uuid[], $7::bytea[], $8::smallint[])
        AS t (logical_key, server_correlation_id, path, attempt_id, holder, credentials, credentials_with)
    WHERE i.bucket = $1 AND i.logical_key = t.logical_key AND i.server_correlation_id = t.server_correlation_id
        AND i.path = t.path AND i.phase = 'WAITING_CONFIRM' AND now() < i.ponr_deadline
    RETURNING i.logical_key, i.fence, i.method, i.path, i.query, i.execution, i.attempt_id, t.holder,
        t.credentials, t.credentials_with
), attempted AS (
    INSERT INTO attempts (bucket, logical_key, number, attempt_id, fence, started_at, holder)
    SELECT $1, logical_key, 1, attempt_id, fence, now(), holder FROM claimed WHERE execution = 'sync'
), queued AS (
    INSERT INTO queue (bucket, logical_key, queued_at, sealed_with, sealed)
    SELECT $1, logical_key, now(), credentials_with, credentials FROM claimed WHERE execution = 'async'
), audited AS (
    INSERT INTO events (bucket, logical_key, code, phase)
    SELECT $1, logical_key, 'PONR', 'PROCESSING' FROM claimed
)
SELECT c.logical_key, c.fence, c.method, c.path, c.query, c.execution, p.sealed, p.sealed_with
FROM claimed c JOIN payloads p ON p.bucket = $1 AND p.logical_key = c.logical_key;

-- name: own_claim
-- REC-7: what these attempts have claimed, for a claim whose acknowledgement was lost; only while the attempt is its holder's
-- and its fence stands: what a rescuer has taken over is not to be sent. (IS NOT DISTINCT FROM keeps the planner from walking
-- everything that the holder has.) Asynchronous work is begun from the queue, whoever confirmed it.
SELECT i.logical_key, i.fence, i.method, i.path, i.query, i.execution, p.sealed, p.sealed_with
FROM unnest($2::bytea[], $3::uuid[], $4::uuid[]) AS t (logical_key, attempt_id, holder)
JOIN intents i ON i.bucket = $1 AND i.logical_key = t.logical_key AND i.attempt_id = t.attempt_id AND i.phase = 'PROCESSING'
JOIN payloads p ON p.bucket = $1 AND p.logical_key = t.logical_key
LEFT JOIN attempts a ON a.bucket = $1 AND a.logical_key = t.logical_key AND a.attempt_id = t.attempt_id AND a.fence = i.fence
    AND a.holder IS NOT DISTINCT FROM t.holder
WHERE a.attempt_id IS NOT NULL OR i.execution = 'async';

-- name: settle
-- P2-4: the outcome, the answer, the end of the attempt and the audit event, guarded by the fence (REC-1). Returns the keys it
-- settled.
WITH settled AS (
    UPDATE intents i
    SET came_from = i.phase, phase = t.phase::phase, settled_at = now(), settled_by = 'upstream',
        resource_id = t.resource_id, message = t.message
    FROM unnest(
        $2::bytea[], $3::integer[], $4::text[], $5::text[], $6::text[], $7::boolean[], $8::smallint[], $9::text[],
        $10::bigint[], $11::bytea[], $12::boolean[], $13::smallint[], $14::bytea[]
    ) AS t (
        logical_key, fence, phase, resource_id, message, sent, status, error,
        body_bytes, body_sha256, kept, sealed_with, sealed)
    WHERE i.bucket = $1 AND i.logical_key = t.logical_key AND i.fence = t.fence AND i.phase = 'PROCESSING'
    RETURNING i.logical_key, i.fence, i.phase, t.sent, t.status, t.error,
        t.body_bytes, t.body_sha256, t.kept, t.sealed_with, t.sealed
), ended AS (
    UPDATE attempts a
    SET holder = NULL, ended_at = now(), sent = s.sent, status = s.status, error = s.error
    FROM settled s
    WHERE a.bucket = $1 AND a.logical_key = s.logical_key AND a.fence = s.fence
), answered AS (
    INSERT INTO responses (bucket, logical_key, status, body_bytes, body_sha256, kept, sealed_with, sealed)
    SELECT $1, logical_key, status, body_bytes, body_sha256, kept, sealed_with, sealed FROM settled WHERE sealed IS NOT NULL
), audited AS (
    INSERT INTO events (bucket, logical_key, code, phase)
    SELECT $1, logical_key, CASE phase WHEN 'COMMITTED' THEN 'OBL-002' ELSE 'OBL-003' END, phase FROM settled
)
SELECT logical_key FROM settled;

-- name: settle_erased
-- A step of `settle` where a payload was kept: it will never be sent again (TTL-2).
erased AS (
    DELETE FROM payloads p USING settled s WHERE p.bucket = $1 AND p.logical_key = s.logical_key
);

-- name: settle_to_verify
-- A step of `settle` where a GET must confirm the outcome (REC-5).
to_verify AS (
    INSERT INTO verifications (bucket, logical_key, sealed_with, sealed)
    SELECT $1, s.logical_key, v.sealed_with, v.sealed
    FROM settled s
    JOIN unnest($2::bytea[], {}::smallint[], {}::bytea[]) AS v (logical_key, sealed_with, sealed)
        ON v.logical_key = s.logical_key
);

-- name: doubt
-- REC-2: the attempt ended without an answer and may have taken effect. The intent stays PROCESSING; its payload stays too.
WITH doubted AS (
    SELECT i.logical_key, i.fence, t.sent, t.status, t.reason
    FROM unnest($2::bytea[], $3::integer[], $4::boolean[], $5::smallint[], $6::text[])
        AS t (logical_key, fence, sent, status, reason)
    JOIN intents i ON i.bucket = $1 AND i.logical_key = t.logical_key AND i.fence = t.fence AND i.phase = 'PROCESSING'
    FOR UPDATE OF i
), ended AS (
    UPDATE attempts a
    SET holder = NULL, ended_at = now(), sent = d.sent, status = d.status, error = d.reason
    FROM doubted d
    WHERE a.bucket = $1 AND a.logical_key = d.logical_key AND a.fence = d.fence AND a.holder IS NOT NULL
    RETURNING a.logical_key
), held AS (
    INSERT INTO in_doubt (bucket, logical_key, since, reason)
    SELECT $1, d.logical_key, now(), d.reason FROM doubted d JOIN ended e ON e.logical_key = d.logical_key
    ON CONFLICT (logical_key, bucket) DO NOTHING
), audited AS (
    INSERT INTO events (bucket, logical_key, code, detail)
    SELECT $1, d.logical_key, 'IN_DOUBT', jsonb_build_object('reason', d.reason)
    FROM doubted d JOIN ended e ON e.logical_key = d.logical_key
)
SELECT logical_key FROM doubted;

-- name: read_by_key
-- What is known of these intents now.
SELECT i.logical_key, i.server_correlation_id, i.client_correlation_id, i.replay_key, i.caller, i.method, i.path, i.query,
    i.execution, i.replay_policy, i.ttl_ms, i.grace_ms, i.phase::text AS phase, i.phase_1_timestamp, i.ponr_deadline, i.fence,
    i.attempt_id, i.resource_id, i.message, d.reason AS in_doubt, now() AS read_at
FROM unnest($2::bytea[]) AS t (logical_key)
JOIN intents i ON i.bucket = $1 AND i.logical_key = t.logical_key
LEFT JOIN in_doubt d ON d.bucket = $1 AND d.logical_key = i.logical_key;

-- name: read_by_server_id
-- P2-7, ASY-2: the same, by server correlation ID.
SELECT i.server_correlation_id, i.logical_key, i.client_correlation_id, i.replay_key, i.caller, i.method, i.path, i.query,
    i.execution, i.replay_policy, i.ttl_ms, i.grace_ms, i.phase::text AS phase, i.phase_1_timestamp, i.ponr_deadline, i.fence,
    i.attempt_id, i.resource_id, i.message, d.reason AS in_doubt, now() AS read_at
FROM unnest($2::uuid[]) AS t (server_correlation_id)
JOIN intents i ON i.bucket = $1 AND i.server_correlation_id = t.server_correlation_id
LEFT JOIN in_doubt d ON d.bucket = $1 AND d.logical_key = i.logical_key;

-- name: read_response
-- RPL-1: the stored answers.
SELECT r.logical_key, r.status, r.kept, r.body_bytes, r.body_sha256, r.sealed, r.sealed_with
FROM unnest($2::bytea[]) AS t (logical_key)
JOIN responses r ON r.bucket = $1 AND r.logical_key = t.logical_key;

-- name: pending
-- P1-8: unconfirmed intents of one caller on one route, counted no further than the limit, over every bucket.
SELECT count(*) AS pending FROM (
    SELECT FROM payloads p
    JOIN intents i ON i.bucket = p.bucket AND i.logical_key = p.logical_key AND i.phase = 'WAITING_CONFIRM'
    WHERE p.pending_of = $1 AND p.ponr_deadline > now()
    LIMIT $2) AS waiting;

-- name: streamed
-- RPL-6: an answer that was streamed has come to its end; it is kept after all if it stayed small.
UPDATE responses SET body_bytes = $3, body_sha256 = $4, kept = $5::bytea IS NOT NULL,
    sealed = coalesce($5::bytea, sealed), sealed_with = coalesce($6::smallint, sealed_with)
WHERE bucket = $1 AND logical_key = $2 AND NOT kept AND body_bytes IS NULL;

-- name: note
-- An audit event that is no transition: evidence, a refusal, an answer that was cut.
INSERT INTO events (bucket, logical_key, code, detail) VALUES ($1, $2, $3, $4::text::jsonb);
