-- name: claim
-- ACM-3: takes what is due of one service ($8) in one bucket, for one lease: a claim moves `next_at` past it, so what a dead
-- claimer held comes back by itself, which is a leak of ours and leaves OBL-004 (OBL-3). Skips hosts that take nothing now
-- ($2), takes of the others no more than they have room for ($3, $4; else $5), and no more than $6 in all. The 512 longest due
-- are looked at, written here and not passed in: the planner must know that they are few; a host that got its fill is among $2
-- the next time, so a long queue of one host hides no other for long.
WITH candidates AS MATERIALIZED (
    SELECT d.logical_key, d.id, d.host, d.next_at FROM deliveries d
    CROSS JOIN LATERAL (
        SELECT FROM intents i WHERE i.bucket = $1 AND i.logical_key = d.logical_key AND i.source = $8 LIMIT 1
    ) AS ours
    WHERE d.bucket = $1 AND d.next_at <= now() AND d.host <> ALL ($2::bigint[])
    ORDER BY d.next_at
    LIMIT 512
), placed AS MATERIALIZED (
    SELECT c.logical_key, c.id, c.host, c.next_at, row_number() OVER (PARTITION BY c.host ORDER BY c.next_at) AS place
    FROM candidates c
), chosen AS MATERIALIZED (
    SELECT p.logical_key, p.id FROM placed p
    LEFT JOIN unnest($3::bigint[], $4::integer[]) AS r (host, room) ON r.host = p.host
    WHERE p.place <= coalesce(r.room, $5::integer)
    ORDER BY p.next_at
    LIMIT $6
), locked AS (
    SELECT d.logical_key, d.id, d.kind, d.leased_until = d.next_at AS leaked FROM chosen c
    JOIN deliveries d ON d.bucket = $1 AND d.logical_key = c.logical_key AND d.id = c.id AND d.next_at <= now()
    FOR UPDATE OF d SKIP LOCKED
), audited AS (
    INSERT INTO events (bucket, logical_key, code, detail)
    SELECT $1, logical_key, 'OBL-004', jsonb_build_object('flow', kind, 'delivery', id) FROM locked WHERE leaked
), claimed AS (
    UPDATE deliveries d
    SET next_at = now() + $7::bigint * interval '1 millisecond', leased_until = now() + $7::bigint * interval '1 millisecond'
    FROM locked l
    WHERE d.bucket = $1 AND d.logical_key = l.logical_key AND d.id = l.id
    RETURNING d.logical_key, d.id, d.kind, d.event, d.attempts, d.created_at, d.host, d.sealed, d.sealed_with
)
SELECT c.*, i.server_correlation_id, i.client_correlation_id, i.caller, i.source, i.method, i.path, i.phase::text AS phase,
    i.resource_id, i.message, n.reason AS in_doubt
FROM claimed c
JOIN intents i ON i.bucket = $1 AND i.logical_key = c.logical_key
LEFT JOIN in_doubt n ON n.bucket = $1 AND n.logical_key = c.logical_key;

-- name: record
-- What attempts came to. A failure is recorded once, and only while nothing else was recorded since it started; an
-- acknowledgement always, also when it comes after a dead-letter. A settled delivery leaves an audit event (OBL-4).
WITH recorded AS (
    UPDATE deliveries d
    SET state = t.state, attempts = d.attempts + 1, last_status = t.status, last_error = t.error,
        next_at = now() + t.pause_ms * interval '1 millisecond',
        settled_at = CASE WHEN t.state <> 'pending' THEN now() END
    FROM unnest($2::bytea[], $3::uuid[], $4::integer[], $5::text[], $6::bigint[], $7::smallint[], $8::text[])
        AS t (logical_key, id, attempts, state, pause_ms, status, error)
    WHERE d.bucket = $1 AND d.logical_key = t.logical_key AND d.id = t.id
        AND (t.state = 'delivered' AND d.state <> 'delivered' OR d.state = 'pending' AND d.attempts = t.attempts)
    RETURNING d.id, d.logical_key, d.kind, d.event, d.state, d.attempts, d.last_status, d.last_error
), audited AS (
    INSERT INTO events (bucket, logical_key, code, detail)
    SELECT $1, logical_key, CASE state WHEN 'delivered' THEN 'OBL-002' ELSE 'OBL-003' END,
        jsonb_strip_nulls(jsonb_build_object(
            'flow', kind, 'delivery', id, 'event', event, 'state', state, 'attempts', attempts,
            'status', last_status, 'error', last_error))
    FROM recorded
    WHERE state <> 'pending'
)
SELECT id, state FROM recorded;

-- name: retry
-- An operator sends it again: due now, and a dead one has its whole schedule before it again. Not on the request path, so
-- it need not know the bucket.
WITH due AS (
    UPDATE deliveries
    SET next_at = now(), settled_at = NULL, state = 'pending', attempts = CASE state WHEN 'dead' THEN 0 ELSE attempts END
    WHERE id = $1 AND state <> 'delivered'
    RETURNING bucket, logical_key, id, kind, event
)
INSERT INTO events (bucket, logical_key, code, detail)
SELECT bucket, logical_key, 'OBL-001',
    jsonb_build_object('flow', kind, 'delivery', id, 'event', event, 'retried_by', $2::text)
FROM due
RETURNING true;

-- name: one
-- One delivery by its id.
SELECT d.*, i.server_correlation_id, i.client_correlation_id, i.phase::text AS phase
FROM deliveries d
JOIN intents i ON i.bucket = d.bucket AND i.logical_key = d.logical_key
WHERE d.id = $1;

-- name: of_intent
-- All deliveries of one intent, the first promised first.
SELECT d.*, i.server_correlation_id, i.client_correlation_id, i.phase::text AS phase
FROM intents i
JOIN deliveries d ON d.bucket = i.bucket AND d.logical_key = i.logical_key
WHERE i.bucket = $1 AND i.server_correlation_id = $2
ORDER BY d.created_at, d.id;

-- name: list
-- In the order in which they were promised, after a place in it; $4: one state, or all of them. LATERAL with LIMIT: from the
-- deliveries to their intents, never the other way round.
SELECT d.*, i.server_correlation_id, i.client_correlation_id, i.phase
FROM deliveries d
CROSS JOIN LATERAL (
    SELECT i.server_correlation_id, i.client_correlation_id, i.phase::text AS phase FROM intents i
    WHERE i.bucket = d.bucket AND i.logical_key = d.logical_key
    LIMIT 1
) AS i
WHERE (d.created_at, d.id) > ($1, $2::uuid) AND ($4::text IS NULL OR d.state = $4)
ORDER BY d.created_at, d.id
LIMIT $3;

-- name: open
-- The same of what is not acknowledged: $4 is a state, $5 a kind; null: any. The callback gap is what is open of callbacks.
SELECT d.*, i.server_correlation_id, i.client_correlation_id, i.phase
FROM deliveries d
CROSS JOIN LATERAL (
    SELECT i.server_correlation_id, i.client_correlation_id, i.phase::text AS phase FROM intents i
    WHERE i.bucket = d.bucket AND i.logical_key = d.logical_key
    LIMIT 1
) AS i
WHERE d.state <> 'delivered' AND (d.created_at, d.id) > ($1, $2::uuid)
    AND ($4::text IS NULL OR d.state = $4) AND ($5::text IS NULL OR d.kind = $5)
ORDER BY d.created_at, d.id
LIMIT $3;
