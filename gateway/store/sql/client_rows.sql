-- name: open
-- COR-4: the client's rows of calls that are about to be made, durable before anything is sent. An abandoned one had no effect
-- and may be tried again. Returns those that are open now and were not before.
WITH opened AS (
    INSERT INTO client_entries AS c (
        bucket, logical_key, client_correlation_id, source, target, method, path, parent_reference_id, transaction_reference,
        phase_1_timestamp, keep_until)
    SELECT $1, t.logical_key, t.client_correlation_id, $9, t.target, t.method, t.path, t.parent_reference_id,
        t.transaction_reference, now(), now() + interval '7 days'
    FROM unnest($2::bytea[], $3::text[], $4::text[], $5::text[], $6::bytea[], $7::text[], $8::text[])
        AS t (logical_key, client_correlation_id, target, method, path, parent_reference_id, transaction_reference)
    ON CONFLICT (logical_key, bucket) DO UPDATE SET phase = 'WAITING_CONFIRM', settled_at = NULL, phase_2_timestamp = NULL
    WHERE c.phase = 'ABANDONED' AND c.target = excluded.target AND c.method = excluded.method AND c.path = excluded.path
    RETURNING logical_key
), audited AS (
    INSERT INTO events (bucket, logical_key, code, phase)
    SELECT $1, logical_key, 'OBL-001', 'WAITING_CONFIRM' FROM opened
)
SELECT logical_key FROM opened;

-- name: read
-- A call that was registered before.
SELECT target, method, path, phase::text AS phase FROM client_entries WHERE bucket = $1 AND logical_key = $2;

-- name: move
-- What was learnt of calls: a later phase, or (null) that the outcome is in doubt. What is over stays as it is, and nothing
-- goes back. Returns the rows that changed.
WITH moved AS (
    UPDATE client_entries c
    SET phase = coalesce(t.phase::phase, c.phase),
        server_correlation_id = coalesce(c.server_correlation_id, t.server_correlation_id),
        ttl_ms = coalesce(c.ttl_ms, t.ttl_ms),
        phase_2_timestamp = CASE WHEN t.phase = 'PROCESSING' THEN now() ELSE c.phase_2_timestamp END,
        settled_at = CASE WHEN t.phase <> 'PROCESSING' THEN now() END,
        in_doubt_since = CASE WHEN t.in_doubt THEN now() END
    FROM unnest($2::bytea[], $3::text[], $4::text[], $5::bigint[], $6::boolean[])
        AS t (logical_key, phase, server_correlation_id, ttl_ms, in_doubt)
    WHERE c.bucket = $1 AND c.logical_key = t.logical_key AND c.settled_at IS NULL
        AND (t.phase IS NULL AND c.in_doubt_since IS NULL OR t.phase <> 'PROCESSING'
            OR t.phase = 'PROCESSING' AND c.phase = 'WAITING_CONFIRM')
    RETURNING c.logical_key, t.phase
), audited AS (
    INSERT INTO events (bucket, logical_key, code, phase)
    SELECT $1, logical_key,
        CASE WHEN phase IS NULL THEN 'IN_DOUBT' WHEN phase = 'PROCESSING' THEN 'PONR' WHEN phase = 'COMMITTED' THEN 'OBL-002'
            WHEN phase = 'TTL_EXPIRED' THEN 'OBL-004' ELSE 'OBL-003' END,
        phase::phase
    FROM moved
)
SELECT logical_key FROM moved;

-- name: report
-- COR-4: a row in the client's own words. New, or further on than it was; the same again changes nothing, and neither does
-- anything that contradicts what was said before ($15: the phases that may come before this one). Returns what it did.
WITH reported AS (
    INSERT INTO client_entries AS c (
        bucket, logical_key, client_correlation_id, server_correlation_id, source, target, path, parent_reference_id,
        transaction_reference, phase, phase_1_timestamp, phase_2_timestamp, ttl_ms, settled_at, keep_until)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, CASE WHEN $14 THEN now() END, now() + interval '7 days')
    ON CONFLICT (logical_key, bucket) DO UPDATE
    SET phase = excluded.phase, server_correlation_id = excluded.server_correlation_id, ttl_ms = excluded.ttl_ms,
        phase_2_timestamp = excluded.phase_2_timestamp, settled_at = excluded.settled_at, in_doubt_since = NULL
    WHERE c.phase = ANY ($15::text[]::phase[]) AND c.target = excluded.target AND c.path = excluded.path
        AND c.parent_reference_id = excluded.parent_reference_id AND c.phase_1_timestamp = excluded.phase_1_timestamp
        AND c.transaction_reference IS NOT DISTINCT FROM excluded.transaction_reference
        AND coalesce(c.server_correlation_id = excluded.server_correlation_id, true)
        AND coalesce(c.ttl_ms = excluded.ttl_ms, true)
        AND coalesce(c.phase_2_timestamp = excluded.phase_2_timestamp, true)
    RETURNING logical_key, phase
), audited AS (
    INSERT INTO events (bucket, logical_key, code, phase)
    SELECT $1, logical_key,
        CASE phase WHEN 'WAITING_CONFIRM' THEN 'OBL-001' WHEN 'PROCESSING' THEN 'PONR' WHEN 'COMMITTED' THEN 'OBL-002'
            WHEN 'TTL_EXPIRED' THEN 'OBL-004' ELSE 'OBL-003' END,
        phase
    FROM reported
)
SELECT EXISTS (SELECT FROM reported) AS changed;

-- name: reported
-- Whether this very row is there already.
SELECT EXISTS (
    SELECT FROM client_entries c
    WHERE c.bucket = $1 AND c.logical_key = $2 AND c.phase = $8::phase AND c.target = $4 AND c.path = $5
        AND c.parent_reference_id = $6 AND c.phase_1_timestamp = $9
        AND c.transaction_reference IS NOT DISTINCT FROM $7 AND c.server_correlation_id IS NOT DISTINCT FROM $3
        AND c.ttl_ms IS NOT DISTINCT FROM $11 AND c.phase_2_timestamp IS NOT DISTINCT FROM $10
) AS same;

-- name: called_with
-- COR-2: whether this service was called with a client correlation ID.
SELECT EXISTS (SELECT FROM intents WHERE client_correlation_id = $1 AND source = $2) AS known;

-- name: retain
-- Forgets calls that are over for longer than they are kept, unless the central ledger has still to be told. Runs as the owner.
WITH due AS (
    SELECT c.logical_key FROM client_entries c
    WHERE c.bucket = $1 AND c.keep_until < now() AND c.settled_at < now() - interval '7 days'
        AND (SELECT count(*) FROM (
            SELECT FROM cursors p
            CROSS JOIN LATERAL (
                SELECT e.xid, e.id FROM events e
                WHERE e.bucket = $1 AND e.logical_key = c.logical_key
                ORDER BY e.id DESC
                LIMIT 1
            ) AS last
            WHERE starts_with(p.name, 'sync:') AND (last.xid, last.id) > (p.xid, p.id)
            LIMIT 1
        ) AS untold) = 0
    ORDER BY c.keep_until
    LIMIT $2
    FOR UPDATE OF c SKIP LOCKED
), gone AS (
    DELETE FROM client_entries c USING due d WHERE c.bucket = $1 AND c.logical_key = d.logical_key RETURNING c.logical_key
), events_gone AS (
    DELETE FROM events e USING gone g WHERE e.bucket = $1 AND e.logical_key = g.logical_key
)
SELECT count(*) AS swept FROM gone;
