-- name: enter
-- REC-1: a worker process takes a name and a lease: an obligation of the flow `fencing` (OBL-4).
WITH entered AS (
    INSERT INTO holders (holder, lease_until) VALUES ($1, now() + $2::bigint * interval '1 millisecond') RETURNING holder
)
INSERT INTO obligation_events (bucket, obligation, code, by, detail)
SELECT 0, holder, 'OBL-001', 'gateway', '{"flow": "fencing"}' FROM entered;

-- name: renew
-- It stays the holder's unless a rescuer has declared it dead; a lapsed lease that nobody took can be renewed.
UPDATE holders SET lease_until = now() + $2::bigint * interval '1 millisecond'
WHERE holder = $1 AND NOT dead
RETURNING true;

-- name: hand_back
-- A drained worker: whatever it still holds is for others, at once.
WITH handed_back AS (
    UPDATE holders SET dead = true, handed_back = true WHERE holder = $1 AND NOT dead RETURNING holder
)
INSERT INTO obligation_events (bucket, obligation, code, by, detail)
SELECT 0, holder, 'OBL-002', 'gateway', '{"flow": "fencing"}' FROM handed_back;

-- name: declare_dead
-- Leases that ran out. Not within one lease of the server's own start: after an outage nobody could renew, and holders with
-- a known outcome go first (DESIGN decision 7). A leak of ours (OBL-3): what they held goes back to those who live.
WITH lost AS (
    UPDATE holders SET dead = true
    WHERE NOT dead AND lease_until < now() AND pg_postmaster_start_time() < now() - $1::bigint * interval '1 millisecond'
    RETURNING holder
), audited AS (
    INSERT INTO obligation_events (bucket, obligation, code, by, detail)
    SELECT 0, holder, 'OBL-004', 'rescuer', '{"flow": "fencing"}' FROM lost
)
SELECT holder FROM lost;

-- name: dead_with_work
-- Dead holders whose attempts nobody has taken over yet. (LATERAL with a limit: a probe per holder, never a walk through all
-- that is held.)
SELECT h.holder FROM holders h CROSS JOIN LATERAL (SELECT FROM attempts a WHERE a.holder = h.holder LIMIT 1) AS work WHERE h.dead;

-- name: rescue
-- REC-1, REC-2: takes over what the dead held, under a higher fence. What they sent is not known, so each is in doubt. Attempt
-- and intent are both locked or left alone: a late outcome that is being written comes first, and nobody waits for anybody.
WITH lost AS (
    SELECT held.logical_key, held.fence
    FROM unnest($2::uuid[]) AS h (holder)
    CROSS JOIN LATERAL (
        SELECT a.logical_key, a.fence FROM attempts a
        JOIN intents i ON i.bucket = $1 AND i.logical_key = a.logical_key
        WHERE a.bucket = $1 AND a.holder = h.holder
        FOR UPDATE SKIP LOCKED) AS held
    LIMIT $3
), taken AS (
    UPDATE intents i SET fence = i.fence + 1
    FROM lost l
    WHERE i.bucket = $1 AND i.logical_key = l.logical_key AND i.fence = l.fence AND i.phase = 'PROCESSING'
    RETURNING i.logical_key
), ended AS (
    UPDATE attempts a SET holder = NULL, ended_at = now(), error = 'the gateway that ran this attempt was lost'
    FROM lost l
    WHERE a.bucket = $1 AND a.logical_key = l.logical_key AND a.fence = l.fence
    RETURNING a.logical_key
), held AS (
    INSERT INTO in_doubt (bucket, logical_key, since, reason)
    SELECT $1, logical_key, now(), 'the gateway was lost after the point of no return' FROM taken
    ON CONFLICT (logical_key, bucket) DO NOTHING
), audited AS (
    INSERT INTO events (bucket, logical_key, code, detail)
    SELECT $1, t.logical_key, e.code, e.detail::jsonb
    FROM taken t
    CROSS JOIN (VALUES
        (1, 'OBL-004', '{"flow": "fencing"}'),
        (2, 'IN_DOUBT', '{"reason": "the gateway was lost after the point of no return"}')) AS e (ord, code, detail)
    ORDER BY t.logical_key, e.ord
)
SELECT (SELECT count(*) FROM ended) AS ended, (SELECT count(*) FROM taken) AS taken;

-- name: count_in_doubt
-- A narrow table that is all but empty when all is well; counted no further than 10000.
SELECT count(*) AS in_doubt FROM (SELECT FROM in_doubt LIMIT 10000) AS found;

-- name: expire
-- TTL-2: WAITING_CONFIRM -> TTL_EXPIRED at the deadline. Two sweepers share the rows, and Phase 2 wins or loses each row whole.
WITH due AS (
    SELECT p.logical_key
    FROM payloads p
    CROSS JOIN LATERAL (
        SELECT FROM intents i
        WHERE i.bucket = $1 AND i.logical_key = p.logical_key AND i.phase = 'WAITING_CONFIRM'
        FOR UPDATE SKIP LOCKED) AS waiting
    WHERE p.bucket = $1 AND p.ponr_deadline <= now()
    LIMIT $2
), expired AS (
    UPDATE intents i SET came_from = i.phase, phase = 'TTL_EXPIRED'
    FROM due d
    WHERE i.bucket = $1 AND i.logical_key = d.logical_key AND i.phase = 'WAITING_CONFIRM' AND i.ponr_deadline <= now()
    RETURNING i.logical_key
), audited AS (
    INSERT INTO events (bucket, logical_key, code, phase)
    SELECT $1, logical_key, 'OBL-004', 'TTL_EXPIRED' FROM expired
)
SELECT count(*) AS swept FROM expired;

