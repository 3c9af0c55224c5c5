-- name: key_by_server_id
-- The bucket is the server correlation ID's own (DESIGN decision 3).
SELECT bucket, logical_key FROM intents WHERE bucket = $1 AND server_correlation_id = $2;

-- name: keys_by_client_id
-- In order of registration, after a place in it: several callers may have used one client correlation ID.
SELECT bucket, logical_key, phase_1_timestamp FROM intents
WHERE client_correlation_id = $1 AND (phase_1_timestamp, logical_key) > ($2, $3)
ORDER BY phase_1_timestamp, logical_key
LIMIT $4;

-- name: client_keys_by_server_id
-- The other actor's rows: calls that this service made (COR-1).
SELECT bucket, logical_key FROM client_entries WHERE server_correlation_id = $1 LIMIT $2;

-- name: client_keys_by_client_id
-- The same by client correlation ID.
SELECT bucket, logical_key FROM client_entries WHERE client_correlation_id = $1 LIMIT $2;

-- name: whole_intents
-- Everything that is known of these intents, in one snapshot. Of an intent's events the newest 1000 come: refusals and
-- evidence may add to them without end.
SELECT i.server_correlation_id, i.client_correlation_id, s.service_ledger_id, i.source, i.path, i.parent_reference_id,
    i.phase::text AS phase, i.phase_1_timestamp, i.phase_2_timestamp, i.ttl_ms, i.sync_timestamp, i.transaction_reference,
    i.ponr_deadline, i.grace_ms, now() AS read_at, i.caller, i.payload_sha256, i.settled_at, i.settled_by, i.verify_failed,
    d.since, d.reason, d.next_at, d.held, d.asked, r.status, r.body_bytes, r.body_sha256, r.kept,
    ARRAY(
        SELECT ROW(a.attempt_id, a.number, a.fence, a.started_at, a.sent, a.ended_at, a.status, a.error)
        FROM attempts a
        WHERE a.bucket = i.bucket AND a.logical_key = i.logical_key
        ORDER BY a.number
    ) AS attempts,
    ARRAY(
        SELECT ROW(e.at, e.code, e.phase::text, e.detail)
        FROM (
            SELECT n.id, n.at, n.code, n.phase, n.detail FROM events n
            WHERE n.bucket = i.bucket AND n.logical_key = i.logical_key
            ORDER BY n.id DESC
            LIMIT 1000
        ) AS e
        ORDER BY e.id
    ) AS events
FROM unnest($1::smallint[], $2::bytea[]) WITH ORDINALITY AS t (bucket, logical_key, place)
JOIN intents i ON i.bucket = t.bucket AND i.logical_key = t.logical_key
LEFT JOIN services s ON s.name = i.source
LEFT JOIN in_doubt d ON d.bucket = i.bucket AND d.logical_key = i.logical_key AND i.phase = 'PROCESSING'
LEFT JOIN responses r ON r.bucket = i.bucket AND r.logical_key = i.logical_key
ORDER BY t.place;

-- name: scan
-- LED-2: the next changes in their order, by (xid, id) and only below the oldest transaction still running, so that none
-- that commits late is skipped. What changes an entry is a transition, doubt, and what became of a callback; refusals and
-- evidence do not. One row per intent or call: a change that a later one has overtaken is passed over, and the last row
-- (`reached`) says how far the scan came, found or not. 1000 events at most, written here and not passed in: the planner
-- must know that they are few. LATERAL with LIMIT is a probe by key for each of them, whatever the planner thinks.
WITH scanned AS MATERIALIZED (
    SELECT e.xid, e.id, e.bucket, e.logical_key, e.phase, e.code FROM events e
    WHERE (e.xid, e.id) > ($1::xid8, $2::bigint) AND e.xid < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY e.xid, e.id
    LIMIT 1000
), latest AS (
    SELECT s.xid, s.id, s.bucket, s.logical_key
    FROM scanned s
    LEFT JOIN LATERAL (
        SELECT true AS overtaken FROM events l
        WHERE l.bucket = s.bucket AND l.logical_key = s.logical_key
            AND (l.phase IS NOT NULL OR l.code IN ('IN_DOUBT', 'REDRIVE', 'OBL-001', 'OBL-002', 'OBL-003'))
            AND (l.xid, l.id) > (s.xid, s.id) AND l.xid < pg_snapshot_xmin(pg_current_snapshot())
        LIMIT 1
    ) AS l ON true
    WHERE (s.phase IS NOT NULL OR s.code IN ('IN_DOUBT', 'REDRIVE', 'OBL-001', 'OBL-002', 'OBL-003')) AND l.overtaken IS NULL
    ORDER BY s.xid, s.id
    LIMIT $3
), reached AS (
    SELECT xid, id FROM scanned ORDER BY xid DESC, id DESC LIMIT 1
)
SELECT xid, id, bucket, logical_key, false AS reached FROM latest
UNION ALL
SELECT xid, id, NULL, NULL, true FROM reached
ORDER BY reached, xid, id;

