-- name: due
-- REC-2: intents in doubt of one service whose time has come, each left to whoever asked for $4 ms: if that one dies, it comes
-- again. `token` is what the claim is known by. `proven`: a fenced gateway's evidence that no later send can contradict. Here and
-- below, evidence of an attempt that is not this intent's is none: an earlier release could leave it behind for a key's next use.
WITH picked AS (
    SELECT d.logical_key
    FROM in_doubt d
    CROSS JOIN LATERAL (
        SELECT FROM intents i
        WHERE i.bucket = $1 AND i.logical_key = d.logical_key AND i.phase = 'PROCESSING' AND i.source = $3
        LIMIT 1) AS open
    WHERE d.bucket = $1 AND d.next_at <= now()
    ORDER BY d.next_at
    LIMIT $2
    FOR UPDATE OF d SKIP LOCKED
), claimed AS (
    UPDATE in_doubt d SET next_at = now() + $4::bigint * interval '1 millisecond'
    FROM picked p
    WHERE d.bucket = $1 AND d.logical_key = p.logical_key
    RETURNING d.logical_key, d.next_at, d.asked
)
SELECT c.logical_key, c.next_at AS token, c.asked, i.server_correlation_id, i.client_correlation_id, i.method, i.path, i.fence,
    a.tries, a.sends, a.ended_at, now() AS read_at,
    EXISTS (SELECT FROM payloads p WHERE p.bucket = $1 AND p.logical_key = c.logical_key) AS payload_kept,
    EXISTS (
        SELECT FROM evidence e
        JOIN attempts o ON o.bucket = $1 AND o.logical_key = e.logical_key AND o.attempt_id = e.attempt_id
        WHERE e.bucket = $1 AND e.logical_key = c.logical_key AND e.fence >= a.last_sent) AS proven
FROM claimed c
JOIN intents i ON i.bucket = $1 AND i.logical_key = c.logical_key
CROSS JOIN LATERAL (
    SELECT count(*) AS tries, count(*) FILTER (WHERE a.sent IS NOT FALSE) AS sends, max(a.ended_at) AS ended_at,
        coalesce(max(a.fence) FILTER (WHERE a.sent IS NOT FALSE), 0) AS last_sent
    FROM attempts a WHERE a.bucket = $1 AND a.logical_key = c.logical_key
) AS a;

-- name: hold
-- REC-2: quarantined for a verdict. Where that is the route's own policy ($5 false) nothing new has happened; otherwise it is
-- an event.
WITH held AS (
    UPDATE in_doubt d SET next_at = NULL, held = $4
    WHERE d.bucket = $1 AND d.logical_key = $2 AND d.next_at = $3
    RETURNING d.logical_key
), audited AS (
    INSERT INTO events (bucket, logical_key, code, detail)
    SELECT $1, logical_key, 'HELD', jsonb_build_object('reason', $4::text) FROM held WHERE $5::boolean
)
SELECT logical_key FROM held;

-- name: postpone
-- Looked at again later, by whoever comes first; until then it is the asker's. $5 more probes have told nothing.
UPDATE in_doubt d SET next_at = now() + $4::bigint * interval '1 millisecond', asked = d.asked + $5
WHERE d.bucket = $1 AND d.logical_key = $2 AND d.next_at = $3
RETURNING d.next_at AS token;

