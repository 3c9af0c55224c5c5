-- name: reserve
-- OBL-1: one reservation and its audit event. Nothing comes back where (flow, key) is Reserved or Committed already.
WITH made AS (
    INSERT INTO obligations (
        bucket, id, flow, key, trace_id, reserved_by, own, leaks_at, payload_sha256, payload_bytes, sealed_with, sealed)
    VALUES (
        $1, $2, $3, $4, $5, $6, $7, now() + $8::bigint * interval '1 millisecond', $9, $10, $11, $12)
    ON CONFLICT DO NOTHING
    RETURNING id
), audited AS (
    INSERT INTO obligation_events (bucket, obligation, code, trace_id, by, detail)
    SELECT $1, id, 'OBL-001', $5, $6, jsonb_build_object('flow', $3::text, 'key', $4::text) FROM made
)
SELECT id FROM made;

-- name: live
-- Which obligation has (flow, key) now.
SELECT id FROM obligations WHERE bucket = $1 AND flow = $2 AND key = $3 AND state <> 'RolledBack';

-- name: commit
-- OBL-1, OBL-2: Reserved -> Committed, and only before it leaks. The payload has done its work.
WITH settled AS (
    UPDATE obligations SET state = 'Committed', settled_at = now(), settled_call = $3, sealed = NULL, sealed_with = NULL
    WHERE bucket = $1 AND id = $2 AND state = 'Reserved' AND now() < leaks_at
    RETURNING id, flow, key, trace_id
), audited AS (
    INSERT INTO obligation_events (bucket, obligation, code, trace_id, by, detail)
    SELECT $1, id, 'OBL-002', coalesce($4::text, trace_id), $5, jsonb_build_object('flow', flow, 'key', key) FROM settled
)
SELECT id FROM settled;

-- name: rollback
-- OBL-1: Reserved -> RolledBack, also past its time: it is taken back either way.
WITH settled AS (
    UPDATE obligations SET state = 'RolledBack', settled_at = now(), settled_call = $3, sealed = NULL, sealed_with = NULL
    WHERE bucket = $1 AND id = $2 AND state = 'Reserved'
    RETURNING id, flow, key, trace_id
), audited AS (
    INSERT INTO obligation_events (bucket, obligation, code, trace_id, by, detail)
    SELECT $1, id, 'OBL-003', coalesce($4::text, trace_id), $5, jsonb_build_object('flow', flow, 'key', key) FROM settled
)
SELECT id FROM settled;

-- name: renew
-- OBL-3: the gateway's own move their leak on with the lease of who works on them, while nothing took them back.
UPDATE obligations SET leaks_at = now() + $3::bigint * interval '1 millisecond'
WHERE bucket = $1 AND id = $2 AND state = 'Reserved' AND own AND now() < leaks_at
RETURNING true;

-- name: find
-- One of them, as rules need it.
SELECT id, flow, key, state, leaked, settled_call
FROM obligations WHERE bucket = $1 AND id = $2;

-- name: leak
-- OBL-3: takes back what nobody settled in time, each with OBL-004 for the leak and OBL-003 for what was done about it. Scans of
-- several replicas share the rows; a commit that is being written comes first.
WITH due AS (
    SELECT id FROM obligations
    WHERE bucket = $1 AND state = 'Reserved' AND leaks_at <= now()
    ORDER BY leaks_at
    LIMIT $2
    FOR UPDATE SKIP LOCKED
), taken_back AS (
    UPDATE obligations o SET state = 'RolledBack', leaked = true, settled_at = now(), sealed = NULL, sealed_with = NULL
    FROM due d
    WHERE o.bucket = $1 AND o.id = d.id AND o.state = 'Reserved' AND o.leaks_at <= now()
    RETURNING o.id, o.flow, o.key, o.trace_id
), audited AS (
    INSERT INTO obligation_events (bucket, obligation, code, trace_id, by, detail)
    SELECT $1, t.id, e.code, t.trace_id, 'leak scan', jsonb_build_object('flow', t.flow, 'key', t.key)
    FROM taken_back t
    CROSS JOIN (VALUES (1, 'OBL-004'), (2, 'OBL-003')) AS e (ord, code)
    ORDER BY t.id, e.ord
)
SELECT count(*) AS leaked FROM taken_back;

