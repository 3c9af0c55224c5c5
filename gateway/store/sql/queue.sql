-- name: take
-- ASY-1: takes the oldest confirmed work of one service ($5) and begins its attempts, in one statement. $4 are routes that have
-- no room.
WITH picked AS (
    SELECT q.logical_key, q.sealed, q.sealed_with
    FROM queue q
    JOIN intents w ON w.bucket = $1 AND w.logical_key = q.logical_key AND w.route <> ALL ($4::text[]) AND w.source = $5
    WHERE q.bucket = $1
    ORDER BY q.queued_at
    LIMIT $2
    FOR UPDATE OF q SKIP LOCKED
), gone AS (
    DELETE FROM queue q USING picked p WHERE q.bucket = $1 AND q.logical_key = p.logical_key
), begun AS (
    INSERT INTO attempts (bucket, logical_key, number, attempt_id, fence, started_at, holder)
    SELECT $1, i.logical_key, 1, i.attempt_id, i.fence, now(), $3::uuid
    FROM picked p
    JOIN intents i ON i.bucket = $1 AND i.logical_key = p.logical_key AND i.phase = 'PROCESSING'
    RETURNING logical_key
)
SELECT i.logical_key, i.server_correlation_id, i.client_correlation_id, i.attempt_id, i.fence, i.method, i.path, i.query,
    i.execution, y.sealed, y.sealed_with, p.sealed AS credentials, p.sealed_with AS credentials_with
FROM begun b
JOIN picked p ON p.logical_key = b.logical_key
JOIN intents i ON i.bucket = $1 AND i.logical_key = b.logical_key
JOIN payloads y ON y.bucket = $1 AND y.logical_key = b.logical_key;

-- name: take_one
-- The same for one intent, by its key: nothing else of the queue is looked at.
WITH picked AS (
    SELECT q.logical_key, q.sealed, q.sealed_with
    FROM queue q
    WHERE q.bucket = $1 AND q.logical_key = $2
    FOR UPDATE OF q SKIP LOCKED
), gone AS (
    DELETE FROM queue q USING picked p WHERE q.bucket = $1 AND q.logical_key = p.logical_key
), begun AS (
    INSERT INTO attempts (bucket, logical_key, number, attempt_id, fence, started_at, holder)
    SELECT $1, i.logical_key, 1, i.attempt_id, i.fence, now(), $3::uuid
    FROM picked p
    JOIN intents i ON i.bucket = $1 AND i.logical_key = p.logical_key AND i.phase = 'PROCESSING'
    RETURNING logical_key
)
SELECT i.logical_key, i.server_correlation_id, i.client_correlation_id, i.attempt_id, i.fence, i.method, i.path, i.query,
    i.execution, y.sealed, y.sealed_with, p.sealed AS credentials, p.sealed_with AS credentials_with
FROM begun b
JOIN picked p ON p.logical_key = b.logical_key
JOIN intents i ON i.bucket = $1 AND i.logical_key = b.logical_key
JOIN payloads y ON y.bucket = $1 AND y.logical_key = b.logical_key;

-- name: held
-- REC-7: what this worker has begun, for a `take` whose acknowledgement was lost. Its credentials are gone with the queue's
-- row; those of Phase 1 are with the payload. Repeats (REC-2) are not the queue's.
SELECT i.logical_key, i.server_correlation_id, i.client_correlation_id, i.attempt_id, i.fence, i.method, i.path, i.query,
    i.execution, y.sealed, y.sealed_with, NULL::bytea AS credentials, NULL::smallint AS credentials_with
FROM attempts a
JOIN intents i ON i.bucket = $1 AND i.logical_key = a.logical_key AND i.execution = 'async' AND i.phase = 'PROCESSING'
JOIN payloads y ON y.bucket = $1 AND y.logical_key = a.logical_key
WHERE a.bucket = $1 AND a.holder = $2 AND a.number = 1;
