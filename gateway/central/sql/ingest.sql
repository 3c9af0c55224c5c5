-- name: store
-- LED-2: a batch, sorted by key, each key once; idempotent by version; all of it or, once the service is revoked, nothing. Answers how many rows
-- are new or were raised (their keys on request), and the pairs that now have both sides: these meet in `pairs` (COR-1).
WITH met AS (
    UPDATE services SET last_sync_at = CASE WHEN $22::boolean THEN last_sync_at ELSE now() END, last_pull_at = CASE WHEN $22 THEN now() ELSE last_pull_at END
    WHERE service_ledger_id = $1::uuid AND revoked_at IS NULL RETURNING 1
),
incoming AS (
    SELECT * FROM unnest($2::timestamptz[], $3::bytea[], $4::text[], $5::text[], $6::bigint[], $7::text[], $8::text[], $9::text[],
        $10::text[], $11::text[], $12::text[], $13::text[], $14::timestamptz[], $15::bigint[], $16::text[], $17::text[], $18::text[],
        $19::timestamptz[], $20::text[])
    AS i (phase_1_timestamp, entry_key, actor, entry_id, version, client_correlation_id, server_correlation_id, service_endpoint,
        source, target, parent_reference_id, phase, phase_2_timestamp, ttl_ms, outcome, payload_ref, transaction_reference,
        in_doubt, callback)
),
stored AS (
    INSERT INTO entries AS e (phase_1_timestamp, entry_key, service_ledger_id, actor, entry_id, version, client_correlation_id,
        server_correlation_id, service_endpoint, source, target, parent_reference_id, phase, phase_2_timestamp, ttl_ms, outcome,
        payload_ref, transaction_reference, in_doubt, callback)
    SELECT i.phase_1_timestamp, i.entry_key, $1::uuid, i.actor, i.entry_id, i.version, i.client_correlation_id,
        i.server_correlation_id, i.service_endpoint, i.source, i.target, i.parent_reference_id, i.phase, i.phase_2_timestamp, i.ttl_ms,
        i.outcome, i.payload_ref, i.transaction_reference, i.in_doubt, i.callback
    FROM incoming i WHERE EXISTS (SELECT FROM met)
    ON CONFLICT (phase_1_timestamp, entry_key) DO UPDATE SET
        version = excluded.version, pair_known = e.server_correlation_id IS NOT NULL,
        server_correlation_id = coalesce(excluded.server_correlation_id, e.server_correlation_id),
        service_endpoint = excluded.service_endpoint, phase = excluded.phase, phase_2_timestamp = excluded.phase_2_timestamp,
        ttl_ms = excluded.ttl_ms, outcome = excluded.outcome, payload_ref = excluded.payload_ref,
        transaction_reference = excluded.transaction_reference, in_doubt = excluded.in_doubt, callback = excluded.callback,
        sync_timestamp = excluded.sync_timestamp
    WHERE excluded.version > e.version
    RETURNING e.entry_key, e.actor, e.source, e.phase_1_timestamp, e.client_correlation_id, e.server_correlation_id, e.pair_known, e.server_correlation_id IS NOT NULL AS named,
        coalesce(pair_of(e.client_correlation_id, e.server_correlation_id), e.entry_key) AS pair
),
waiting AS (
    -- One row for all that name a pair: the oldest, whole, so that it leads to an entry.
    SELECT DISTINCT ON (s.pair) s.pair, bit_or(CASE s.actor WHEN 'client' THEN 1 ELSE 2 END) OVER (PARTITION BY s.pair)::smallint AS sides,
        s.source, s.phase_1_timestamp, s.entry_key, s.client_correlation_id, s.server_correlation_id
    FROM stored s WHERE NOT s.pair_known ORDER BY s.pair, s.phase_1_timestamp, s.entry_key
),
twins AS (
    DELETE FROM pairs WHERE pair IN (
        SELECT p.pair FROM waiting w JOIN pairs p ON p.pair = w.pair WHERE p.sides <> w.sides ORDER BY p.pair FOR UPDATE OF p
    )
    RETURNING pair
),
paired AS (
    -- A twin that commits in this very moment is not seen above, and met here.
    INSERT INTO pairs AS p (pair, sides, source, phase_1_timestamp, entry_key)
    SELECT w.pair, w.sides, w.source, w.phase_1_timestamp, w.entry_key FROM waiting w
    WHERE w.sides <> 3 AND w.pair NOT IN (SELECT t.pair FROM twins t)
        -- A further client of a call that has its server lacks nothing. Both sides of a call begin within a day, so few partitions are asked.
        AND CASE WHEN w.sides = 1 THEN NOT EXISTS (
            SELECT FROM entries x WHERE x.server_correlation_id = w.server_correlation_id AND x.actor = 'server'
                AND x.client_correlation_id = w.client_correlation_id
                AND x.phase_1_timestamp BETWEEN w.phase_1_timestamp - interval '1 day' AND w.phase_1_timestamp + interval '1 day'
        ) ELSE true END
    ORDER BY w.pair
    ON CONFLICT (pair) DO UPDATE SET sides = p.sides | excluded.sides
    RETURNING p.pair, p.sides
),
named AS (
    DELETE FROM pairs WHERE pair IN (SELECT s.entry_key FROM stored s WHERE s.named AND NOT s.pair_known AND s.actor = 'client')
),
touched AS (
    INSERT INTO touched (grain, at) SELECT DISTINCT 'minute', date_trunc('minute', s.phase_1_timestamp, 'UTC') FROM stored s
)
SELECT (SELECT count(*) FROM stored) AS stored, CASE WHEN $21::boolean THEN ARRAY(SELECT s.entry_key FROM stored s) END AS keys,
    ARRAY(SELECT p.pair FROM paired p WHERE p.sides = 3) AS complete, EXISTS (SELECT FROM met) AS met