-- name: abandon
-- TTL-2: TTL_EXPIRED -> ABANDONED at the deadline + delta; the payload is erased, the row stays.
WITH due AS (
    SELECT p.logical_key
    FROM payloads p
    CROSS JOIN LATERAL (
        SELECT FROM intents i
        WHERE i.bucket = $1 AND i.logical_key = p.logical_key AND i.phase = 'TTL_EXPIRED'
            AND i.ponr_deadline + i.grace_ms * interval '1 millisecond' <= now()
        FOR UPDATE SKIP LOCKED) AS expired
    WHERE p.bucket = $1 AND p.ponr_deadline <= now()
    LIMIT $2
), abandoned AS (
    UPDATE intents i SET came_from = i.phase, phase = 'ABANDONED', settled_at = now(), settled_by = 'expiry'
    FROM due d
    WHERE i.bucket = $1 AND i.logical_key = d.logical_key AND i.phase = 'TTL_EXPIRED'
    RETURNING i.logical_key
), erased AS (
    DELETE FROM payloads p USING abandoned a WHERE p.bucket = $1 AND p.logical_key = a.logical_key
), audited AS (
    INSERT INTO events (bucket, logical_key, code, phase)
    SELECT $1, logical_key, 'OBL-003', 'ABANDONED' FROM abandoned
)
SELECT count(*) AS swept FROM abandoned;

-- name: set_aside
-- Payloads of intents past their PONR are not the expiry's: once their deadline has passed, they leave its index and the count
-- of what is pending (P1-8), so that what runs, waits in the queue or is held in doubt is not looked at by every sweep.
WITH due AS (
    SELECT p.logical_key
    FROM payloads p
    CROSS JOIN LATERAL (
        SELECT FROM intents i WHERE i.bucket = $1 AND i.logical_key = p.logical_key AND i.phase = 'PROCESSING' LIMIT 1) AS begun
    WHERE p.bucket = $1 AND p.ponr_deadline <= now()
    LIMIT $2
    FOR UPDATE OF p SKIP LOCKED
), aside AS (
    UPDATE payloads p SET ponr_deadline = 'infinity', pending_of = 0
    FROM due d
    WHERE p.bucket = $1 AND p.logical_key = d.logical_key
    RETURNING p.logical_key
)
SELECT count(*) AS swept FROM aside;

-- name: retain
-- RPL-4: forgets settled intents past their replay horizon, with everything that hangs on them, unless something about them
-- is still to be delivered, or the central ledger has still to be told (LED-2). Runs as the owner (REP-6).
WITH due AS (
    SELECT i.logical_key FROM intents i
    WHERE i.bucket = $1 AND i.keep_until < now() AND i.phase IN ('COMMITTED', 'FAILED', 'ABANDONED')
        AND i.settled_at + i.horizon_ms * interval '1 millisecond' < now()
        AND (SELECT count(*) FROM (
            SELECT FROM deliveries y WHERE y.bucket = $1 AND y.logical_key = i.logical_key AND y.settled_at IS NULL LIMIT 1
        ) AS open) = 0
        AND (SELECT count(*) FROM (
            SELECT FROM cursors p
            CROSS JOIN LATERAL (
                SELECT e.xid, e.id FROM events e WHERE e.bucket = $1 AND e.logical_key = i.logical_key ORDER BY e.id DESC LIMIT 1
            ) AS last
            WHERE starts_with(p.name, 'sync:') AND (last.xid, last.id) > (p.xid, p.id)
            LIMIT 1
        ) AS untold) = 0
    ORDER BY i.keep_until
    LIMIT $2
    FOR UPDATE OF i SKIP LOCKED
), gone AS (
    DELETE FROM intents i USING due d WHERE i.bucket = $1 AND i.logical_key = d.logical_key RETURNING i.logical_key
), attempts_gone AS (
    DELETE FROM attempts a USING gone g WHERE a.bucket = $1 AND a.logical_key = g.logical_key
), responses_gone AS (
    DELETE FROM responses r USING gone g WHERE r.bucket = $1 AND r.logical_key = g.logical_key
), payloads_gone AS (
    DELETE FROM payloads p USING gone g WHERE p.bucket = $1 AND p.logical_key = g.logical_key
), doubts_gone AS (
    DELETE FROM in_doubt x USING gone g WHERE x.bucket = $1 AND x.logical_key = g.logical_key
), evidence_gone AS (
    DELETE FROM evidence x USING gone g WHERE x.bucket = $1 AND x.logical_key = g.logical_key
), verifications_gone AS (
    DELETE FROM verifications x USING gone g WHERE x.bucket = $1 AND x.logical_key = g.logical_key
), deliveries_gone AS (
    DELETE FROM deliveries y USING gone g WHERE y.bucket = $1 AND y.logical_key = g.logical_key
), nonces_gone AS (
    DELETE FROM nonces n USING gone g WHERE n.bucket = $1 AND n.logical_key = g.logical_key
), events_gone AS (
    DELETE FROM events e USING gone g WHERE e.bucket = $1 AND e.logical_key = g.logical_key
)
SELECT count(*) AS swept FROM gone;

-- name: retire_holders
-- Names of workers long gone that hold nothing, with what is on record of them.
WITH gone AS (
    DELETE FROM holders h
    WHERE h.dead AND h.lease_until < now() - interval '1 day'
        AND (SELECT count(*) FROM (SELECT FROM attempts a WHERE a.holder = h.holder LIMIT 1) AS held) = 0
    RETURNING h.holder
)
DELETE FROM obligation_events e USING gone g WHERE e.obligation = g.holder;