-- name: redrive
-- REC-2: the next attempt, under a higher fence, once: whoever finds the doubt unclaimed by others, the fence unmoved and no
-- evidence that settles it. The doubt is over while the attempt runs; if it ends without an answer, or its gateway dies, a new
-- one begins. Locks in the order of every statement here: the doubt, then the intent.
WITH doubt AS MATERIALIZED (
    SELECT d.logical_key FROM in_doubt d WHERE d.bucket = $1 AND d.logical_key = $2 AND d.next_at = $4 FOR UPDATE
), before AS MATERIALIZED (
    SELECT max(a.number) AS number, coalesce(max(a.fence) FILTER (WHERE a.sent IS NOT FALSE), 0) AS last_sent
    FROM attempts a WHERE a.bucket = $1 AND a.logical_key = $2
), taken AS (
    UPDATE intents i SET fence = i.fence + 1, attempt_id = $5
    FROM doubt d
    WHERE i.bucket = $1 AND i.logical_key = d.logical_key AND i.fence = $3 AND i.phase = 'PROCESSING'
        AND EXISTS (SELECT FROM payloads p WHERE p.bucket = $1 AND p.logical_key = $2)
        AND NOT EXISTS (
            SELECT FROM evidence e
            JOIN attempts o ON o.bucket = $1 AND o.logical_key = e.logical_key AND o.attempt_id = e.attempt_id
            WHERE e.bucket = $1 AND e.logical_key = $2 AND e.fence >= (SELECT last_sent FROM before))
    RETURNING i.logical_key, i.fence, i.attempt_id, i.server_correlation_id, i.client_correlation_id, i.method, i.path,
        i.query, i.execution
), over AS (
    DELETE FROM in_doubt d USING taken t WHERE d.bucket = $1 AND d.logical_key = t.logical_key
), begun AS (
    INSERT INTO attempts (bucket, logical_key, number, attempt_id, fence, started_at, holder)
    SELECT $1, t.logical_key, b.number + 1, t.attempt_id, t.fence, now(), $6::uuid FROM taken t CROSS JOIN before b
), audited AS (
    INSERT INTO events (bucket, logical_key, code, detail)
    SELECT $1, t.logical_key, 'REDRIVE', jsonb_build_object('attempt_id', t.attempt_id, 'number', b.number + 1)
    FROM taken t CROSS JOIN before b
)
SELECT t.*, p.sealed, p.sealed_with, p.credentials, p.credentials_with
FROM taken t JOIN payloads p ON p.bucket = $1 AND p.logical_key = t.logical_key;

-- name: own_redrive
-- REC-7: what this attempt has begun, for a redrive whose acknowledgement was lost; only while it is its holder's.
SELECT i.logical_key, i.fence, i.attempt_id, i.server_correlation_id, i.client_correlation_id, i.method, i.path, i.query,
    i.execution, p.sealed, p.sealed_with, p.credentials, p.credentials_with
FROM intents i
JOIN payloads p ON p.bucket = $1 AND p.logical_key = i.logical_key
JOIN attempts a ON a.bucket = $1 AND a.logical_key = i.logical_key AND a.fence = i.fence AND a.holder IS NOT DISTINCT FROM $4
WHERE i.bucket = $1 AND i.logical_key = $2 AND i.attempt_id = $3 AND i.phase = 'PROCESSING';

-- name: rule
-- REC-2, REC-6: a doubt is settled from outside, once: by a probe, under the fence it looked at, or by an operator's verdict
-- ($3 null), for whom the doubt itself is the guard: it is gone as soon as anybody has settled the intent or sends it again.
WITH doubt AS MATERIALIZED (
    SELECT d.logical_key FROM in_doubt d WHERE d.bucket = $1 AND d.logical_key = $2 FOR UPDATE
), settled AS (
    UPDATE intents i
    SET came_from = i.phase, phase = $4::text::phase, settled_at = now(), settled_by = $5,
        resource_id = CASE WHEN $4::text = 'COMMITTED' THEN coalesce($6, i.server_correlation_id::text) END, message = $7
    FROM doubt d
    WHERE i.bucket = $1 AND i.logical_key = d.logical_key AND i.phase = 'PROCESSING' AND ($3::integer IS NULL OR i.fence = $3)
    RETURNING i.logical_key, i.phase
), over AS (
    DELETE FROM in_doubt d USING settled s WHERE d.bucket = $1 AND d.logical_key = s.logical_key
), erased AS (
    DELETE FROM payloads p USING settled s WHERE p.bucket = $1 AND p.logical_key = s.logical_key
), audited AS (
    INSERT INTO events (bucket, logical_key, code, phase, detail)
    SELECT $1, logical_key, CASE phase WHEN 'COMMITTED' THEN 'OBL-002' ELSE 'OBL-003' END, phase, $8::text::jsonb FROM settled
)
SELECT logical_key FROM settled;

