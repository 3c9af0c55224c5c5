"""Key sets from files and URLs: cached, read anew, and never a lever against their source (SEC-2, SEC-3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from gateway.ingress import jwks
from gateway.ingress.jwks import KeysAway, KeySet, KeySets

ED25519 = ed25519.Ed25519PrivateKey.generate()


def jwk(kid: str, key: Any = None, **more: Any) -> dict[str, Any]:
    """The public half of a key."""
    algorithms = {ed25519.Ed25519PublicKey: OKPAlgorithm, ec.EllipticCurvePublicKey: ECAlgorithm}
    public = (key or ED25519).public_key()
    made = next((a for kind, a in algorithms.items() if isinstance(public, kind)), RSAAlgorithm)
    return {**json.loads(made.to_jwk(public)), "kid": kid, **more}


class Source:
    """A server of key sets that can change its mind."""

    def __init__(self) -> None:
        self.keys: list[Any] = [jwk("k1")]
        self.asked = 0
        self.answer: web.Response | None = None
        self.hold = asyncio.Event()
        self.hold.set()
        self.url = ""

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        await self.hold.wait()
        return self.answer or web.json_response({"keys": self.keys})


@pytest.fixture
async def source() -> AsyncIterator[Source]:
    made = Source()
    application = web.Application()
    application.router.add_get("/jwks", made.serve)
    async with TestServer(application) as server:
        made.url = str(server.make_url("/jwks"))
        yield made
        made.hold.set()


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(jwks, "time", made)
    return made


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (ED25519, "EdDSA"),
        (ec.generate_private_key(ec.SECP256R1()), "ES256"),
        (ec.generate_private_key(ec.SECP384R1()), "ES384"),
        (rsa.generate_private_key(65537, 2048), "RS256"),
    ],
)
async def test_keys_of_every_kind_are_found_by_their_id(source: Source, key: Any, algorithm: str) -> None:
    source.keys = [jwk("other"), jwk("mine", key)]
    found = await KeySet(url=source.url).key("mine")
    assert found is not None
    assert (found.key_id, found.algorithm_name) == ("mine", algorithm)


async def test_keys_of_a_file_are_read_anew(tmp_path: Path, clock: Clock) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(json.dumps({"keys": [jwk("k1")]}))
    keys = KeySet(file=str(file))
    assert await keys.key("k1") is not None
    file.write_text(json.dumps({"keys": [jwk("k2")]}))
    clock.now_s += jwks.PAUSE_S
    assert await keys.key("k2") is not None
    assert await keys.key("k1") is None


def test_what_cannot_prove_anything_is_not_taken() -> None:
    """A shared secret or private key that everybody can read, keys for encryption, of no name or of no kind."""
    secret = {"kty": "oct", "kid": "secret", "k": "c2VjcmV0", "alg": "HS256"}
    private = {**json.loads(OKPAlgorithm.to_jwk(ED25519)), "kid": "private"}
    nameless = {name: value for name, value in jwk("x").items() if name != "kid"}
    document = {"keys": [secret, private, nameless, jwk("enc", use="enc"), {"kid": "odd", "kty": "?"}, 7, jwk("k1")]}
    assert jwks.parse(json.dumps(document).encode()).keys() == {"k1"}


@pytest.mark.parametrize(
    "changes", [{"alg": ["x"]}, {"alg": 7}, {"kty": ["x"]}, {"crv": ["x"]}, {"x": 7}, {"x": "!"}, {"use": ["x"]}]
)
def test_a_malformed_key_does_not_spoil_the_others(changes: dict[str, Any]) -> None:
    """SEC-2: or one wrong entry at the source would lock everybody out."""
    document = {"keys": [jwk("k1"), {**jwk("malformed"), **changes}, jwk("k2")]}
    assert jwks.parse(json.dumps(document).encode()).keys() == {"k1", "k2"}


async def test_a_reload_keeps_what_was_read_from_a_url_and_reads_a_file_anew(source: Source, tmp_path: Path) -> None:
    """SEC-2, OPS-1: the source may be away just then; what an operator changed in a file counts at once."""
    key_sets = KeySets()
    assert await key_sets.of(url=source.url, file=None).key("k1") is not None
    source.answer = web.Response(status=503)
    assert await key_sets.of(url=source.url, file=None).key("k1") is not None
    assert source.asked == 1
    file = tmp_path / "jwks.json"
    for name in ("k1", "k2"):
        file.write_text(json.dumps({"keys": [jwk(name)]}))
        assert await key_sets.of(url=None, file=str(file)).key(name) is not None


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"keys": 7}', b"<html>", b" " * (256 * 1024 + 1)])
def test_what_is_no_key_set_is_refused_whole(document: bytes) -> None:
    with pytest.raises(ValueError):
        jwks.parse(document)


async def test_an_unknown_key_is_asked_for_once_in_a_while(source: Source, clock: Clock) -> None:
    """Made-up key IDs cannot make us a nuisance to the source."""
    keys = KeySet(url=source.url)
    for number in range(20):
        assert await keys.key(f"made-up-{number}") is None
    assert source.asked == 1
    source.keys.append(jwk("k2"))
    clock.now_s += jwks.PAUSE_S
    assert await keys.key("k2") is not None
    assert source.asked == 2


async def test_many_who_ask_at_once_share_one_reading(source: Source) -> None:
    keys = KeySet(url=source.url)
    found = await asyncio.gather(*(keys.key("k1") for _ in range(50)))
    assert all(found)
    assert source.asked == 1


async def test_a_withdrawn_key_stops_working(source: Source, clock: Clock) -> None:
    keys = KeySet(url=source.url)
    assert await keys.key("k1") is not None
    source.keys = [jwk("k2")]
    clock.now_s += jwks.REFRESH_S
    await keys.key("k2")
    assert await keys.key("k1") is None


async def test_who_has_a_known_key_does_not_wait_for_a_slow_source(source: Source, clock: Clock) -> None:
    keys = KeySet(url=source.url)
    await keys.key("k1")
    source.hold.clear()
    clock.now_s += jwks.REFRESH_S
    async with asyncio.timeout(1):
        assert await keys.key("k1") is not None
    await keys.close()


async def test_known_keys_outlive_an_outage_of_their_source_for_a_while(source: Source, clock: Clock) -> None:
    keys = KeySet(url=source.url)
    await keys.key("k1")
    source.answer = web.Response(status=500)
    clock.now_s += jwks.REFRESH_S
    assert await keys.key("k1") is not None
    clock.now_s += jwks.STALE_MAX_S
    with pytest.raises(KeysAway):
        await keys.key("k1")


async def test_a_source_that_was_never_there_is_away(tmp_path: Path) -> None:
    with pytest.raises(KeysAway):
        await KeySet(file=str(tmp_path / "missing.json")).key("k1")


@pytest.mark.parametrize("status", [301, 302, 307, 404, 500])
async def test_nothing_is_followed(source: Source, status: int) -> None:
    """A redirect could lead to an address of somebody else's choice."""
    source.answer = web.Response(status=status, headers={"Location": source.url})
    with pytest.raises(KeysAway):
        await KeySet(url=source.url).key("k1")
    assert source.asked == 1


async def test_an_endless_document_is_not_read_to_its_end(source: Source) -> None:
    source.answer = web.Response(body=b" " * (4 * jwks.DOCUMENT_BYTES_MAX))
    with pytest.raises(KeysAway):
        await KeySet(url=source.url).key("k1")
