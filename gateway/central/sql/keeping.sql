-- name: forget
-- A bite of one service's entries past its retention, oldest first; the minutes they were counted in are counted anew.
WITH old AS (
    SELECT x.phase_1_timestamp, x.entry_key FROM unnest(ARRAY['client', 'server']) AS side (actor) CROSS JOIN LATERAL (
        SELECT e.phase_1_timestamp, e.entry_key FROM entries e
        WHERE e.source = $1 AND e.actor = side.actor AND e.phase_1_timestamp < now() - interval '1 millisecond' * $2::bigint
        ORDER BY e.phase_1_timestamp, e.entry_key LIMIT $3
    ) x
),
forgotten AS (
    DELETE FROM entries e USING old o WHERE e.phase_1_timestamp = o.phase_1_timestamp AND e.entry_key = o.entry_key
    RETURNING e.phase_1_timestamp
),
unpaired AS (
    DELETE FROM pairs WHERE pair IN (
        SELECT p.pair FROM unnest(ARRAY[1, 2]::smallint[]) AS side (sides) CROSS JOIN LATERAL (
            SELECT x.pair FROM pairs x
            WHERE x.source = $1 AND x.sides = side.sides AND x.phase_1_timestamp < now() - interval '1 millisecond' * $2::bigint
            ORDER BY x.phase_1_timestamp, x.entry_key LIMIT $3
        ) p
    )
),
touched AS (
    INSERT INTO touched (grain, at) SELECT DISTINCT 'minute', date_trunc('minute', phase_1_timestamp, 'UTC') FROM forgotten
)
SELECT count(*) AS forgotten FROM forgotten

-- name: sources
-- Whoever has entries here: registered, or not any more.
WITH RECURSIVE sources (source) AS (
    (SELECT e.source FROM entries e ORDER BY e.source LIMIT 1)
    UNION ALL
    SELECT (SELECT e.source FROM entries e WHERE e.source > s.source ORDER BY e.source LIMIT 1) FROM sources s WHERE s.source IS NOT NULL
)
SELECT source FROM sources WHERE source IS NOT NULL

-- name: past
-- Partitions whose last entry is older than the longest retention.
SELECT name FROM partitions WHERE upper < now() - interval '1 millisecond' * $1::bigint ORDER BY upper

-- name: drop_partition
SELECT drop_partition($1::text, $2::bigint)

-- name: drop_tallies
-- What nobody's entries are behind any more.
DELETE FROM tallies WHERE grain = ANY (ARRAY['minute', 'hour']) AND actor = ANY (ARRAY['client', 'server'])
    AND at < now() - interval '1 millisecond' * $1::bigint

-- name: forget_accesses
DELETE FROM access_log WHERE id IN (
    SELECT id FROM access_log WHERE at < now() - interval '1 millisecond' * $1::bigint ORDER BY id LIMIT $2
) RETURNING 1

-- name: forget_pairs
-- Of services that have nothing here any more.
DELETE FROM pairs WHERE pair IN (
    SELECT p.pair FROM unnest(ARRAY[1, 2]::smallint[]) AS side (sides) CROSS JOIN LATERAL (
        SELECT x.pair FROM pairs x
        WHERE x.sides = side.sides AND x.phase_1_timestamp < now() - interval '1 millisecond' * $1::bigint
        ORDER BY x.phase_1_timestamp, x.entry_key LIMIT $2
    ) p
) RETURNING 1