-- name: standing
-- How an intent of one service ($3) stands, for an operator who judges it.
SELECT i.logical_key, i.phase::text AS phase, i.settled_by, i.settled_at, d.logical_key IS NOT NULL AS in_doubt
FROM intents i
LEFT JOIN in_doubt d ON d.bucket = $1 AND d.logical_key = i.logical_key
WHERE i.bucket = $1 AND i.server_correlation_id = $2 AND i.source = $3;

-- name: refuse_verdict
-- A verdict that came too late, or too early, is in the audit trail all the same.
INSERT INTO events (bucket, logical_key, code, detail) VALUES ($1, $2, 'VERDICT_REFUSED', $3::text::jsonb);

-- name: keep_evidence
-- REC-1: what a fenced gateway came back with. If nothing was sent since, whoever looks at doubts is to look at once, held or
-- not.
WITH kept AS (
    INSERT INTO evidence (
        bucket, logical_key, fence, attempt_id, phase, resource_id, message, status, body_bytes, body_sha256, kept,
        sealed_with, sealed, verify_with, verify)
    VALUES ($1, $2, $3, $4, $5::text::phase, $6, $7, $9, $10, $11, $12, $13, $14, $15, $16)
    ON CONFLICT (logical_key, fence, bucket) DO NOTHING
    RETURNING logical_key, fence, attempt_id, phase, status
), known AS (
    UPDATE attempts a SET sent = $8, status = k.status
    FROM kept k
    WHERE a.bucket = $1 AND a.logical_key = k.logical_key AND a.fence = k.fence AND a.sent IS NULL
), woken AS (
    UPDATE in_doubt d SET next_at = now(), held = NULL
    FROM kept k
    WHERE d.bucket = $1 AND d.logical_key = k.logical_key
        AND NOT EXISTS (
            SELECT FROM attempts a
            WHERE a.bucket = $1 AND a.logical_key = k.logical_key AND a.fence > k.fence AND a.sent IS NOT FALSE)
), audited AS (
    INSERT INTO events (bucket, logical_key, code, detail)
    SELECT $1, logical_key, 'EVIDENCE', jsonb_build_object('attempt_id', attempt_id, 'phase', phase, 'status', status)
    FROM kept
)
SELECT logical_key FROM kept;

-- name: settle_from_evidence
-- DESIGN decision 7: the fence's holder settles the intent from what a fenced gateway knew, if nothing was sent since.
WITH doubt AS MATERIALIZED (
    SELECT d.logical_key FROM in_doubt d WHERE d.bucket = $1 AND d.logical_key = $2 FOR UPDATE
), proof AS MATERIALIZED (
    SELECT e.* FROM evidence e
    JOIN attempts o ON o.bucket = $1 AND o.logical_key = e.logical_key AND o.attempt_id = e.attempt_id
    WHERE e.bucket = $1 AND e.logical_key = $2
    ORDER BY e.fence DESC
    LIMIT 1
), settled AS (
    UPDATE intents i
    SET came_from = i.phase, phase = p.phase, settled_at = now(), settled_by = 'evidence', resource_id = p.resource_id,
        message = p.message
    FROM doubt d CROSS JOIN proof p
    WHERE i.bucket = $1 AND i.logical_key = d.logical_key AND i.fence = $3 AND i.phase = 'PROCESSING'
        AND NOT EXISTS (
            SELECT FROM attempts a
            WHERE a.bucket = $1 AND a.logical_key = $2 AND a.fence > p.fence AND a.sent IS NOT FALSE)
    RETURNING i.logical_key, i.phase
), answered AS (
    INSERT INTO responses (bucket, logical_key, status, body_bytes, body_sha256, kept, sealed_with, sealed)
    SELECT $1, s.logical_key, p.status, p.body_bytes, p.body_sha256, p.kept, p.sealed_with, p.sealed
    FROM settled s CROSS JOIN proof p WHERE p.sealed IS NOT NULL
), to_verify AS (
    INSERT INTO verifications (bucket, logical_key, sealed_with, sealed)
    SELECT $1, s.logical_key, p.verify_with, p.verify FROM settled s CROSS JOIN proof p WHERE p.verify IS NOT NULL
), over AS (
    DELETE FROM in_doubt d USING settled s WHERE d.bucket = $1 AND d.logical_key = s.logical_key
), erased AS (
    DELETE FROM payloads p USING settled s WHERE p.bucket = $1 AND p.logical_key = s.logical_key
), audited AS (
    INSERT INTO events (bucket, logical_key, code, phase, detail)
    SELECT $1, s.logical_key, CASE s.phase WHEN 'COMMITTED' THEN 'OBL-002' ELSE 'OBL-003' END, s.phase,
        jsonb_build_object('settled_by', 'evidence', 'attempt_id', p.attempt_id)
    FROM settled s CROSS JOIN proof p
)
SELECT s.phase::text AS phase FROM settled s;

