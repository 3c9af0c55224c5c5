-- Where readers of the events stand, for those whose reading has effects: what they wrote and how far they came are one
-- transaction, so that nothing is done twice and nothing is skipped.

CREATE TABLE cursors (
    name text PRIMARY KEY,
    xid  xid8 NOT NULL,
    id   bigint NOT NULL
);

GRANT SELECT, INSERT, DELETE ON cursors TO twophp_request;
GRANT UPDATE (xid, id) ON cursors TO twophp_request;
