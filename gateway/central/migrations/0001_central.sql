-- The central ledger: what services registered, kept for reading.
--
-- Two roles, as in a gateway's store: `twophp_request` reads, stores and raises entries; it forgets none and cannot rewrite who looked
-- at what. Partitions and retention are the owner's.

-- LED-4: who writes here. A name may have several ledgers (replicas with a store each, a store made anew); a ledger has one name.
CREATE TABLE services (
    service_ledger_id uuid PRIMARY KEY,
    name              text COLLATE "C" NOT NULL,
    operator_url      text,
    pull_token        bytea,  -- sealed (SEC-4)
    pull_token_key    smallint,
    registered_at     timestamptz NOT NULL DEFAULT now(),
    last_sync_at      timestamptz,
    last_pull_at      timestamptz,
    pull_cursor       text,
    revoked_at        timestamptz,
    CONSTRAINT services_pull_token CHECK ((pull_token IS NULL) = (pull_token_key IS NULL))
);

CREATE INDEX services_name ON services (name);

-- DESIGN decision 12.
CREATE TABLE sealing_keys (
    number      smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id          text NOT NULL UNIQUE,
    check_value bytea NOT NULL,
    added_at    timestamptz NOT NULL DEFAULT now()
);

-- LED-1: one row per registration in its latest version. `entry_key` stands for (service_ledger_id, actor, entry_id): with the time in
-- front of it, the key is narrow, grows at its end, and is the order in which entries are read.
-- `pair_known`: whether an earlier version already named the pair. A client learns the server's ID with the answer to Phase 1, if ever.
CREATE TABLE entries (
    phase_1_timestamp     timestamptz NOT NULL,
    entry_key             bytea NOT NULL,
    service_ledger_id     uuid NOT NULL,
    actor                 text COLLATE "C" NOT NULL CHECK (actor IN ('client', 'server')),
    entry_id              text COLLATE "C" NOT NULL,
    version               bigint NOT NULL,
    pair_known            boolean NOT NULL DEFAULT false,
    client_correlation_id text COLLATE "C" NOT NULL,
    server_correlation_id text COLLATE "C",
    service_endpoint      text COLLATE "C" NOT NULL,
    source                text COLLATE "C" NOT NULL,
    target                text,
    parent_reference_id   text COLLATE "C" NOT NULL,
    phase                 text COLLATE "C" NOT NULL
        CHECK (phase IN ('WAITING_CONFIRM', 'PROCESSING', 'COMMITTED', 'FAILED', 'TTL_EXPIRED', 'ABANDONED')),
    phase_2_timestamp     timestamptz,
    ttl_ms                bigint,
    outcome               text COLLATE "C",
    payload_ref           text,
    transaction_reference text,
    in_doubt              timestamptz,
    callback              text COLLATE "C" CHECK (callback IN ('pending', 'delivered', 'dead')),
    sync_timestamp        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (phase_1_timestamp, entry_key),
    -- COR-2, in the database too.
    CONSTRAINT entries_target CHECK ((actor = 'client') = (target IS NOT NULL)),
    CONSTRAINT entries_parent CHECK (actor = 'client' OR parent_reference_id = client_correlation_id),
    CONSTRAINT entries_pair CHECK (actor = 'client' OR server_correlation_id IS NOT NULL)
) PARTITION BY RANGE (phase_1_timestamp);

-- The full tree. Also finds the rows of one call by its client ID, but for client rows below the root, which have an index of their own:
-- on all others both IDs are the same.
CREATE INDEX entries_parent_id ON entries USING hash (parent_reference_id);
CREATE INDEX entries_client_id ON entries USING hash (client_correlation_id) WHERE client_correlation_id <> parent_reference_id;
CREATE INDEX entries_server_id ON entries USING hash (server_correlation_id);
-- Everything a service initiated, and any list of one service.
CREATE INDEX entries_source ON entries (source, actor, phase_1_timestamp, entry_key);
-- What is stalled, in doubt, or waits for an acknowledgement: few rows of many.
CREATE INDEX entries_open ON entries (phase_1_timestamp, entry_key) WHERE phase IN ('WAITING_CONFIRM', 'TTL_EXPIRED', 'PROCESSING');
CREATE INDEX entries_in_doubt ON entries (in_doubt, entry_key) WHERE in_doubt IS NOT NULL;
CREATE INDEX entries_callback ON entries (phase_1_timestamp, entry_key) WHERE callback IN ('pending', 'dead');

-- Where an entry goes whose time no partition is made for: a clock that was wrong must not stop a service's sync.
CREATE TABLE entries_odd PARTITION OF entries DEFAULT;

