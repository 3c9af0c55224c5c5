"""Reading the DTT-2PHP-* fields (OPT-1, P1-1, P1-2)."""

from __future__ import annotations

from uuid import UUID

import pytest
from multidict import CIMultiDict

from gateway.protocol import headers
from gateway.protocol.problems import Problem

SERVER_ID = "0c9e1a1e-58ab-4c3e-9d0a-1d3a5e0f7abc"


def fields(*pairs: tuple[str, str]) -> CIMultiDict[str]:
    return CIMultiDict(pairs)


@pytest.mark.parametrize("value", ["true", "TRUE", "True", " true "])
def test_enabled_true_in_any_case_opts_in(value: str) -> None:
    """OPT-1."""
    assert headers.is_enabled(fields(("dtt-2php-ENABLED", value)))


@pytest.mark.parametrize("value", ["", "false", "1", "yes", "on", "true1", "true,true"])
def test_any_other_value_does_not_opt_in(value: str) -> None:
    """OPT-1."""
    assert not headers.is_enabled(fields(("DTT-2PHP-Enabled", value)))


def test_without_the_header_nothing_is_opted_in() -> None:
    """OPT-1."""
    assert not headers.is_enabled(fields(("DTT-2PHP-Client-Correlation-ID", "a")))


@pytest.mark.parametrize("value", ["a", "!" * 255, "order/1?x=%20", "0" * 255])
def test_a_client_correlation_id_is_opaque_visible_ascii(value: str) -> None:
    """P1-1."""
    assert headers.parse(fields(("DTT-2PHP-Client-Correlation-ID", value))).client_correlation_id == value


@pytest.mark.parametrize("value", ["", "a" * 256, "a b", "a\tb", "é", "a\x7f", "\x01"])
def test_a_malformed_client_correlation_id_is_refused(value: str) -> None:
    """P1-1."""
    with pytest.raises(Problem) as refused:
        headers.parse(fields(("DTT-2PHP-Client-Correlation-ID", value)))
    assert (refused.value.status, refused.value.slug) == (400, "client-correlation-id-malformed")


@pytest.mark.parametrize("name", headers.SINGLE_VALUED)
def test_a_repeated_field_is_refused(name: str) -> None:
    """P1-1: exactly one value, even if both are the same."""
    with pytest.raises(Problem) as refused:
        headers.parse(fields((name, SERVER_ID), (name.lower(), SERVER_ID)))
    assert (refused.value.status, refused.value.slug) == (400, "repeated-header")


@pytest.mark.parametrize("value", ["1", "45000", "999999999999999"])
def test_a_requested_ttl_is_whole_milliseconds(value: str) -> None:
    """P1-2."""
    assert headers.parse(fields(("DTT-2PHP-Requested-TTL", value))).requested_ttl_ms == int(value)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "30s", "", "1e3", "٣", "9" * 16, "+5"])
def test_a_malformed_requested_ttl_is_refused(value: str) -> None:
    """P1-2."""
    with pytest.raises(Problem) as refused:
        headers.parse(fields(("DTT-2PHP-Requested-TTL", value)))
    assert (refused.value.status, refused.value.slug) == (400, "requested-ttl-malformed")


@pytest.mark.parametrize("value", ["", "x", SERVER_ID + "0", "{" + SERVER_ID + "}", "urn:uuid:" + SERVER_ID])
def test_a_server_correlation_id_that_is_no_uuid_is_refused(value: str) -> None:
    """P2-1."""
    with pytest.raises(Problem) as refused:
        headers.parse(fields(("DTT-2PHP-Server-Correlation-ID", value)))
    assert (refused.value.status, refused.value.slug) == (400, "server-correlation-id-malformed")


def test_a_server_correlation_id_is_read_in_either_case() -> None:
    """P2-1."""
    read = headers.parse(fields(("DTT-2PHP-Server-Correlation-ID", SERVER_ID.upper())))
    assert read.server_correlation_id == UUID(SERVER_ID)
