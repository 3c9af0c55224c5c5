-- name: recent
-- Entries, newest first, before a place. Looks at $3 rows at most; if there were as many, the last one looked at comes with them.
WITH looked AS MATERIALIZED (
    SELECT x.* FROM entries x
    WHERE (x.phase_1_timestamp, x.entry_key) < ($1::timestamptz, $2::bytea)
        AND x.phase_1_timestamp <= $1::timestamptz AND x.phase_1_timestamp >= $8::timestamptz
    ORDER BY x.phase_1_timestamp DESC, x.entry_key DESC LIMIT $3
),
found AS (
    SELECT l.*, false AS reached FROM looked l
    WHERE ($5::text IS NULL OR l.phase = $5) AND ($6::text IS NULL OR l.outcome = $6)
        AND ($7::text IS NULL OR starts_with(l.service_endpoint, $7)
            OR starts_with(substr(l.service_endpoint, strpos(l.service_endpoint, ':') + 1), $7))
        AND ($4::text IS NULL OR l.actor = $4)
    ORDER BY l.phase_1_timestamp DESC, l.entry_key DESC LIMIT $9
)
SELECT * FROM found
UNION ALL (
    SELECT l.*, true FROM looked l WHERE (SELECT count(*) FROM looked) = $3
    ORDER BY l.phase_1_timestamp, l.entry_key LIMIT 1
)

-- name: recent_of_source
-- The same of one service, on one side or both: everything a service initiated.
WITH looked AS MATERIALIZED (
    SELECT l.* FROM unnest($4::text[]) AS side (actor) CROSS JOIN LATERAL (
        SELECT x.* FROM entries x
        WHERE x.source = $10 AND x.actor = side.actor AND (x.phase_1_timestamp, x.entry_key) < ($1::timestamptz, $2::bytea)
            AND x.phase_1_timestamp <= $1::timestamptz AND x.phase_1_timestamp >= $8::timestamptz
        ORDER BY x.phase_1_timestamp DESC, x.entry_key DESC LIMIT $3
    ) l
    ORDER BY l.phase_1_timestamp DESC, l.entry_key DESC LIMIT $3
),
found AS (
    SELECT l.*, false AS reached FROM looked l
    WHERE ($5::text IS NULL OR l.phase = $5) AND ($6::text IS NULL OR l.outcome = $6)
        AND ($7::text IS NULL OR starts_with(l.service_endpoint, $7)
            OR starts_with(substr(l.service_endpoint, strpos(l.service_endpoint, ':') + 1), $7))
    ORDER BY l.phase_1_timestamp DESC, l.entry_key DESC LIMIT $9
)
SELECT * FROM found
UNION ALL (
    SELECT l.*, true FROM looked l WHERE (SELECT count(*) FROM looked) = $3
    ORDER BY l.phase_1_timestamp, l.entry_key LIMIT 1
)

-- name: of_client_id
-- Rows of one ID, newest first before a place; of one service if $4 says so. Found by the ID's index, then put in order.
WITH found AS MATERIALIZED (
    SELECT e.* FROM entries e WHERE e.parent_reference_id = $1 AND e.client_correlation_id = $1 AND ($4::text IS NULL OR e.source = $4)
    UNION ALL
    SELECT e.* FROM entries e WHERE e.client_correlation_id = $1 AND e.client_correlation_id <> e.parent_reference_id
        AND ($4::text IS NULL OR e.source = $4)
)
SELECT f.* FROM found f WHERE (f.phase_1_timestamp, f.entry_key) < ($2::timestamptz, $3::bytea)
ORDER BY f.phase_1_timestamp DESC, f.entry_key DESC LIMIT $5

-- name: of_server_id
WITH found AS MATERIALIZED (
    SELECT e.* FROM entries e WHERE e.server_correlation_id = $1 AND ($4::text IS NULL OR e.source = $4)
)
SELECT f.* FROM found f WHERE (f.phase_1_timestamp, f.entry_key) < ($2::timestamptz, $3::bytea)
ORDER BY f.phase_1_timestamp DESC, f.entry_key DESC LIMIT $5

