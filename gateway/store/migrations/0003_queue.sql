-- Asynchronous execution (ASY-1): confirmed work that nobody has begun yet.
--
-- A confirmation on an asynchronous route crosses the PONR and leaves a row here; whoever takes the row begins the attempt in
-- the same statement. A gateway that dies before that has lost nothing; one that dies after it leaves an attempt to be rescued.
-- `sealed` holds the credentials of the confirmation, where it brought any (P2-3).

CREATE TABLE queue (
    bucket      smallint NOT NULL,
    logical_key bytea NOT NULL,
    queued_at   timestamptz NOT NULL,
    sealed_with smallint,
    sealed      bytea,
    PRIMARY KEY (logical_key, bucket)
);

CREATE INDEX queue_order ON queue (queued_at, bucket);

GRANT SELECT, INSERT, DELETE ON queue TO twophp_request;
GRANT UPDATE (queued_at) ON queue TO twophp_request; -- what FOR UPDATE asks for; nothing changes it
