-- Late confirmations with proof (RPL-3, SEC-3, REP-2): the nonces that have authorized one.
--
-- A nonce is consumed by the statement that crosses the PONR with it, and by nothing else; the primary key is what makes it
-- single-use. Kept as a digest, for as long as its intent. Append-only: the request path can add a nonce and look, no more.

CREATE TABLE nonces (
    bucket      smallint NOT NULL,
    nonce       bytea NOT NULL,
    logical_key bytea NOT NULL,
    attempt_id  uuid NOT NULL,
    consumed_at timestamptz NOT NULL,
    CONSTRAINT nonces_single_use PRIMARY KEY (nonce, bucket)
);

CREATE INDEX nonces_of ON nonces (logical_key, bucket); -- for retention

GRANT SELECT, INSERT ON nonces TO twophp_request;
