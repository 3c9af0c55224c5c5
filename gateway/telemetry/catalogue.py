"""Every metric of the gateway, as data. A label names one of few kinds of things, never a caller, an id or a path."""

from __future__ import annotations

from gateway.telemetry.instruments import Spec

# Half a millisecond is our own share of a request, thirty seconds the default upstream timeout.
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)

REQUESTS = Spec("twophp_requests", "counter", "Requests answered, by mode and status class.", ("mode", "status_class"))
REQUEST_SECONDS = Spec("twophp_request_seconds", "histogram", "From request head to answer.", ("mode",), SECONDS)
PHASE_TRANSITIONS = Spec("twophp_phase_transitions", "counter", "Intents that entered a phase.", ("phase",))
REFUSALS = Spec("twophp_refusals", "counter", "Requests refused by the gateway, by problem type.", ("type",))
REFUSALS_UNAUDITED = Spec("twophp_refusals_unaudited", "counter", "Refusals that left no event in the audit trail.")
UPSTREAM_SECONDS = Spec("twophp_upstream_seconds", "histogram", "From sending upstream to its answer.", (), SECONDS)
UPSTREAM_FAILURES = Spec("twophp_upstream_failures", "counter", "Upstream requests without an answer.", ("kind",))
STORE_FLUSH_ROWS = Spec("twophp_store_flush_rows", "histogram", "Rows written by one batch.", (), ROWS)
STORE_FLUSH_SECONDS = Spec(
    "twophp_store_flush_seconds", "histogram", "Duration of one batch, commit included.", ("statement",), SECONDS
)
STORE_UP = Spec("twophp_store_up", "gauge", "1 if every worker reaches the store, else 0.", merge="min")
INFLIGHT = Spec("twophp_inflight", "gauge", "Requests being answered now.")
BUFFERED_BYTES = Spec("twophp_buffered_bytes", "gauge", "Bytes of bodies held in memory (limits.buffered).")
# Counted in the store by whichever worker looked last: the workers' figures are the same thing seen at different times.
IN_DOUBT = Spec("twophp_in_doubt", "gauge", "Intents whose outcome is not known.", merge="latest")
BYPASSED = Spec("twophp_bypassed", "counter", "Requests proxied without a ledger row, the store being away.")
EXPIRED = Spec("twophp_expired", "counter", "Intents expired without a confirmation.")
RETAINED_DELETED = Spec("twophp_retained_deleted", "counter", "Rows deleted at the end of their retention.")
OBLIGATION_SCANS = Spec("twophp_obligation_scans", "counter", "Scans for leaked obligations that came to their end.")
OBLIGATIONS_LEAKED = Spec("twophp_obligations_leaked", "counter", "Obligations that leaked and were rolled back.")
WORKER_RESTARTS = Spec("twophp_worker_restarts", "counter", "Workers started again after they ended by themselves.")
LEDGER_SYNC_LAG = Spec(
    "twophp_ledger_sync_lag_seconds", "gauge", "Age of the oldest change not yet at the central ledger.", merge="latest"
)
LEDGER_SYNC_BEHIND = Spec(
    "twophp_ledger_sync_behind", "gauge", "Changes not yet at the central ledger, up to 10,000.", merge="latest"
)
BUILD = Spec("twophp_build_info", "gauge", "Always 1; what is running.", ("version", "python"), merge="min")

ALL = (
    BUILD,
    REQUESTS,
    REQUEST_SECONDS,
    PHASE_TRANSITIONS,
    REFUSALS,
    REFUSALS_UNAUDITED,
    UPSTREAM_SECONDS,
    UPSTREAM_FAILURES,
    STORE_UP,
    STORE_FLUSH_ROWS,
    STORE_FLUSH_SECONDS,
    INFLIGHT,
    BUFFERED_BYTES,
    IN_DOUBT,
    BYPASSED,
    EXPIRED,
    RETAINED_DELETED,
    OBLIGATION_SCANS,
    OBLIGATIONS_LEAKED,
    WORKER_RESTARTS,
    LEDGER_SYNC_LAG,
    LEDGER_SYNC_BEHIND,
)

# The central ledger's own.
CENTRAL_RECEIVED = Spec("twophp_central_received", "counter", "Entries that services sent or were pulled from them.")
CENTRAL_STORED = Spec("twophp_central_stored", "counter", "Entries that were new or raised to a higher version.")
CENTRAL_FORGOTTEN = Spec("twophp_central_forgotten", "counter", "Entries deleted at the end of their retention.")
CENTRAL_FOLLOWED = Spec("twophp_central_followers", "gauge", "Event streams that are followed now.")

CENTRAL = (CENTRAL_RECEIVED, CENTRAL_STORED, CENTRAL_FORGOTTEN, CENTRAL_FOLLOWED)