-- name: scanned
-- OBL-005: a scan is complete.
WITH noted AS (
    UPDATE leak_scans
    SET completed_at = now(), leaked = $1, scans_total = scans_total + 1, leaked_total = leaked_total + $1
    WHERE name = 'obligations'
)
INSERT INTO obligation_events (bucket, code, by, detail)
SELECT 0, 'OBL-005', 'leak scan', jsonb_build_object('leaked', $1::bigint)
WHERE $1::bigint > 0;

-- name: last_scan
-- OBL-005: what the last one found.
SELECT completed_at, leaked, scans_total, leaked_total FROM leak_scans WHERE name = 'obligations';

-- name: retain
-- The gateway's own, settled long enough ago, with their events; those of others keep their keys consumed. As the owner (REP-6).
WITH due AS (
    SELECT id FROM obligations
    WHERE bucket = $1 AND own AND settled_at < now() - $2::bigint * interval '1 millisecond'
    ORDER BY settled_at
    LIMIT $3
    FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM obligations o USING due d WHERE o.bucket = $1 AND o.id = d.id RETURNING o.id
), events_gone AS (
    DELETE FROM obligation_events e USING gone g WHERE e.bucket = $1 AND e.obligation = g.id
)
SELECT count(*) AS swept FROM gone;

-- name: all
-- For operators, in the order of reservation after a place in it.
SELECT o.* FROM obligations o
WHERE (o.reserved_at, o.id) > ($1, $2::uuid)
ORDER BY o.reserved_at, o.id
LIMIT $3;

-- name: in_state
-- The same of one state.
SELECT o.* FROM obligations o
WHERE o.state = $4 AND (o.reserved_at, o.id) > ($1, $2::uuid)
ORDER BY o.reserved_at, o.id
LIMIT $3;

-- name: of_flow
-- The same of one flow; $5: one state, or null for all of them.
SELECT o.* FROM obligations o
WHERE o.flow = $4 AND (o.reserved_at, o.id) > ($1, $2::uuid) AND ($5::text IS NULL OR o.state = $5)
ORDER BY o.reserved_at, o.id
LIMIT $3;

-- name: one
-- Everything about one of them.
SELECT o.* FROM obligations o WHERE o.bucket = $1 AND o.id = $2;

-- name: leases
-- OBL-4, fencing: the worker processes' names, a handful.
SELECT h.holder AS id, h.started_at, h.lease_until, h.dead, h.handed_back FROM holders h
WHERE (h.started_at, h.holder) > ($1, $2::uuid)
ORDER BY h.started_at, h.holder
LIMIT $3;

-- name: lease
-- One of them.
SELECT h.holder AS id, h.started_at, h.lease_until, h.dead, h.handed_back FROM holders h WHERE h.holder = $1;

-- name: schema_steps
-- OBL-4, migration: the steps that were taken, a handful.
SELECT m.version, m.name, m.applied_at FROM schema_migrations m
WHERE m.applied_at >= $1
ORDER BY m.applied_at, m.version;

-- name: events_of
-- What happened to one of them; newest 1000.
SELECT e.at, e.code, e.trace_id, e.by, e.detail::text AS detail
FROM (
    SELECT n.id, n.at, n.code, n.trace_id, n.by, n.detail FROM obligation_events n
    WHERE n.obligation = $1
    ORDER BY n.id DESC
    LIMIT 1000
) AS e
ORDER BY e.id;

-- name: events_of_delivery
-- What happened to a delivery, from the events of its intent.
SELECT e.at, e.code, e.detail::text AS detail
FROM (SELECT d.bucket, d.logical_key, d.id FROM deliveries d WHERE d.id = $1 LIMIT 1) AS d
CROSS JOIN LATERAL (
    SELECT e.id, e.at, e.code, e.detail FROM events e
    WHERE e.bucket = d.bucket AND e.logical_key = d.logical_key AND e.detail ->> 'delivery' = d.id::text
    ORDER BY e.id
    LIMIT 1000
) AS e
ORDER BY e.id;

-- name: events_after
-- OBL-3: all events of obligations in order of change, only below the oldest transaction still running (DESIGN decision 5).
SELECT e.xid, e.id, e.obligation, e.at, e.code, e.trace_id, e.by, e.detail::text AS detail FROM obligation_events e
WHERE (e.xid, e.id) > ($1::xid8, $2::bigint) AND e.xid < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY e.xid, e.id
LIMIT $3;
