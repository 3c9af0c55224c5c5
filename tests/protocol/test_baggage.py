"""COR-2: the parent of a call survives its way through the baggage, and nothing else of the baggage is touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.protocol.baggage import parent_of, with_parent

IDS = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=255)


@given(IDS)
def test_every_id_comes_out_as_it_went_in(client_id: str) -> None:
    """COR-2: also one that holds commas, semicolons, quotes, percent signs or equals signs."""
    value = with_parent([b"user=1;p=2", b"a=b,2php-parent=old"], client_id)
    assert parent_of([(b"Baggage", value)]) == client_id
    assert value.startswith(b"user=1;p=2,a=b,2php-parent=")
    assert b"old" not in value.rpartition(b"=")[0]


@pytest.mark.parametrize(
    "value", [b"", b"k=v", b"2php-parent=", b"2php-parent=%20", b"2php-parent=%ff", b"x2php-parent=a"]
)
def test_what_is_no_id_is_no_parent(value: bytes) -> None:
    """COR-2: such a call is a root."""
    assert parent_of([(b"baggage", value)]) is None


def test_a_full_baggage_keeps_its_members() -> None:
    """W3C: theirs before ours."""
    others = b"k=" + b"v" * 8180
    assert with_parent([others], "client") == others