-- name: of_any_id
-- A correlation ID of whatever kind: of the call, of the server, or of the call that it was made for.
WITH found AS MATERIALIZED (
    SELECT e.* FROM entries e WHERE e.parent_reference_id = $1 AND ($4::text IS NULL OR e.source = $4)
    UNION ALL
    SELECT e.* FROM entries e WHERE e.client_correlation_id = $1 AND e.client_correlation_id <> e.parent_reference_id
        AND ($4::text IS NULL OR e.source = $4)
    UNION ALL
    SELECT e.* FROM entries e WHERE e.server_correlation_id = $1 AND e.parent_reference_id <> $1 AND e.client_correlation_id <> $1
        AND ($4::text IS NULL OR e.source = $4)
)
SELECT f.* FROM found f WHERE (f.phase_1_timestamp, f.entry_key) < ($2::timestamptz, $3::bytea)
ORDER BY f.phase_1_timestamp DESC, f.entry_key DESC LIMIT $5

-- name: of_transaction
-- The registrations of one server ID, and of one call if $2 says so: its servers', of which there is one, then its clients', oldest first.
WITH found AS MATERIALIZED (
    SELECT e.* FROM entries e WHERE e.server_correlation_id = $1 AND ($2::text IS NULL OR e.client_correlation_id = $2)
        AND ($3::text IS NULL OR e.source = $3)
)
SELECT f.* FROM found f ORDER BY f.actor DESC, f.phase_1_timestamp, f.entry_key LIMIT $4

-- name: tree
-- LED-5: everything below a call. `UNION` visits each ID once, so a cycle ends by itself; what is on it is told from the rows.
-- An ID with more rows than a tree may have is not read to its end: the tree is cut then, and says so.
WITH RECURSIVE calls (id) AS (
    SELECT $1::text COLLATE "C"
    UNION
    SELECT e.client_correlation_id FROM calls c CROSS JOIN LATERAL (
        SELECT x.client_correlation_id FROM entries x WHERE x.parent_reference_id = c.id LIMIT $2
    ) e
),
reached AS MATERIALIZED (SELECT id FROM calls LIMIT $2)
SELECT e.* FROM (
    SELECT e.* FROM reached s JOIN entries e ON e.parent_reference_id = s.id
    UNION ALL
    SELECT e.* FROM entries e WHERE e.client_correlation_id = $1 AND e.client_correlation_id <> e.parent_reference_id
        AND NOT EXISTS (SELECT FROM reached s WHERE s.id = e.parent_reference_id)
) e
LIMIT $2

-- name: ancestors
-- The calls that a call was made for, nearest first, and whether the ledger has a row of each.
WITH RECURSIVE up (id, depth) AS (
    SELECT e.parent_reference_id, 1 FROM entries e
    WHERE e.client_correlation_id = $1 AND e.client_correlation_id <> e.parent_reference_id
    UNION
    SELECT e.parent_reference_id, u.depth + 1 FROM up u JOIN entries e
        ON e.client_correlation_id = u.id AND e.client_correlation_id <> e.parent_reference_id
    WHERE u.depth < $2
)
SELECT u.id, min(u.depth) AS depth, EXISTS (
        SELECT FROM entries e WHERE e.parent_reference_id = u.id AND e.client_correlation_id = u.id
    ) OR EXISTS (
        SELECT FROM entries e WHERE e.client_correlation_id = u.id AND e.client_correlation_id <> e.parent_reference_id
    ) AS known
FROM up u WHERE u.id <> $1 GROUP BY u.id ORDER BY min(u.depth), u.id

-- name: stalled
-- LED-5: WAITING_CONFIRM past its TTL, TTL_EXPIRED, PROCESSING for longer than $3 ms; by the database's clock, oldest first.
SELECT e.*, now() AS read_at FROM entries e
WHERE e.phase IN ('WAITING_CONFIRM', 'TTL_EXPIRED', 'PROCESSING')
    AND (e.phase_1_timestamp, e.entry_key) > ($1::timestamptz, $2::bytea)
    AND CASE e.phase
        WHEN 'WAITING_CONFIRM' THEN e.phase_1_timestamp + interval '1 millisecond' * least(coalesce(e.ttl_ms, $3::bigint), 315360000000) <= now()
        WHEN 'PROCESSING' THEN coalesce(e.phase_2_timestamp, e.phase_1_timestamp) + interval '1 millisecond' * $3::bigint <= now()
        ELSE true END
    AND ($4::text IS NULL OR e.source = $4)
ORDER BY e.phase_1_timestamp, e.entry_key LIMIT $5

