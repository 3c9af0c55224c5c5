-- name: begin
-- LED-6: hooks of one service ($1) hear of what happens from now on; or from where those of all services were, which had one
-- cursor in an earlier release.
INSERT INTO cursors (name, xid, id)
SELECT 'hooks:' || $1::text, coalesce(c.xid, pg_snapshot_xmin(pg_current_snapshot())), coalesce(c.id, -1)
FROM (VALUES (true)) AS always LEFT JOIN cursors c ON c.name = 'hooks'
ON CONFLICT (name) DO NOTHING;

-- name: forget
-- No hooks are configured: what happens meanwhile is not told to those that may be configured later, from no cursor.
DELETE FROM cursors WHERE name IN ('hooks:' || $1::text, 'hooks');

-- name: feed
-- LED-6: the next events in order of change become deliveries, one for each hook of the intent's route and the event's state
-- (its phase, or IN_DOUBT), of one service ($6). One replica at a time: whoever finds the cursor locked has nothing to do.
WITH place AS MATERIALIZED (
    SELECT xid, id FROM cursors WHERE name = 'hooks:' || $6::text FOR UPDATE SKIP LOCKED
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
    JOIN intents i ON i.bucket = f.bucket AND i.logical_key = f.logical_key AND i.source = $6::text
    JOIN unnest($1::text[], $2::text[], $3::bigint[], $4::smallint[], $5::bytea[])
        AS h (route, state, host, sealed_with, sealed) ON h.route = i.route AND h.state = f.state
    RETURNING id
), moved AS (
    UPDATE cursors c SET xid = l.xid, id = l.id
    FROM (SELECT xid, id FROM fresh ORDER BY xid DESC, id DESC LIMIT 1) AS l
    WHERE c.name = 'hooks:' || $6::text
)
SELECT (SELECT count(*) FROM fresh) AS seen, (SELECT count(*) FROM hooked) AS hooked,
    EXISTS (SELECT FROM cursors WHERE name = 'hooks:' || $6::text) AS begun;
