-- Recovery (REC-1, REC-2, REC-5): what becomes of an intent in doubt, what a fenced gateway knew, and what is still to be verified.

-- When an intent in doubt is looked at next; every doubt is due at once, also one that the previous release writes. Null: it is
-- held for a verdict, and `held` says why. `asked` counts probes that told nothing.
ALTER TABLE in_doubt
    ADD COLUMN next_at timestamptz DEFAULT now(),
    ADD COLUMN asked   integer NOT NULL DEFAULT 0,
    ADD COLUMN held    text,
    ADD CONSTRAINT in_doubt_held CHECK (held IS NULL OR next_at IS NULL);

CREATE INDEX in_doubt_next ON in_doubt (next_at, bucket) WHERE next_at IS NOT NULL;

-- REC-1, DESIGN decision 7: the outcome that a fenced gateway came back with: never the intent's outcome by itself. One that no
-- later send can contradict settles the intent. It is sealed as a response is, and moves there unchanged.
CREATE TABLE evidence (
    bucket      smallint NOT NULL,
    logical_key bytea NOT NULL,
    fence       integer NOT NULL,
    attempt_id  uuid NOT NULL,
    at          timestamptz NOT NULL DEFAULT now(),
    phase       phase NOT NULL CHECK (phase IN ('COMMITTED', 'FAILED')),
    resource_id text,
    message     text,
    status      smallint,
    body_bytes  bigint,
    body_sha256 bytea,
    kept        boolean,
    sealed_with smallint,
    sealed      bytea,
    verify_with smallint, -- what its verification is to be asked with (REC-5), where its route has one
    verify      bytea,
    PRIMARY KEY (logical_key, fence, bucket)
);
ALTER TABLE evidence ALTER COLUMN sealed SET STORAGE EXTERNAL; -- ciphertext does not compress

-- REC-5: successes that a GET must still confirm, written in the transaction of the outcome and gone once that is known. `sealed`
-- holds the headers to ask with.
CREATE TABLE verifications (
    bucket      smallint NOT NULL,
    logical_key bytea NOT NULL,
    next_at     timestamptz NOT NULL DEFAULT now(),
    asked       integer NOT NULL DEFAULT 0,
    sealed_with smallint NOT NULL,
    sealed      bytea NOT NULL,
    PRIMARY KEY (logical_key, bucket)
);

CREATE INDEX verifications_next ON verifications (next_at, bucket);

-- REC-5, RP-07: a success that its GET did not confirm.
ALTER TABLE intents ADD COLUMN verify_failed boolean;

-- P2-3: the credentials of the confirmation, where the same request may have to be sent again (REC-2). Erased with the payload.
ALTER TABLE payloads ADD COLUMN credentials bytea, ADD COLUMN credentials_with smallint;

GRANT SELECT, INSERT ON evidence TO twophp_request;
GRANT SELECT, INSERT, DELETE ON verifications TO twophp_request;
GRANT UPDATE (next_at, asked) ON verifications TO twophp_request;
GRANT UPDATE (next_at, asked, held) ON in_doubt TO twophp_request;
GRANT UPDATE (verify_failed) ON intents TO twophp_request;
GRANT UPDATE (credentials, credentials_with, pending_of, ponr_deadline) ON payloads TO twophp_request;
