-- The ground: intents and all that hangs on them.
--
-- Every per-intent table has its bucket in the primary key, and every request-path statement names exactly one bucket, so that
-- the same schema can be distributed by bucket (DESIGN decision 3). Hence: no triggers, no unique index without the bucket, no
-- volatile function in an UPDATE. The bucket stands last in every index: with one bucket it selects nothing, and an index that
-- starts with it tempts the planner to walk the whole of it.

CREATE TYPE phase AS ENUM ('WAITING_CONFIRM', 'PROCESSING', 'COMMITTED', 'FAILED', 'TTL_EXPIRED', 'ABANDONED');

-- Facts fixed at the first migration (the number of buckets).
CREATE TABLE facts (
    name  text PRIMARY KEY,
    value text NOT NULL
);

-- LED-4: each service's GUID in the ledger, made at its first start.
CREATE TABLE services (
    name              text PRIMARY KEY,
    service_ledger_id uuid NOT NULL UNIQUE DEFAULT gen_random_uuid()
);

-- DESIGN decision 12: which keys seal rows here, with a value that tells a wrong key from the right one.
CREATE TABLE sealing_keys (
    number      smallint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id          text NOT NULL UNIQUE,
    check_value bytea NOT NULL,
    added_at    timestamptz NOT NULL DEFAULT now()
);

-- Secrets made once per store and sealed by the key ring: the pepper of caller digests, never rotated.
CREATE TABLE secrets (
    name        text PRIMARY KEY,
    sealed      bytea NOT NULL,
    sealed_with smallint NOT NULL REFERENCES sealing_keys (number)
);

-- REC-1: one row per worker process. While it renews its lease, everything it holds is its own; once a rescuer has
-- declared it dead, it can never renew again and starts over under a new name.
CREATE TABLE holders (
    holder      uuid PRIMARY KEY,
    started_at  timestamptz NOT NULL DEFAULT now(),
    lease_until timestamptz NOT NULL,
    dead        boolean NOT NULL DEFAULT false
);

-- The intent: the server's ledger row (LED-1), and the tombstone that keeps its key consumed for the replay horizon (RPL-4).
-- Phase updates stay HOT: no index names a column that changes.
CREATE TABLE intents (
    bucket                smallint NOT NULL,
    logical_key           bytea NOT NULL,
    server_correlation_id uuid NOT NULL,
    client_correlation_id text NOT NULL,
    replay_key            bytea NOT NULL,
    caller                bytea NOT NULL,
    source                text NOT NULL,
    method                text NOT NULL,
    path                  bytea NOT NULL,
    query                 bytea,
    route                 text NOT NULL,
    execution             text NOT NULL CHECK (execution IN ('sync', 'async')),
    replay_policy         text NOT NULL CHECK (replay_policy IN ('REJECT', 'REUSE')),
    parent_reference_id   text NOT NULL,
    transaction_reference text,
    payload_sha256        bytea,  -- null while a payload too large to keep is being passed on
    payload_bytes         bigint,
    ttl_ms                bigint NOT NULL CHECK (ttl_ms > 0),
    grace_ms              bigint NOT NULL CHECK (grace_ms >= 0),
    horizon_ms            bigint NOT NULL,
    phase_1_timestamp     timestamptz NOT NULL,
    ponr_deadline         timestamptz NOT NULL,
    keep_until            timestamptz NOT NULL,
    -- what changes
    phase                 phase NOT NULL DEFAULT 'WAITING_CONFIRM',
    came_from             phase,
    phase_2_timestamp     timestamptz,
    settled_at            timestamptz,
    settled_by            text,
    fence                 integer NOT NULL DEFAULT 0,
    attempt_id            uuid,
    resource_id           text,
    message               text,
    sync_timestamp        timestamptz,
    PRIMARY KEY (logical_key, bucket),
    -- FSM-1, in the database: every statement that changes the phase says where it came from (`came_from = phase`), and only
    -- the edges of the state machine exist. An update that forgot its guard fails here. (IS TRUE: to a CHECK, null is no no.)
    CONSTRAINT intents_legal_edge CHECK ((
        came_from IS NULL AND phase = 'WAITING_CONFIRM'
        OR came_from = 'WAITING_CONFIRM' AND phase IN ('PROCESSING', 'TTL_EXPIRED')
        OR came_from = 'TTL_EXPIRED' AND phase = 'ABANDONED'
        OR came_from = 'TTL_EXPIRED' AND phase = 'PROCESSING' AND replay_policy = 'REUSE'
        OR came_from = 'PROCESSING' AND phase IN ('COMMITTED', 'FAILED')
    ) IS TRUE),
    -- An intent was executed exactly when its PONR was crossed; it is settled exactly when its phase is terminal.
    CONSTRAINT intents_ponr CHECK (
        (phase IN ('PROCESSING', 'COMMITTED', 'FAILED')) = (phase_2_timestamp IS NOT NULL AND fence > 0 AND attempt_id IS NOT NULL)
    ),
    CONSTRAINT intents_settled CHECK ((phase IN ('COMMITTED', 'FAILED', 'ABANDONED')) = (settled_at IS NOT NULL)),
    CONSTRAINT intents_deadline CHECK (ponr_deadline > phase_1_timestamp)
) WITH (fillfactor = 70);

