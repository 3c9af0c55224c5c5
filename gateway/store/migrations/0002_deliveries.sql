-- Deliveries: what is told to others about an intent, callbacks (ACM-2) and compensation hooks (LED-6).
--
-- A row is written in the transaction of the ledger row it speaks of, and is sent at least once (ACM-3): by the worker that
-- made it, and until it is acknowledged by whoever claims it when it is due. `id` is the constant webhook-id. `sealed` holds
-- the URL, which may carry a caller's secret; `host` is a hash of its host and port, by which the dispatcher keeps one bad
-- host from starving the others (0: not known).

CREATE TABLE deliveries (
    bucket       smallint NOT NULL,
    logical_key  bytea NOT NULL,
    id           uuid NOT NULL,
    kind         text NOT NULL CHECK (kind IN ('callback', 'compensation')),
    event        text NOT NULL,
    host         bigint NOT NULL DEFAULT 0,
    state        text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'delivered', 'dead')),
    attempts     integer NOT NULL DEFAULT 0,
    created_at   timestamptz NOT NULL DEFAULT now(),
    next_at      timestamptz,
    settled_at   timestamptz,
    last_status  smallint,
    last_error   text,
    sealed_with  smallint NOT NULL,
    sealed       bytea NOT NULL,
    PRIMARY KEY (logical_key, id, bucket),
    CONSTRAINT deliveries_due CHECK ((state = 'pending') = (next_at IS NOT NULL)),
    CONSTRAINT deliveries_settled CHECK ((state = 'pending') = (settled_at IS NULL))
) WITH (fillfactor = 70);

-- The dispatcher's queue.
CREATE INDEX deliveries_next ON deliveries (next_at, bucket) WHERE next_at IS NOT NULL;
-- One delivery by its id, and all of them in order, for operators.
CREATE INDEX deliveries_id ON deliveries (id, bucket);
CREATE INDEX deliveries_created ON deliveries (created_at, id, bucket);
-- What is not acknowledged, in the same order (the callback-gap taxonomy): few among many.
CREATE INDEX deliveries_open ON deliveries (created_at, id, bucket) WHERE state <> 'delivered';

GRANT SELECT, INSERT ON deliveries TO twophp_request;
GRANT UPDATE (state, attempts, next_at, settled_at, last_status, last_error) ON deliveries TO twophp_request;
