-- name: begin
-- LED-2: where a service stands with its central ledger; at first, at the very beginning. Another central than before starts
-- from there too: what the last one knows is of no use to it.
WITH others AS (
    DELETE FROM cursors WHERE starts_with(name, $1) AND name <> $2
)
INSERT INTO cursors (name, xid, id) VALUES ($2, '0', 0) ON CONFLICT (name) DO NOTHING;

-- name: forget
-- No central ledger is configured: nothing waits to be pushed, so nothing is kept for it.
DELETE FROM cursors WHERE starts_with(name, $1);

-- name: take
-- Of several replicas one pushes at a time. Returns where to go on, or nothing while another one does.
UPDATE cursors SET holder = $2, lease_until = now() + $3::bigint * interval '1 millisecond'
WHERE name = $1 AND (holder = $2 OR lease_until IS NULL OR lease_until < now())
RETURNING xid, id, now() AS at;

-- name: advance
-- The central ledger has acknowledged everything up to here. Only from where it was read: two that push at once push the same.
UPDATE cursors SET xid = $5, id = $6, lease_until = now() + $7::bigint * interval '1 millisecond'
WHERE name = $1 AND holder = $2 AND (xid, id) = ($3, $4)
RETURNING now() AS at;

-- name: give_up
-- At the end of a run, or of a gateway: another replica may push at once.
UPDATE cursors SET lease_until = NULL WHERE name = $1 AND holder = $2;

-- name: stamp_intents
-- LED-1: `sync_timestamp`, once acknowledged. Leaves no event and touches no index. What is being changed at this moment is
-- passed over: it comes again.
WITH free AS (
    SELECT i.logical_key FROM unnest($2::uuid[]) AS t (server_correlation_id)
    CROSS JOIN LATERAL (
        SELECT i.logical_key FROM intents i
        WHERE i.bucket = $1 AND i.server_correlation_id = t.server_correlation_id
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS i
)
UPDATE intents i SET sync_timestamp = $3 FROM free f WHERE i.bucket = $1 AND i.logical_key = f.logical_key;

-- name: stamp_calls
-- The same of client rows.
WITH free AS (
    SELECT c.logical_key FROM unnest($2::bytea[]) AS t (logical_key)
    CROSS JOIN LATERAL (
        SELECT c.logical_key FROM client_entries c
        WHERE c.bucket = $1 AND c.logical_key = t.logical_key
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS c
)
UPDATE client_entries c SET sync_timestamp = $3 FROM free f WHERE c.bucket = $1 AND c.logical_key = f.logical_key;

-- name: lag
-- How far behind: the age of the oldest change that was not acknowledged yet, and how many there are, up to 10,000.
SELECT coalesce(extract(epoch FROM now() - min(e.at)), 0)::float8 AS lag_s, count(*) AS behind,
    EXISTS (SELECT FROM cursors WHERE name = $1) AS begun
FROM (
    SELECT e.at FROM cursors p
    CROSS JOIN LATERAL (
        SELECT e.at FROM events e WHERE (e.xid, e.id) > (p.xid, p.id) ORDER BY e.xid, e.id LIMIT 10000
    ) AS e
    WHERE p.name = $1
) AS e;