-- One partition per month. What the odd one has of that month moves along.
CREATE FUNCTION make_partition(first date) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    name text := 'entries_' || to_char(first, 'YYYY_MM');
    lower timestamptz := first::timestamp AT TIME ZONE 'UTC';
    upper timestamptz := (first + interval '1 month') AT TIME ZONE 'UTC';
BEGIN
    PERFORM pg_advisory_xact_lock(781278002);
    IF to_regclass(name) IS NOT NULL THEN
        RETURN false;
    END IF;
    LOCK TABLE entries_odd IN ACCESS EXCLUSIVE MODE;
    EXECUTE format('CREATE TABLE %I (LIKE entries INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
    EXECUTE format('WITH moved AS (DELETE FROM entries_odd WHERE phase_1_timestamp >= %L AND phase_1_timestamp < %L RETURNING *)'
        ' INSERT INTO %I SELECT * FROM moved', lower, upper, name);
    EXECUTE format('ALTER TABLE entries ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', name, lower, upper);
    RETURN true;
END $$;

-- A whole month goes at once, if it is past what is said now; what waits longer than a moment for the table's readers is left for later.
CREATE FUNCTION drop_partition(name text, keep_ms bigint) RETURNS void LANGUAGE plpgsql SET lock_timeout = '2s' AS $$
BEGIN
    IF EXISTS (SELECT FROM partitions p WHERE p.name = drop_partition.name AND p.upper < now() - interval '1 millisecond' * keep_ms) THEN
        EXECUTE format('DROP TABLE %I', name);
    END IF;
END $$;

-- The months that have a partition, with the time after their last entry.
CREATE VIEW partitions AS
SELECT c.relname AS name, (to_date(substr(c.relname, 9), 'YYYY_MM') + interval '1 month') AT TIME ZONE 'UTC' AS upper
FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
WHERE i.inhparent = 'entries'::regclass AND c.relname <> 'entries_odd';

-- COR-1: registrations that wait for their twin. `sides` is 1 for a client's row, 2 for a server's, 3 for both; those with both are removed.
-- A row of its own per pair, so that two sides that arrive at the same moment meet here and neither is overlooked. A client's row that knows
-- no server ID waits under its `entry_key`.
CREATE TABLE pairs (
    pair              bytea PRIMARY KEY,
    sides             smallint NOT NULL,
    source            text COLLATE "C" NOT NULL,
    phase_1_timestamp timestamptz NOT NULL,
    entry_key         bytea NOT NULL
);

CREATE FUNCTION pair_of(client_id text, server_id text) RETURNS bytea LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN substring(sha256(convert_to(client_id || chr(10) || server_id, 'UTF8')) FROM 1 FOR 16);

CREATE INDEX pairs_waiting ON pairs (sides, phase_1_timestamp, entry_key);
CREATE INDEX pairs_source ON pairs (source, sides, phase_1_timestamp, entry_key);

-- How many entries there are, by minute and by hour of Phase 1: counted anew from the entries themselves whenever some of that minute changed.
CREATE TABLE tallies (
    grain  text COLLATE "C" NOT NULL CHECK (grain IN ('minute', 'hour')),
    at     timestamptz NOT NULL,
    source text COLLATE "C" NOT NULL,
    actor  text COLLATE "C" NOT NULL,
    phase  text COLLATE "C" NOT NULL,
    rows   bigint NOT NULL,
    PRIMARY KEY (grain, actor, at, source, phase) INCLUDE (rows)
);

-- Insert-only and without a key: whoever stores entries never waits for somebody else's mark.
CREATE TABLE touched (
    grain text COLLATE "C" NOT NULL,
    at    timestamptz NOT NULL
);

CREATE INDEX touched_at ON touched (grain, at);

-- SEC-5: who looked at what. Insert-only for everybody but the owner.
CREATE TABLE access_log (
    id      bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at      timestamptz NOT NULL DEFAULT now(),
    name    text,
    role    text,
    method  text NOT NULL,
    path    text NOT NULL,
    target  text,
    service text,
    status  smallint NOT NULL
);

GRANT SELECT ON ALL TABLES IN SCHEMA public TO twophp_request;
GRANT INSERT ON services, entries, pairs, tallies, touched, access_log TO twophp_request;
GRANT UPDATE ON services TO twophp_request;
GRANT UPDATE (version, pair_known, service_endpoint, phase, phase_2_timestamp, ttl_ms, outcome, payload_ref, transaction_reference,
    in_doubt, callback, sync_timestamp, server_correlation_id) ON entries TO twophp_request;
GRANT UPDATE (sides) ON pairs TO twophp_request;
GRANT DELETE ON pairs, tallies, touched TO twophp_request;
