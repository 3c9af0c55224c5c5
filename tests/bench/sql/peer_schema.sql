-- The least that a durable two-phase handshake could be made of: what pgbench measures beside the gateway. It keeps no
-- answer to replay, no attempts, no audit events and no caller, encrypts nothing and talks to no upstream.
CREATE TABLE intents (
    key      bigint PRIMARY KEY,
    phase    text NOT NULL,
    deadline timestamptz NOT NULL,
    payload  text NOT NULL
);

CREATE TABLE ledger (
    key   bigint NOT NULL,
    at    timestamptz NOT NULL DEFAULT now(),
    phase text NOT NULL
);
