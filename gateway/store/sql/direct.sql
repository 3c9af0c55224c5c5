-- name: begin
-- ACM-1: a request that needs no confirmation: registered and past the PONR in one transaction, with its attempt and, if it
-- asked for one, its callback (ACM-2). WAITING_CONFIRM is superseded within the statement; the audit trail shows both. Returns
-- the keys that were inserted; a key that is missing was consumed before (ACM-5).
WITH input AS (
    SELECT * FROM unnest(
        $2::bytea[], $3::uuid[], $4::text[], $5::bytea[], $6::bytea[], $7::text[], $8::bytea[], $9::bytea[], $10::text[],
        $11::text[], $12::text[], $13::bytea[], $14::bigint[], $15::bigint[], $16::bigint[], $17::bigint[],
        $18::bytea[], $19::smallint[], $20::uuid[], $21::uuid[], $22::uuid[], $23::bytea[], $24::bigint[], $25::bigint[]
    ) AS t (
        logical_key, server_correlation_id, client_correlation_id, replay_key, caller, method, path, query, route,
        replay_policy, transaction_reference, payload_sha256, payload_bytes, ttl_ms, grace_ms, horizon_ms,
        sealed, sealed_with, attempt_id, holder, delivery_id, delivery_sealed, delivery_lease_ms,
        delivery_host)
), begun AS (
    INSERT INTO intents (
        bucket, logical_key, server_correlation_id, client_correlation_id, replay_key, caller, source, method, path, query,
        route, execution, replay_policy, parent_reference_id, transaction_reference, payload_sha256, payload_bytes,
        ttl_ms, grace_ms, horizon_ms, phase_1_timestamp, ponr_deadline, keep_until,
        phase, came_from, phase_2_timestamp, fence, attempt_id)
    SELECT
        $1, t.logical_key, t.server_correlation_id, t.client_correlation_id, t.replay_key, t.caller, $26, t.method, t.path, t.query,
        t.route, 'sync', t.replay_policy, t.client_correlation_id, t.transaction_reference, t.payload_sha256, t.payload_bytes,
        t.ttl_ms, t.grace_ms, t.horizon_ms, now(), now() + t.ttl_ms * interval '1 millisecond',
        now() + (t.ttl_ms + t.horizon_ms) * interval '1 millisecond',
        'PROCESSING', 'WAITING_CONFIRM', now(), 1, t.attempt_id
    FROM input t
    ON CONFLICT (logical_key, bucket) DO NOTHING
    RETURNING logical_key, attempt_id
), won AS MATERIALIZED (
    SELECT array_agg(logical_key) AS keys FROM begun
), paid AS (
    INSERT INTO payloads (bucket, logical_key, pending_of, ponr_deadline, sealed_with, sealed)
    SELECT $1, t.logical_key, 0, now() + t.ttl_ms * interval '1 millisecond', t.sealed_with, t.sealed
    FROM input t
    WHERE t.sealed IS NOT NULL AND t.logical_key = ANY ((SELECT keys FROM won)::bytea[])
), attempted AS (
    INSERT INTO attempts (bucket, logical_key, number, attempt_id, fence, started_at, holder)
    SELECT $1, t.logical_key, 1, t.attempt_id, 1, now(), t.holder
    FROM input t
    WHERE t.logical_key = ANY ((SELECT keys FROM won)::bytea[])
), promised AS (
    INSERT INTO deliveries (bucket, logical_key, id, kind, event, host, next_at, sealed_with, sealed)
    SELECT $1, t.logical_key, t.delivery_id, 'callback', 'PROCESSING', t.delivery_host,
        now() + t.delivery_lease_ms * interval '1 millisecond', t.sealed_with, t.delivery_sealed
    FROM input t
    WHERE t.delivery_id IS NOT NULL AND t.logical_key = ANY ((SELECT keys FROM won)::bytea[])
), audited AS (
    INSERT INTO events (bucket, logical_key, code, phase)
    SELECT $1, b.logical_key, e.code, e.phase::phase
    FROM begun b
    CROSS JOIN (VALUES (1, 'OBL-001', 'WAITING_CONFIRM'), (2, 'PONR', 'PROCESSING')) AS e (ord, code, phase)
    ORDER BY b.logical_key, e.ord
)
SELECT logical_key FROM begun;

-- name: payload_passed_on
-- A payload that was too large to keep was passed on as it came; this is what it was.
UPDATE intents SET payload_sha256 = $3, payload_bytes = $4
WHERE bucket = $1 AND logical_key = $2 AND payload_sha256 IS NULL;
