"""The three identities (REP-1, SEC-1, REC-3)."""

from __future__ import annotations

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol import identity
from gateway.protocol.identity import IntentKey

TEXT = st.binary(max_size=40)


@given(TEXT, TEXT, TEXT, TEXT, TEXT, TEXT)
def test_a_logical_key_names_service_caller_and_client_id(
    a: bytes, b: bytes, c: bytes, d: bytes, e: bytes, f: bytes
) -> None:
    """REP-1: equal exactly when all three are, however they are cut."""
    one = identity.logical_key(a, b, c, buckets=1)
    other = identity.logical_key(d, e, f, buckets=1)
    assert (one == other) == ((a, b, c) == (d, e, f))


def replay_key(**changed: bytes) -> bytes:
    parts = {"method": b"POST", "target": b"/o?x", "payload": b"p", "caller": b"c", "run_id": b"r", **changed}
    return identity.replay_key(IntentKey(0, b"k" * 16), **parts)


def test_a_replay_key_binds_everything_but_the_attempt() -> None:
    """REP-1."""
    keys = [replay_key()] + [
        replay_key(**{name: b"other"}) for name in ("method", "target", "payload", "caller", "run_id")
    ]
    assert len(set(keys)) == len(keys)
    assert replay_key() == replay_key()


def test_a_replay_key_is_a_digest_over_all_that_it_binds_each_with_its_length() -> None:
    """REP-1: the protocol's version and the logical key too; another version's keys are other keys."""
    parts = (b"replay", b"2php-00", b"k" * 16, b"POST", b"/o?x", b"p", b"c", b"r")
    joined = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    assert replay_key() == hashlib.sha256(joined).digest()


def test_a_payload_is_its_bytes_and_how_they_are_to_be_read() -> None:
    """P1-5: Content-Type and Content-Encoding belong to an exact retry."""
    digests = {
        identity.payload_digest(body, kind, coding)[1]
        for body in (b"", b"x")
        for kind in (b"", b"text/plain")
        for coding in (b"", b"gzip")
    }
    assert len(digests) == 8


def test_a_server_correlation_id_is_a_random_uuid_4_that_leads_to_its_bucket() -> None:
    """SEC-1, DESIGN decision 3."""
    seen = set()
    for number in range(200):
        for buckets in (1, 16, 4096):
            key = identity.logical_key(b"s", b"c", str(number).encode(), buckets=buckets)
            made = identity.new_server_correlation_id(key)
            assert made.version == 4
            assert made.variant == "specified in RFC 4122"
            assert identity.bucket_of(made, buckets=buckets) == key.bucket
            seen.add(made)
    assert len(seen) == 600


def test_attempts_have_ids_of_their_own() -> None:
    """REC-3."""
    made = {identity.new_attempt_id() for _ in range(100)}
    assert len(made) == 100
    assert {one.version for one in made} == {4}
