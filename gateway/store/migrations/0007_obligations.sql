-- Obligations (OBL-1): side effects in two steps, reserved and then committed or rolled back.
--
-- What others reserve through the API, and those of the gateway's own side effects that have no row elsewhere. Deliveries, leases,
-- what is in doubt and schema steps are obligations too (OBL-4), and their own rows serve: nothing is written twice.
--
-- The bucket is that of a hash of flow and key, and an ID's last bits tell it, as with intents. `leaks_at` is when a reservation
-- that nobody settled is taken back, on the database's clock. `settled_call` tells whoever lost an acknowledgement whether it was
-- their own call that settled it (REC-7). `sealed` is the payload, gone once the obligation is settled.

CREATE TABLE obligations (
    bucket       smallint NOT NULL,
    id           uuid NOT NULL,
    flow         text NOT NULL,
    key          text NOT NULL,
    trace_id     text NOT NULL,
    reserved_by  text NOT NULL,
    own          boolean NOT NULL DEFAULT false,
    reserved_at  timestamptz NOT NULL DEFAULT now(),
    payload_sha256 bytea NOT NULL,
    payload_bytes  integer NOT NULL,
    -- what changes
    state        text NOT NULL DEFAULT 'Reserved' CHECK (state IN ('Reserved', 'Committed', 'RolledBack')),
    leaks_at     timestamptz NOT NULL,
    leaked       boolean NOT NULL DEFAULT false,
    settled_at   timestamptz,
    settled_call uuid,
    sealed_with  smallint,
    sealed       bytea,
    PRIMARY KEY (id, bucket),
    CONSTRAINT obligations_settled CHECK ((state = 'Reserved') = (settled_at IS NULL)),
    CONSTRAINT obligations_payload CHECK ((state = 'Reserved') = (sealed IS NOT NULL)),
    CONSTRAINT obligations_leaked CHECK (state = 'RolledBack' OR NOT leaked)
);
ALTER TABLE obligations ALTER COLUMN sealed SET STORAGE EXTERNAL;

-- OBL-3: (flow, key) is unique while Reserved or Committed.
CREATE UNIQUE INDEX obligations_live ON obligations (flow, key, bucket) WHERE state <> 'RolledBack';
-- The leak scan's queue.
CREATE INDEX obligations_leaks ON obligations (leaks_at, bucket) WHERE state = 'Reserved';
-- What retention forgets.
CREATE INDEX obligations_own ON obligations (settled_at, bucket) WHERE own;
-- For operators: all of them, those in one state, those of one flow, each in the order of reservation.
CREATE INDEX obligations_order ON obligations (reserved_at, id, bucket);
CREATE INDEX obligations_by_state ON obligations (state, reserved_at, id, bucket);
CREATE INDEX obligations_by_flow ON obligations (flow, reserved_at, id, bucket);

-- What happened to them, and to leases (flow `fencing`), insert-only; in order of change by (xid, id), as with `events`. The
-- obligation of an OBL-005 is null: the scan is nobody's.
CREATE TABLE obligation_events (
    bucket     smallint NOT NULL,
    id         bigint GENERATED ALWAYS AS IDENTITY,
    xid        xid8 NOT NULL DEFAULT pg_current_xact_id(),
    obligation uuid,
    at         timestamptz NOT NULL DEFAULT now(),
    code       text NOT NULL CHECK (code IN ('OBL-001', 'OBL-002', 'OBL-003', 'OBL-004', 'OBL-005')),
    trace_id   text,
    by         text,
    detail     jsonb,
    PRIMARY KEY (id, bucket)
);

CREATE INDEX obligation_events_order ON obligation_events (xid, id);
CREATE INDEX obligation_events_of ON obligation_events (obligation, id, bucket);

-- OBL-005: the last leak scan, of whichever replica. A scan that took something back also leaves an event; one that found nothing
-- does not, so that an idle gateway's audit trail does not grow every few seconds.
CREATE TABLE leak_scans (
    name         text PRIMARY KEY,
    completed_at timestamptz,
    leaked       bigint NOT NULL DEFAULT 0,
    scans_total  bigint NOT NULL DEFAULT 0,
    leaked_total bigint NOT NULL DEFAULT 0
);
INSERT INTO leak_scans (name) VALUES ('obligations');

-- OBL-4, fencing: a lease that was handed back is committed, one that ran out was a leak.
ALTER TABLE holders ADD COLUMN handed_back boolean NOT NULL DEFAULT false;

-- OBL-4, callbacks and hooks: until when whoever is sending one holds it. Where it still equals `next_at` when the delivery is due,
-- nobody recorded an outcome: its holder was lost.
ALTER TABLE deliveries ADD COLUMN leased_until timestamptz;

GRANT SELECT, INSERT ON obligations, obligation_events TO twophp_request;
GRANT UPDATE (state, leaks_at, leaked, settled_at, settled_call, sealed_with, sealed) ON obligations TO twophp_request;
GRANT SELECT ON leak_scans TO twophp_request;
GRANT UPDATE (completed_at, leaked, scans_total, leaked_total) ON leak_scans TO twophp_request;
GRANT UPDATE (handed_back) ON holders TO twophp_request;
GRANT UPDATE (leased_until) ON deliveries TO twophp_request;
