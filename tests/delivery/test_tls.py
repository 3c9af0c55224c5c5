"""Deliveries over TLS: verified, with the name of the URL (ACM-4)."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from cryptography import x509

from gateway.delivery.guard import AddressGuard
from gateway.delivery.sender import Sender
from gateway.protocol.deliveries import Result
from tests.delivery.receiver import Names, Receiver
from tests.upstream.test_tls import self_signed

GUARD = AddressGuard(allow_networks=["127.0.0.0/8"], ports=range(1, 65536))


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    return self_signed(tmp_path, x509.DNSName("hooks.example.com"))


@pytest.fixture
async def secure(certificate: Path) -> AsyncIterator[Receiver]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    receiver = await Receiver(context).start()
    yield receiver
    await receiver.stop()


@pytest.mark.parametrize(
    ("host", "result"),
    [("hooks.example.com", Result(status=200)), ("other.example.com", Result(error="tls"))],
)
async def test_the_certificate_must_be_for_the_name_of_the_url(
    make_sender: Callable[..., Sender], secure: Receiver, certificate: Path, host: str, result: Result
) -> None:
    names = Names(hooks_example_com=[["127.0.0.1"]], other_example_com=[["127.0.0.1"]])
    sender = make_sender(GUARD, names=names, tls=ssl.create_default_context(cafile=str(certificate)))
    assert await sender.send(GUARD.check_url(f"https://{host}:{secure.port}/"), {}, b"{}") == result


async def test_a_certificate_of_nobody_we_know_is_not_accepted(
    make_sender: Callable[..., Sender], secure: Receiver
) -> None:
    sender = make_sender(GUARD, names=Names(hooks_example_com=[["127.0.0.1"]]))
    target = GUARD.check_url(f"https://hooks.example.com:{secure.port}/")
    assert await sender.send(target, {}, b"{}") == Result(error="tls")
    assert secure.requests == []
