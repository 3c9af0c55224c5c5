-- name: begin
-- ACM-1: a request that needs no confirmation: registered and past the PONR in one transaction, with its attempt.
-- WAITING_CONFIRM is superseded within the statement; the audit trail shows both. Returns the keys that were inserted; a key
-- that is missing was consumed before (ACM-5).
WITH input AS (
    SELECT * FROM unnest(
        $3::bytea[], $4::uuid[], $5::text[], $6::bytea[], $7::bytea[], $8::text[], $9::bytea[], $10::bytea[], $11::text[],
        $12::text[], $13::text[], $14::bytea[], $15::bigint[], $16::bigint[], $17::bigint[], $18::bigint[],
        $19::uuid[], $20::uuid[]
    ) AS t (
        logical_key, server_correlation_id, client_correlation_id, replay_key, caller, method, path, query, route,
        replay_policy, transaction_reference, payload_sha256, payload_bytes, ttl_ms, grace_ms, horizon_ms,
        attempt_id, holder)
), begun AS (
    INSERT INTO intents (
        bucket, logical_key, server_correlation_id, client_correlation_id, replay_key, caller, source, method, path, query,
        route, execution, replay_policy, parent_reference_id, transaction_reference, payload_sha256, payload_bytes,
        ttl_ms, grace_ms, horizon_ms, phase_1_timestamp, ponr_deadline, keep_until,
        phase, came_from, phase_2_timestamp, fence, attempt_id)
    SELECT
        $1, t.logical_key, t.server_correlation_id, t.client_correlation_id, t.replay_key, t.caller, $2, t.method, t.path, t.query,
        t.route, 'sync', t.replay_policy, t.client_correlation_id, t.transaction_reference, t.payload_sha256, t.payload_bytes,
        t.ttl_ms, t.grace_ms, t.horizon_ms, now(), now() + t.ttl_ms * interval '1 millisecond',
        now() + (t.ttl_ms + t.horizon_ms) * interval '1 millisecond',
        'PROCESSING', 'WAITING_CONFIRM', now(), 1, t.attempt_id
    FROM input t
    ON CONFLICT (logical_key, bucket) DO NOTHING
    RETURNING logical_key
), won AS MATERIALIZED (
    SELECT array_agg(logical_key) AS keys FROM begun
), attempted AS (
    INSERT INTO attempts (bucket, logical_key, number, attempt_id, fence, started_at, holder)
    SELECT $1, t.logical_key, 1, t.attempt_id, 1, now(), t.holder
    FROM input t
    WHERE t.logical_key = ANY ((SELECT keys FROM won)::bytea[])
), audited AS (
    INSERT INTO events (bucket, logical_key, code, phase)
    SELECT $1, b.logical_key, e.code, e.phase::phase
    FROM begun b
    CROSS JOIN (VALUES (1, 'OBL-001', 'WAITING_CONFIRM'), (2, 'PONR', 'PROCESSING')) AS e (ord, code, phase)
    ORDER BY b.logical_key, e.ord
)
SELECT logical_key FROM begun;

-- name: begin_paid
-- A step of `begin` where the request may have to be sent or asked about again (REC-2): its payload is kept. It is past its PONR:
-- never due for expiry, never pending.
paid AS (
    INSERT INTO payloads (bucket, logical_key, pending_of, ponr_deadline, sealed_with, sealed)
    SELECT $1, t.logical_key, 0, 'infinity', t.sealed_with, t.sealed
    FROM unnest($3::bytea[], {}::smallint[], {}::bytea[]) AS t (logical_key, sealed_with, sealed)
    WHERE t.sealed IS NOT NULL AND t.logical_key = ANY ((SELECT keys FROM won)::bytea[])
);

-- name: begin_promised
-- A step of `begin` for requests that asked for a callback (ACM-2).
promised AS (
    INSERT INTO deliveries (bucket, logical_key, id, kind, event, host, next_at, leased_until, sealed_with, sealed)
    SELECT $1, t.logical_key, t.id, 'callback', 'PROCESSING', t.host,
        now() + t.lease_ms * interval '1 millisecond', now() + t.lease_ms * interval '1 millisecond',
        t.sealed_with, t.sealed
    FROM unnest($3::bytea[], {}::uuid[], {}::bigint[], {}::bigint[], {}::smallint[], {}::bytea[])
        AS t (logical_key, id, host, lease_ms, sealed_with, sealed)
    WHERE t.id IS NOT NULL AND t.logical_key = ANY ((SELECT keys FROM won)::bytea[])
);

-- name: payload_passed_on
-- A payload that was too large to keep was passed on as it came; this is what it was.
UPDATE intents SET payload_sha256 = $3, payload_bytes = $4
WHERE bucket = $1 AND logical_key = $2 AND payload_sha256 IS NULL;
