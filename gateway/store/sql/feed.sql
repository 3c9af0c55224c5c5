-- name: after
-- LED-6: the next audit events in order of change, only below the oldest transaction still running (DESIGN decision 5), each
-- with the intent it is about, or the call that this service made. One whose subject was just forgotten comes with neither.
SELECT e.xid, e.id, e.at, e.code, e.phase, e.detail,
    coalesce(i.server_correlation_id::text, c.server_correlation_id) AS server_correlation_id,
    coalesce(i.client_correlation_id, c.client_correlation_id) AS client_correlation_id, coalesce(i.source, c.source) AS source,
    c.target, coalesce(i.method, c.method) AS method, coalesce(i.path, c.path) AS path
FROM (
    SELECT e.xid, e.id, e.bucket, e.logical_key, e.at, e.code, e.phase::text AS phase, e.detail::text AS detail FROM events e
    WHERE (e.xid, e.id) > ($1::xid8, $2::bigint) AND e.xid < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY e.xid, e.id
    LIMIT 500
) AS e
LEFT JOIN LATERAL (
    SELECT i.server_correlation_id, i.client_correlation_id, i.source, i.method, i.path FROM intents i
    WHERE i.bucket = e.bucket AND i.logical_key = e.logical_key
    LIMIT 1
) AS i ON true
LEFT JOIN LATERAL (
    SELECT c.server_correlation_id, c.client_correlation_id, c.source, c.target, c.method, c.path FROM client_entries c
    WHERE i.source IS NULL AND c.bucket = e.bucket AND c.logical_key = e.logical_key
    LIMIT 1
) AS c ON true
ORDER BY e.xid, e.id;

-- name: now
-- Where the order of change stands: what comes after this is new.
SELECT pg_snapshot_xmin(pg_current_snapshot()) AS xid;