-- name: latest_changes
-- The same for some intents or calls alone: each one's latest change, after a place in the order. The inner query is fenced by
-- OFFSET 0: the planner would rather walk the order of all changes backwards than sort the few of one intent.
SELECT e.xid, e.id, t.bucket, t.logical_key
FROM unnest($1::smallint[], $2::bytea[]) AS t (bucket, logical_key)
CROSS JOIN LATERAL (
    SELECT own.xid, own.id
    FROM (
        SELECT e.xid, e.id FROM events e
        WHERE e.bucket = t.bucket AND e.logical_key = t.logical_key
            AND (e.phase IS NOT NULL OR e.code IN ('IN_DOUBT', 'REDRIVE', 'OBL-001', 'OBL-002', 'OBL-003'))
            AND e.xid < pg_snapshot_xmin(pg_current_snapshot())
        OFFSET 0
    ) AS own
    ORDER BY own.xid DESC, own.id DESC
    LIMIT 1
) AS e
WHERE (e.xid, e.id) > ($3::xid8, $4::bigint)
ORDER BY e.xid, e.id;

-- name: entry_rows
-- LED-1, LED-2: what the entries of intents are made of. The version is the id of the last event and, below it, how many
-- there are: of two changes under way at once, the one with the lower id may be the last to commit.
SELECT i.bucket, i.logical_key, i.server_correlation_id, i.client_correlation_id, s.service_ledger_id, i.source, i.path,
    i.parent_reference_id, i.phase::text AS phase, i.phase_1_timestamp, i.phase_2_timestamp, i.ttl_ms, i.sync_timestamp,
    i.transaction_reference, i.ponr_deadline, i.grace_ms, now() AS read_at, d.since, y.callback, v.version
FROM unnest($1::smallint[], $2::bytea[]) AS t (bucket, logical_key)
JOIN intents i ON i.bucket = t.bucket AND i.logical_key = t.logical_key
LEFT JOIN services s ON s.name = i.source
LEFT JOIN in_doubt d ON d.bucket = i.bucket AND d.logical_key = i.logical_key AND i.phase = 'PROCESSING'
CROSS JOIN LATERAL (
    SELECT CASE WHEN bool_or(y.state = 'dead') THEN 'dead' WHEN bool_or(y.state = 'pending') THEN 'pending' ELSE max(y.state) END
        AS callback
    FROM deliveries y
    WHERE y.bucket = i.bucket AND y.logical_key = i.logical_key AND y.kind = 'callback'
) AS y
CROSS JOIN LATERAL (
    SELECT max(e.id) * 1024 + least(count(*), 1023) AS version
    FROM (
        SELECT e.id FROM events e
        WHERE e.bucket = i.bucket AND e.logical_key = i.logical_key
        ORDER BY e.id DESC
        LIMIT 1023
    ) AS e
) AS v;

-- name: client_rows
-- COR-1: the same of calls that this service made.
SELECT c.bucket, c.logical_key, c.server_correlation_id, c.client_correlation_id, s.service_ledger_id, c.source, c.target, c.path,
    c.parent_reference_id, c.phase::text AS phase, c.phase_1_timestamp, c.phase_2_timestamp, c.ttl_ms, c.sync_timestamp,
    c.transaction_reference, c.in_doubt_since, v.version
FROM unnest($1::smallint[], $2::bytea[]) AS t (bucket, logical_key)
JOIN client_entries c ON c.bucket = t.bucket AND c.logical_key = t.logical_key
LEFT JOIN services s ON s.name = c.source
CROSS JOIN LATERAL (
    SELECT max(e.id) * 1024 + least(count(*), 1023) AS version
    FROM (
        SELECT e.id FROM events e
        WHERE e.bucket = c.bucket AND e.logical_key = c.logical_key
        ORDER BY e.id DESC
        LIMIT 1023
    ) AS e
) AS v;

-- name: in_doubt
-- REC-2: what waits for a verdict, oldest first, after a place in that order. LATERAL with LIMIT: from the few that are in
-- doubt to their intents, never the other way round.
SELECT d.since, d.logical_key, d.reason, d.next_at, d.held, d.asked, i.server_correlation_id, i.client_correlation_id, i.method,
    i.path, (SELECT count(*) FROM attempts a WHERE a.bucket = d.bucket AND a.logical_key = d.logical_key) AS attempts
FROM in_doubt d
CROSS JOIN LATERAL (
    SELECT i.server_correlation_id, i.client_correlation_id, i.method, i.path FROM intents i
    WHERE i.bucket = d.bucket AND i.logical_key = d.logical_key AND i.phase = 'PROCESSING'
    LIMIT 1
) AS i
WHERE (d.since, d.logical_key) > ($1, $2)
ORDER BY d.since, d.logical_key
LIMIT $3;
