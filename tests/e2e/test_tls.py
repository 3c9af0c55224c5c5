"""TLS on both listeners, and certificates that change without a restart (SEC-6)."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import ssl
from pathlib import Path

import aiohttp
from cryptography import x509

from tests.e2e.conftest import MakeGateway
from tests.e2e.harness import TOKENS, Gateway, eventually
from tests.upstream.fake import FakeUpstream
from tests.upstream.test_tls import self_signed

LOOPBACK = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


async def peer_certificate(gateway: Gateway) -> bytes:
    """What the data port shows a client that trusts anybody."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, ssl=context)
    shown: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return shown


async def test_both_listeners_speak_tls_and_take_new_certificates(
    make_gateway: MakeGateway, upstream: FakeUpstream, tmp_path: Path
) -> None:
    """SEC-6: the handshake and the operator API over TLS; SIGHUP reads the certificates anew."""
    file = self_signed(tmp_path, LOOPBACK)
    tls = {"cert": str(file), "key": str(file)}
    gateway = await make_gateway(
        start=False,
        listen={"host": "127.0.0.1", "port": 0, "tls": tls},
        operator={"host": "127.0.0.1", "port": 0, "tls": tls},
    )
    gateway.changes["listen"]["port"] = gateway.port
    gateway.changes["operator"]["port"] = gateway.operator_port
    await gateway.start(wait_ready=False)
    trusting = ssl.create_default_context(cafile=str(file))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting)) as session:
        data, operator = f"https://127.0.0.1:{gateway.port}", f"https://127.0.0.1:{gateway.operator_port}"

        async def ready() -> bool:
            try:
                async with session.get(operator + "/readyz") as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        await eventually(ready)
        ids = {
            "Authorization": "Bearer me",
            "DTT-2PHP-Enabled": "true",
            "DTT-2PHP-Client-Correlation-ID": "c-1",
        }
        async with session.post(data + "/orders", headers=ids, data=b"x") as answer:
            assert answer.status == 200
            ids["DTT-2PHP-Server-Correlation-ID"] = server_id = answer.headers["DTT-2PHP-Server-Correlation-ID"]
        async with session.post(data + "/orders/confirm", headers=ids) as answer:
            assert (answer.status, answer.headers["DTT-2PHP-Phase-State"]) == (200, "COMMITTED")
        assert b"X-Forwarded-Proto: https\r\n" in upstream.requests[0].head
        bearer = {"Authorization": f"Bearer {TOKENS['audit']}"}
        async with session.get(f"{operator}/v1/intents/{server_id}", headers=bearer) as answer:
            assert (await answer.json())["phase"] == "COMMITTED"

    before = await peer_certificate(gateway)
    self_signed(tmp_path, LOOPBACK)
    assert gateway.process is not None
    gateway.process.send_signal(signal.SIGHUP)

    async def renewed() -> bool:
        return await peer_certificate(gateway) != before

    await eventually(renewed)