-- name: payload
-- The sealed request, for its credentials.
SELECT p.sealed, p.sealed_with, p.credentials, p.credentials_with FROM payloads p WHERE p.bucket = $1 AND p.logical_key = $2;

-- name: keep_credentials
-- P2-3: those of the confirmation, beside the payload they replace Phase 1's in.
UPDATE payloads p SET credentials = $3, credentials_with = $4 WHERE p.bucket = $1 AND p.logical_key = $2;

-- name: due_verifications
-- REC-5: successes of one service whose turn it is to be confirmed, each left to whoever asked for $4 ms.
WITH picked AS (
    SELECT v.logical_key
    FROM verifications v
    CROSS JOIN LATERAL (
        SELECT FROM intents i
        WHERE i.bucket = $1 AND i.logical_key = v.logical_key AND i.phase = 'COMMITTED' AND i.source = $3
        LIMIT 1) AS committed
    WHERE v.bucket = $1 AND v.next_at <= now()
    ORDER BY v.next_at
    LIMIT $2
    FOR UPDATE OF v SKIP LOCKED
), claimed AS (
    UPDATE verifications v SET next_at = now() + $4::bigint * interval '1 millisecond'
    FROM picked p
    WHERE v.bucket = $1 AND v.logical_key = p.logical_key
    RETURNING v.logical_key, v.next_at, v.asked, v.sealed, v.sealed_with
)
SELECT c.logical_key, c.next_at AS token, c.asked, c.sealed, c.sealed_with, i.server_correlation_id, i.client_correlation_id,
    i.method, i.path, i.resource_id
FROM claimed c JOIN intents i ON i.bucket = $1 AND i.logical_key = c.logical_key;

-- name: verify_later
-- Looked at again after a while. $5 more questions have told nothing.
UPDATE verifications v SET next_at = now() + $4::bigint * interval '1 millisecond', asked = v.asked + $5
WHERE v.bucket = $1 AND v.logical_key = $2 AND v.next_at = $3
RETURNING v.logical_key;

-- name: verified
-- REC-5: it is there ($3 null), or it is not: then the intent is flagged, and every replay of its answer says so (RP-07).
WITH known AS (
    DELETE FROM verifications v WHERE v.bucket = $1 AND v.logical_key = $2 RETURNING v.logical_key
), flagged AS (
    UPDATE intents i SET verify_failed = true, message = $4
    FROM known k
    WHERE i.bucket = $1 AND i.logical_key = k.logical_key AND i.phase = 'COMMITTED' AND $3::text IS NOT NULL
), audited AS (
    INSERT INTO events (bucket, logical_key, code, detail)
    SELECT $1, logical_key, CASE WHEN $3::text IS NULL THEN 'VERIFIED' ELSE 'VERIFY_FAILED' END,
        CASE WHEN $3::text IS NOT NULL THEN jsonb_build_object('reason', $3::text) END
    FROM known
)
SELECT logical_key FROM known;