-- name: met
-- A service that has nothing new still lives.
UPDATE services SET last_sync_at = now() WHERE service_ledger_id = $1 AND revoked_at IS NULL

-- name: forget_complete
-- Pairs with both sides need no more looking after.
DELETE FROM pairs WHERE pair = ANY($1::bytea[]) AND sides = 3

-- name: tidy_complete
-- The same for those whose ingest died in between.
DELETE FROM pairs WHERE pair IN (SELECT pair FROM pairs WHERE sides = 3 LIMIT 5000)

-- name: make_partition
SELECT make_partition($1::date)

-- name: moved
-- Rows known under another Phase 1 time: it is part of what identifies them.
SELECT n.entry_id FROM unnest($2::text[], $3::text[], $4::timestamptz[], $5::text[]) AS n (actor, entry_id, phase_1_timestamp, client_correlation_id)
WHERE EXISTS (
    SELECT FROM entries e
    WHERE e.parent_reference_id = n.client_correlation_id AND e.service_ledger_id = $1 AND e.actor = n.actor
        AND e.entry_id = n.entry_id AND e.phase_1_timestamp <> n.phase_1_timestamp
) OR EXISTS (
    SELECT FROM entries e
    WHERE e.client_correlation_id = n.client_correlation_id AND e.client_correlation_id <> e.parent_reference_id
        AND e.service_ledger_id = $1 AND e.actor = n.actor AND e.entry_id = n.entry_id
        AND e.phase_1_timestamp <> n.phase_1_timestamp
)
LIMIT 1

-- name: count_minutes
-- The tallies of some minutes that changed, counted anew. A minute that changes meanwhile stays touched, and is counted again.
WITH taken AS (
    DELETE FROM touched WHERE grain = 'minute' AND at IN (SELECT DISTINCT at FROM touched WHERE grain = 'minute' ORDER BY at LIMIT $1) RETURNING at
),
minutes AS (SELECT DISTINCT at FROM taken),
counted AS (
    SELECT m.at, e.source, e.actor, e.phase, count(*) AS rows
    FROM minutes m CROSS JOIN LATERAL (
        SELECT x.source, x.actor, x.phase FROM entries x
        WHERE x.phase_1_timestamp >= m.at AND x.phase_1_timestamp < m.at + interval '1 minute'
    ) e
    GROUP BY m.at, e.source, e.actor, e.phase
),
gone AS (
    DELETE FROM tallies t USING minutes m WHERE t.grain = 'minute' AND t.actor = ANY (ARRAY['client', 'server']) AND t.at = m.at
        AND NOT EXISTS (SELECT FROM counted c WHERE (c.at, c.source, c.actor, c.phase) = (t.at, t.source, t.actor, t.phase))
),
written AS (
    INSERT INTO tallies (grain, at, source, actor, phase, rows)
    SELECT 'minute', at, source, actor, phase, rows FROM counted
    ON CONFLICT (grain, actor, at, source, phase) DO UPDATE SET rows = excluded.rows
),
hours AS (
    INSERT INTO touched (grain, at) SELECT DISTINCT 'hour', date_trunc('hour', at, 'UTC') FROM minutes
)
SELECT count(*) AS minutes FROM minutes

-- name: count_hours
-- The same for hours, from the minutes.
WITH taken AS (
    DELETE FROM touched WHERE grain = 'hour' AND at IN (SELECT DISTINCT at FROM touched WHERE grain = 'hour' ORDER BY at LIMIT $1) RETURNING at
),
hours AS (SELECT DISTINCT at FROM taken),
counted AS (
    SELECT h.at, t.source, t.actor, t.phase, sum(t.rows) AS rows
    FROM hours h JOIN tallies t ON t.grain = 'minute' AND t.actor = ANY (ARRAY['client', 'server'])
        AND t.at >= h.at AND t.at < h.at + interval '1 hour'
    GROUP BY h.at, t.source, t.actor, t.phase
),
gone AS (
    DELETE FROM tallies t USING hours h WHERE t.grain = 'hour' AND t.actor = ANY (ARRAY['client', 'server']) AND t.at = h.at
        AND NOT EXISTS (SELECT FROM counted c WHERE (c.at, c.source, c.actor, c.phase) = (t.at, t.source, t.actor, t.phase))
),
written AS (
    INSERT INTO tallies (grain, at, source, actor, phase, rows)
    SELECT 'hour', at, source, actor, phase, rows FROM counted
    ON CONFLICT (grain, actor, at, source, phase) DO UPDATE SET rows = excluded.rows
)
SELECT count(*) AS hours FROM hours
