"""Which way a request goes (OPT-1, OPT-3, P2-1, ASY-2, RPL-5)."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import pytest
from multidict import CIMultiDict

from gateway.protocol.modes import MUTATIONS, Confirm, Look, Passthrough, Poll, Register, Routes, confirm_path, decide
from gateway.protocol.problems import Problem

SERVER_ID = "0c9e1a1e-58ab-4c3e-9d0a-1d3a5e0f7abc"
ENABLED = ("DTT-2PHP-Enabled", "true")
CLIENT = ("DTT-2PHP-Client-Correlation-ID", "c-1")
SERVER = ("DTT-2PHP-Server-Correlation-ID", SERVER_ID)


@dataclass(frozen=True)
class Route:
    path: str
    methods: frozenset[str] = MUTATIONS
    mode: str = "standard"
    confirm_suffix: str = "/confirm"


ROUTES = Routes(
    [
        Route("/orders", frozenset({"POST"})),
        Route("/free/**", mode="off"),
        Route("/pay/**", confirm_suffix="/yes"),
        Route("/", frozenset({"PUT"})),
    ]
)


def way(method: str, path: bytes, *fields: tuple[str, str], routes: Routes[Route] = ROUTES) -> object:
    return decide(method, path, CIMultiDict(fields), routes)


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", b"/orders"), ("POST", b"/pay"), ("PUT", b"/pay/a/b"), ("DELETE", b"/pay/x"), ("PATCH", b"/pay/%2F")],
)
def test_an_opted_in_mutation_on_a_route_is_registered(method: str, path: bytes) -> None:
    """OPT-1."""
    assert isinstance(way(method, path, ENABLED, CLIENT), Register)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", b"/orders"),
        ("HEAD", b"/orders"),
        ("OPTIONS", b"/orders"),
        ("PUT", b"/orders"),
        ("POST", b"/orders/1"),
        ("POST", b"/ordersx"),
        ("POST", b"/payments"),
        ("POST", b"/free/x"),
        ("POST", b"/elsewhere"),
    ],
)
def test_other_methods_and_paths_pass_through(method: str, path: bytes) -> None:
    """OPT-1, OPT-3."""
    assert isinstance(way(method, path, ENABLED, CLIENT), Passthrough)


def test_without_the_opt_in_a_mutation_passes_through_whatever_else_it_says() -> None:
    """OPT-1."""
    assert isinstance(way("POST", b"/orders", CLIENT, ("DTT-2PHP-Enabled", "no")), Passthrough)


def test_switched_off_altogether_everything_passes_through() -> None:
    """OPT-3."""
    off = Routes([Route("/**")], enabled=False)
    assert isinstance(way("POST", b"/orders", ENABLED, CLIENT, routes=off), Passthrough)
    assert isinstance(way("GET", b"/.well-known/2php/intents/c-1", routes=off), Passthrough)


def test_the_first_matching_route_wins() -> None:
    routes = Routes([Route("/a/b", mode="off"), Route("/a/**")])
    assert isinstance(way("POST", b"/a/b", ENABLED, CLIENT, routes=routes), Passthrough)
    assert isinstance(way("POST", b"/a/c", ENABLED, CLIENT, routes=routes), Register)


def test_a_missing_client_correlation_id_is_refused_only_on_a_route() -> None:
    """P1-1."""
    with pytest.raises(Problem) as refused:
        way("POST", b"/orders", ENABLED)
    assert refused.value.slug == "client-correlation-id-missing"
    assert isinstance(way("POST", b"/elsewhere", ENABLED), Passthrough)


def test_a_server_correlation_id_makes_it_a_confirmation() -> None:
    """P2-1."""
    decision = way("POST", b"/orders/confirm", ENABLED, CLIENT, SERVER)
    assert decision == Confirm("c-1", UUID(SERVER_ID), (b"/orders",), True)


def test_the_confirm_suffix_is_the_routes_own() -> None:
    """P2-1."""
    assert way("POST", b"/pay/7/yes", ENABLED, CLIENT, SERVER) == Confirm("c-1", UUID(SERVER_ID), (b"/pay/7",), True)
    wrong = way("POST", b"/pay/7/confirm", ENABLED, CLIENT, SERVER)
    assert isinstance(wrong, Confirm)
    assert wrong.confirms == ()


def test_only_post_confirms() -> None:
    """P2-1: another method is recognised and confirms nothing."""
    decision = way("PUT", b"/orders/confirm", ENABLED, CLIENT, SERVER)
    assert isinstance(decision, Confirm)
    assert decision.confirms == ()


def test_the_root_path_has_a_confirm_path_too() -> None:
    """P2-1."""
    assert confirm_path(b"/", "/confirm") == b"/confirm"
    assert way("POST", b"/confirm", ENABLED, CLIENT, SERVER) == Confirm("c-1", UUID(SERVER_ID), (b"/",), True)


def test_a_confirmation_on_no_route_is_marked_as_such() -> None:
    """P2-1: it may still be meant for an intent of ours; if not, it passes through."""
    decision = way("POST", b"/elsewhere/confirm", ENABLED, CLIENT, SERVER)
    assert decision == Confirm("c-1", UUID(SERVER_ID), (), False)
    malformed = way("POST", b"/elsewhere/confirm", ENABLED, CLIENT, ("DTT-2PHP-Server-Correlation-ID", "x"))
    assert isinstance(malformed, Passthrough)


def test_a_get_below_a_route_may_be_a_poll() -> None:
    """ASY-2."""
    assert way("GET", b"/orders/" + SERVER_ID.encode()) == Poll(UUID(SERVER_ID), b"/orders")


@pytest.mark.parametrize(
    "path",
    [
        b"/orders/17",
        b"/orders/" + SERVER_ID.upper().encode(),
        b"/orders/0c9e1a1e-58ab-1c3e-9d0a-1d3a5e0f7abc",
        b"/free/" + SERVER_ID.encode(),
        b"/elsewhere/" + SERVER_ID.encode(),
        b"/orders/" + SERVER_ID.encode() + b"/x",
    ],
)
def test_what_cannot_be_an_id_of_ours_goes_upstream(path: bytes) -> None:
    """ASY-2."""
    assert isinstance(way("GET", path), Passthrough)


def test_the_well_known_path_looks_up_one_decoded_segment() -> None:
    """RPL-5."""
    assert way("GET", b"/.well-known/2php/intents/a%2Fb%25") == Look("a/b%")
    with pytest.raises(Problem):
        way("GET", b"/.well-known/2php/intents/a%20b")
    assert isinstance(way("GET", b"/.well-known/2php/intents/a/b"), Passthrough)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (b"/orders%2Fconfirm", b"/orders/confirm", False),
        (b"/orders", b"/orders/", False),
        (b"/pay/a%2Fb", b"/pay/a/b", True),
        (b"/pay/x", b"/free/x", False),
        (b"/elsewhere/a", b"/elsewhere/b", True),
        (b"/pay%2F" + SERVER_ID.encode(), b"/pay/" + SERVER_ID.encode(), False),
        (b"/orders%2F" + SERVER_ID.encode(), b"/orders/" + SERVER_ID.encode(), False),
        (b"/orders%2Fa", b"/orders/a", True),
    ],
)
def test_paths_of_another_route_or_phase_are_told_apart(one: bytes, other: bytes, same: bool) -> None:
    """P2-1, DESIGN decision 14."""
    assert (ROUTES.place(one) == ROUTES.place(other)) is same


def test_an_encoded_slash_is_data_on_a_route_for_everything() -> None:
    """DESIGN decision 14, OPT-2: package registries name `/@scope%2Fname` at their root."""
    everything = Routes([Route("/**")])
    assert everything.place(b"/@scope%2Fname") == everything.place(b"/@scope/name")
