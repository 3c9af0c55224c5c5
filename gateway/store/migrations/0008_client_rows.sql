-- Client rows (COR-1, COR-2, COR-4): what this service asked of others, beside what others asked of it.
--
-- A row is written by the egress side before Phase 1 leaves, or by a client that registers itself. Its changes are events
-- like those of intents, under a key of its own kind, so that both actors stand in one order of change (LED-2). What the
-- state machine is to intents, the called service is to these rows: they tell what this side knows. A target that does not
-- speak 2PHP executes at once, so a row may settle without a server's ID and without a confirmation.

CREATE TABLE client_entries (
    bucket                smallint NOT NULL,
    logical_key           bytea NOT NULL,
    client_correlation_id text NOT NULL,
    source                text NOT NULL,
    target                text NOT NULL,
    method                text,  -- null: the client registered the call itself
    path                  bytea NOT NULL,
    parent_reference_id   text NOT NULL,
    transaction_reference text,
    phase_1_timestamp     timestamptz NOT NULL,
    keep_until            timestamptz NOT NULL,
    -- what changes
    phase                 phase NOT NULL DEFAULT 'WAITING_CONFIRM',
    server_correlation_id text,
    ttl_ms                bigint CHECK (ttl_ms > 0),
    phase_2_timestamp     timestamptz,
    settled_at            timestamptz,
    in_doubt_since        timestamptz,
    sync_timestamp        timestamptz,
    PRIMARY KEY (logical_key, bucket),
    CONSTRAINT client_entries_ponr CHECK (phase <> 'PROCESSING' OR phase_2_timestamp IS NOT NULL),
    CONSTRAINT client_entries_settled CHECK (
        (phase IN ('COMMITTED', 'FAILED', 'TTL_EXPIRED', 'ABANDONED')) = (settled_at IS NOT NULL)
    ),
    CONSTRAINT client_entries_known CHECK (settled_at IS NULL OR in_doubt_since IS NULL)
) WITH (fillfactor = 70);

CREATE INDEX client_entries_client_id ON client_entries USING hash (client_correlation_id);
-- Set once, when Phase 1 is answered: the one change of a row that is not HOT.
CREATE INDEX client_entries_server_id ON client_entries (server_correlation_id, bucket) WHERE server_correlation_id IS NOT NULL;
CREATE INDEX client_entries_keep_until ON client_entries (keep_until, bucket);

GRANT SELECT, INSERT ON client_entries TO twophp_request;
GRANT UPDATE (phase, server_correlation_id, ttl_ms, phase_2_timestamp, settled_at, in_doubt_since, sync_timestamp)
    ON client_entries TO twophp_request;

-- LED-2: of several replicas one pushes at a time; two that do by mistake push the same, and it is stored once.
ALTER TABLE cursors ADD COLUMN holder uuid, ADD COLUMN lease_until timestamptz;
GRANT UPDATE (holder, lease_until) ON cursors TO twophp_request;
