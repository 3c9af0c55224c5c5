"""SEC-2 on a running gateway: callers by the claims of a token, and by the subject of a certificate."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tests.e2e.conftest import MakeGateway
from tests.e2e.harness import Gateway, eventually
from tests.ingress.authority import Authority, client_context
from tests.upstream.fake import FakeUpstream

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


def token(sub: str, **claims: Any) -> str:
    whole = {"iss": "https://id", "aud": "orders", "sub": sub, "exp": int(time.time()) + 600, **claims}
    return "Bearer " + jwt.encode(whole, KEY, "RS256", headers={"kid": "k1"})


@pytest.fixture
async def by_token(make_gateway: MakeGateway, tmp_path: Path) -> Gateway:
    file = tmp_path / "jwks.json"
    file.write_text(
        json.dumps({"keys": [{**RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "k1", "use": "sig"}]})
    )
    return await make_gateway(
        identity={
            "method": "jwt",
            "algorithms": ["RS256"],
            "jwks": {"file": str(file)},
            "issuer": "https://id",
            "audience": "orders",
        }
    )


async def test_phase_2_may_come_with_a_refreshed_token_which_goes_upstream(
    by_token: Gateway, upstream: FakeUpstream
) -> None:
    """SEC-2, P2-3."""
    registered = await by_token.register("c-1", caller=token("alice"))
    assert registered.status == 200
    stranger = await by_token.confirm("c-1", registered.server_id, caller=token("mallory"))
    assert (stranger.status, stranger.problem) == (403, "other-caller")
    refreshed = token("alice", jti="refreshed")
    answer = await by_token.confirm("c-1", registered.server_id, caller=refreshed)
    assert answer.phase == "COMMITTED"
    assert f"Authorization: {refreshed}".encode() in upstream.requests[0].head
    polled = await by_token.confirm("c-1", registered.server_id, caller=token("alice", jti="third"))
    assert polled.phase == "COMMITTED"
    assert len(upstream.requests) == 1


async def test_a_token_that_is_not_good_registers_nothing(by_token: Gateway, upstream: FakeUpstream) -> None:
    """SEC-2: 401 with a challenge, nothing stored, nothing sent; what is not 2PHP is the upstream's to judge."""
    for caller in (None, "Basic YTpi", token("alice", exp=1), token("alice", aud="billing"), "Bearer nonsense"):
        reply = await by_token.register("c-1", caller=caller)
        assert reply.status == 401
        assert reply.problem in ("credentials-missing", "credentials-invalid")
        assert reply.headers["WWW-Authenticate"].startswith("Bearer")
    assert upstream.requests == []
    page = await by_token.operator("GET", "/v1/ledger/entries")
    assert page.json["entries"] == []
    assert (await by_token.request("GET", "/orders", caller="Bearer nonsense")).status == 201
    assert "nonsense" not in by_token.logs()


async def test_a_certificate_names_the_caller(
    make_gateway: MakeGateway, upstream: FakeUpstream, tmp_path: Path
) -> None:
    """SEC-2: another certificate of the same subject is the same caller, another subject is another; none is nobody."""
    authority, stranger = Authority(), Authority("another authority")
    ca = authority.write(tmp_path)
    server = authority.write_issued(tmp_path, "gateway", "server.pem")
    gateway = await make_gateway(start=False, identity={"method": "mtls"})
    tls = {"cert": str(server), "key": str(server), "client_ca": str(ca)}
    gateway.changes["listen"] = {"host": "127.0.0.1", "port": gateway.port, "tls": tls}
    await gateway.start()

    async def ask(certificate: Path | None, path: str, server_id: str | None = None) -> tuple[int, Any]:
        ids = {"DTT-2PHP-Enabled": "true", "DTT-2PHP-Client-Correlation-ID": "c-1", "X-Client-Subject": "CN=alice"}
        if server_id is not None:
            ids["DTT-2PHP-Server-Correlation-ID"] = server_id
        connector = aiohttp.TCPConnector(ssl=client_context(ca, certificate))
        async with aiohttp.ClientSession(connector=connector) as session:
            async with session.post(f"https://127.0.0.1:{gateway.port}{path}", headers=ids, data=b"x") as answer:
                await answer.read()
                return answer.status, answer.headers

    alice, again, bob, forged = (
        authority.write_issued(tmp_path, "alice", "alice.pem"),
        authority.write_issued(tmp_path, "alice", "again.pem"),
        authority.write_issued(tmp_path, "bob", "bob.pem"),
        stranger.write_issued(tmp_path, "alice", "forged.pem"),
    )
    for refused in (None, forged):
        with pytest.raises(aiohttp.ClientError):
            await ask(refused, "/orders")
    status, headers = await ask(alice, "/orders")
    assert status == 200
    server_id = headers["DTT-2PHP-Server-Correlation-ID"]
    assert (await ask(bob, "/orders/confirm", server_id))[0] == 403
    assert upstream.requests == []
    status, headers = await ask(again, "/orders/confirm", server_id)
    assert headers["DTT-2PHP-Phase-State"] == "COMMITTED"
    await eventually(lambda: len(upstream.requests) == 1)
