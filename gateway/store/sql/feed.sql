-- name: after
-- LED-6: the next audit events in order of change, only below the oldest transaction still running (DESIGN decision 5), each
-- with the intent it is about.
SELECT e.xid, e.id, e.at, e.code, e.phase, e.detail, i.server_correlation_id, i.client_correlation_id, i.source, i.method, i.path
FROM (
    SELECT e.xid, e.id, e.bucket, e.logical_key, e.at, e.code, e.phase::text AS phase, e.detail::text AS detail FROM events e
    WHERE (e.xid, e.id) > ($1::xid8, $2::bigint) AND e.xid < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY e.xid, e.id
    LIMIT 500
) AS e
CROSS JOIN LATERAL (
    SELECT i.server_correlation_id, i.client_correlation_id, i.source, i.method, i.path FROM intents i
    WHERE i.bucket = e.bucket AND i.logical_key = e.logical_key
    LIMIT 1
) AS i
ORDER BY e.xid, e.id;

-- name: now
-- Where the order of change stands: what comes after this is new.
SELECT pg_snapshot_xmin(pg_current_snapshot()) AS xid;