CREATE INDEX intents_server_id ON intents (server_correlation_id, bucket);
CREATE INDEX intents_client_id ON intents USING hash (client_correlation_id);
CREATE INDEX intents_keep_until ON intents (keep_until, bucket);

-- The sealed request of an intent that may still have to be sent. Erased once it never will be (TTL-2).
-- `pending_of` is a hash of caller and route: what P1-8 counts.
CREATE TABLE payloads (
    bucket        smallint NOT NULL,
    logical_key   bytea NOT NULL,
    pending_of    bigint NOT NULL,
    ponr_deadline timestamptz NOT NULL,
    sealed_with   smallint NOT NULL,
    sealed        bytea NOT NULL,
    PRIMARY KEY (logical_key, bucket)
);
ALTER TABLE payloads ALTER COLUMN sealed SET STORAGE EXTERNAL; -- ciphertext does not compress

CREATE INDEX payloads_pending ON payloads (pending_of, ponr_deadline, bucket);
CREATE INDEX payloads_deadline ON payloads (ponr_deadline, bucket);

-- REC-3: one row per attempt. `holder` is who may still be working on it, and null once it has ended; the partial index is
-- the queue of the rescuer.
CREATE TABLE attempts (
    bucket      smallint NOT NULL,
    logical_key bytea NOT NULL,
    number      integer NOT NULL,
    attempt_id  uuid NOT NULL,
    fence       integer NOT NULL,
    started_at  timestamptz NOT NULL,
    holder      uuid,
    sent        boolean,
    ended_at    timestamptz,
    status      smallint,
    error       text,
    PRIMARY KEY (logical_key, number, bucket),
    CONSTRAINT attempts_ended CHECK ((holder IS NULL) = (ended_at IS NOT NULL))
) WITH (fillfactor = 70);

CREATE INDEX attempts_held ON attempts (holder, bucket) WHERE holder IS NOT NULL;

-- RPL-1, RPL-6: what upstream answered; `sealed` holds its headers and, when `kept`, its body.
CREATE TABLE responses (
    bucket      smallint NOT NULL,
    logical_key bytea NOT NULL,
    status      smallint NOT NULL,
    body_bytes  bigint,
    body_sha256 bytea,
    kept        boolean NOT NULL,
    sealed_with smallint NOT NULL,
    sealed      bytea NOT NULL,
    PRIMARY KEY (logical_key, bucket)
);
ALTER TABLE responses ALTER COLUMN sealed SET STORAGE EXTERNAL;

-- REC-2: intents that may have taken effect, with nobody knowing. The intent itself stays PROCESSING.
CREATE TABLE in_doubt (
    bucket      smallint NOT NULL,
    logical_key bytea NOT NULL,
    since       timestamptz NOT NULL,
    reason      text NOT NULL,
    PRIMARY KEY (logical_key, bucket)
);

CREATE INDEX in_doubt_since ON in_doubt (since, logical_key, bucket);

-- FSM-2, REP-5: the audit trail, insert-only, and the order of change that feeds every reader: by (xid, id), read only below
-- the oldest transaction still running, so that a late commit is never skipped (DESIGN decision 5).
CREATE TABLE events (
    bucket      smallint NOT NULL,
    id          bigint GENERATED ALWAYS AS IDENTITY,
    xid         xid8 NOT NULL DEFAULT pg_current_xact_id(),
    logical_key bytea NOT NULL,
    at          timestamptz NOT NULL DEFAULT now(),
    code        text NOT NULL,
    phase       phase,
    detail      jsonb,
    PRIMARY KEY (logical_key, id, bucket)
);

CREATE INDEX events_order ON events (xid, id);

-- DESIGN decision 11, REP-6: what the request path may do. It cannot free a key, forget an intent or rewrite the audit trail.
GRANT SELECT ON ALL TABLES IN SCHEMA public TO twophp_request;
GRANT INSERT ON intents, payloads, attempts, responses, in_doubt, events, holders TO twophp_request;
GRANT UPDATE (phase, came_from, phase_2_timestamp, settled_at, settled_by, fence, attempt_id, resource_id, message, sync_timestamp,
    payload_sha256, payload_bytes)
    ON intents TO twophp_request;
GRANT UPDATE (holder, sent, ended_at, status, error) ON attempts TO twophp_request;
GRANT UPDATE (body_bytes, body_sha256, kept, sealed, sealed_with) ON responses TO twophp_request;
GRANT UPDATE (lease_until, dead) ON holders TO twophp_request;
GRANT DELETE ON payloads, in_doubt TO twophp_request;
