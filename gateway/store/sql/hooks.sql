-- name: begin
-- LED-6: hooks hear of what happens from now on.
INSERT INTO cursors (name, xid, id) VALUES ('hooks', pg_snapshot_xmin(pg_current_snapshot()), -1)
ON CONFLICT (name) DO NOTHING;

-- name: forget
-- No hooks are configured: what happens meanwhile is not told to those that may be configured later.
DELETE FROM cursors WHERE name = 'hooks';

-- name: feed
-- LED-6: the next events in order of change become deliveries, one for each hook of the intent's route and the event's state
-- (its phase, or IN_DOUBT). One replica at a time: whoever finds the cursor locked has nothing to do.
WITH place AS MATERIALIZED (
    SELECT xid, id FROM cursors WHERE name = 'hooks' FOR UPDATE SKIP LOCKED
), fresh AS MATERIALIZED (
    SELECT e.xid, e.id, e.bucket, e.logical_key, coalesce(e.phase::text, e.code) AS state
    FROM place p
    CROSS JOIN LATERAL (
        SELECT e.xid, e.id, e.bucket, e.logical_key, e.phase, e.code FROM events e
        WHERE (e.xid, e.id) > (p.xid, p.id) AND e.xid < pg_snapshot_xmin(pg_current_snapshot())
        ORDER BY e.xid, e.id
        LIMIT 500
    ) AS e
), hooked AS (
    INSERT INTO deliveries (bucket, logical_key, id, kind, event, host, next_at, sealed_with, sealed)
    SELECT f.bucket, f.logical_key, gen_random_uuid(), 'compensation', f.state, h.host, now(), h.sealed_with, h.sealed
    FROM fresh f
    JOIN intents i ON i.bucket = f.bucket AND i.logical_key = f.logical_key
    JOIN unnest($1::text[], $2::text[], $3::bigint[], $4::smallint[], $5::bytea[])
        AS h (route, state, host, sealed_with, sealed) ON h.route = i.route AND h.state = f.state
    RETURNING id
), moved AS (
    UPDATE cursors c SET xid = l.xid, id = l.id
    FROM (SELECT xid, id FROM fresh ORDER BY xid DESC, id DESC LIMIT 1) AS l
    WHERE c.name = 'hooks'
)
SELECT (SELECT count(*) FROM fresh) AS seen, (SELECT count(*) FROM hooked) AS hooked,
    EXISTS (SELECT FROM cursors WHERE name = 'hooks') AS begun;
