"""What a late confirmation must prove (SEC-3, REP-2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol import proofs
from gateway.protocol.proofs import MISSING, Proven, Unbound


@pytest.mark.parametrize("sent", [None, ""])
def test_no_token_is_a_missing_proof(sent: str | None) -> None:
    """SEC-3: 408 as under REJECT, not 403."""
    assert proofs.judge_token(sent, "expected") is MISSING


@given(st.text(min_size=1))
def test_only_the_token_of_this_intent_and_caller_proves_anything(sent: str) -> None:
    """SEC-3, RP-04: byte for byte."""
    verdict = proofs.judge_token(sent, "expected")
    assert isinstance(verdict, Proven) == (sent == "expected")
    assert isinstance(verdict, Proven | Unbound)


@given(st.tuples(st.text(), st.text(), st.text()), st.tuples(st.text(), st.text(), st.text()))
def test_nonces_are_told_apart_by_kind_signer_and_value(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    """REP-2: equal exactly when all three are, however they are cut."""
    assert (proofs.nonce_digest(*one) == proofs.nonce_digest(*other)) == (one == other)