-- name: in_doubt
-- REC-2 across services, oldest first.
SELECT e.*, now() AS read_at FROM entries e
WHERE e.in_doubt IS NOT NULL AND (e.in_doubt, e.entry_key) > ($1::timestamptz, $2::bytea) AND ($3::text IS NULL OR e.source = $3)
ORDER BY e.in_doubt, e.entry_key LIMIT $4

-- name: callback_gaps
-- Callbacks that nobody has acknowledged, oldest first.
SELECT e.* FROM entries e
WHERE e.callback IN ('pending', 'dead') AND (e.phase_1_timestamp, e.entry_key) > ($1::timestamptz, $2::bytea)
    AND ($3::text IS NULL OR e.source = $3) AND ($4::text IS NULL OR e.callback = $4)
ORDER BY e.phase_1_timestamp, e.entry_key LIMIT $5

-- name: unpaired
-- COR-1: registrations without their twin, newest first; the place of one that is forgotten meanwhile comes without its entry.
SELECT e.*, p.phase_1_timestamp AS place_at, p.entry_key AS place_key FROM (
    SELECT p.phase_1_timestamp, p.entry_key FROM pairs p
    WHERE p.sides = $3 AND (p.phase_1_timestamp, p.entry_key) < ($1::timestamptz, $2::bytea)
    ORDER BY p.phase_1_timestamp DESC, p.entry_key DESC LIMIT $4
) p
LEFT JOIN entries e ON e.phase_1_timestamp = p.phase_1_timestamp AND e.entry_key = p.entry_key
ORDER BY p.phase_1_timestamp DESC, p.entry_key DESC

-- name: unpaired_of_source
SELECT e.*, p.phase_1_timestamp AS place_at, p.entry_key AS place_key FROM (
    SELECT p.phase_1_timestamp, p.entry_key FROM pairs p
    WHERE p.source = $5 AND p.sides = $3 AND (p.phase_1_timestamp, p.entry_key) < ($1::timestamptz, $2::bytea)
    ORDER BY p.phase_1_timestamp DESC, p.entry_key DESC LIMIT $4
) p
LEFT JOIN entries e ON e.phase_1_timestamp = p.phase_1_timestamp AND e.entry_key = p.entry_key
ORDER BY p.phase_1_timestamp DESC, p.entry_key DESC

-- name: overview
-- How much needs a look, each counted up to $2.
SELECT
    (SELECT count(*) FROM (
        SELECT FROM entries e WHERE e.phase IN ('WAITING_CONFIRM', 'TTL_EXPIRED', 'PROCESSING')
            AND CASE e.phase
                WHEN 'WAITING_CONFIRM' THEN e.phase_1_timestamp + interval '1 millisecond' * least(coalesce(e.ttl_ms, $3::bigint), 315360000000) <= now()
                WHEN 'PROCESSING' THEN coalesce(e.phase_2_timestamp, e.phase_1_timestamp) + interval '1 millisecond' * $3::bigint <= now()
                ELSE true END
            AND ($1::text IS NULL OR e.source = $1) LIMIT $2) x) AS stalled,
    (SELECT count(*) FROM (
        SELECT FROM entries e WHERE e.in_doubt IS NOT NULL AND ($1::text IS NULL OR e.source = $1) LIMIT $2) x) AS in_doubt,
    (SELECT count(*) FROM (
        SELECT FROM entries e WHERE e.callback IN ('pending', 'dead') AND ($1::text IS NULL OR e.source = $1) LIMIT $2) x) AS callback_gaps,
    (SELECT count(*) FROM (
        SELECT FROM pairs p WHERE p.sides = 1 AND ($1::text IS NULL OR p.source = $1) LIMIT $2) x) AS client_only,
    (SELECT count(*) FROM (
        SELECT FROM pairs p WHERE p.sides = 2 AND ($1::text IS NULL OR p.source = $1) LIMIT $2) x) AS server_only

-- name: summary
-- Server rows by phase in steps of $4 seconds.
SELECT to_timestamp(floor(extract(epoch FROM t.at) / $4::bigint) * $4::bigint) AS at, t.phase, sum(t.rows)::bigint AS rows
FROM tallies t
WHERE t.grain = $1 AND t.at >= $2::timestamptz AND t.at < $3::timestamptz AND t.actor = 'server' AND ($5::text IS NULL OR t.source = $5)
GROUP BY 1, 2 ORDER BY 1
