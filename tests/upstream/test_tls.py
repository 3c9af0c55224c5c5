"""TLS to the upstream: verified by default, with SNI."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gateway.upstream import Upstream, UpstreamFailure
from tests.upstream.fake import FakeUpstream, body_of, get, send

Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


def self_signed(directory: Path, *names: x509.GeneralName) -> Path:
    """A certificate that is its own authority, with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "upstream")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = directory / "upstream.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return file


@pytest.fixture
def contexts(tmp_path: Path) -> Contexts:
    """The upstream's context, and one of ours that trusts it."""
    file = self_signed(tmp_path, x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cafile=str(file))


@pytest.fixture
async def secure(contexts: Contexts) -> AsyncIterator[FakeUpstream]:
    upstream = FakeUpstream(contexts[0])
    await upstream.start()
    yield upstream
    await upstream.stop()


async def test_a_trusted_upstream_is_reached_by_name_and_told_it(
    contexts: Contexts, secure: FakeUpstream, connect: Callable[..., Upstream]
) -> None:
    names: list[str | None] = []
    contexts[0].sni_callback = lambda sock, name, context: names.append(name)
    client = connect(f"https://localhost:{secure.port}", tls=contexts[1])
    for _ in range(2):
        assert await body_of(await get(client)) == b"ok"
    assert await body_of(await send(client, "PUT", body=b"x" * 1_000_000)) == b"ok"
    assert secure.requests[2].body == b"x" * 1_000_000
    assert names == ["localhost"]
    assert client.idle_connections == 1


async def test_an_address_is_verified_too(
    contexts: Contexts, secure: FakeUpstream, connect: Callable[..., Upstream]
) -> None:
    client = connect(f"https://127.0.0.1:{secure.port}", tls=contexts[1])
    assert await body_of(await get(client)) == b"ok"


async def test_an_unknown_authority_is_refused_by_default(
    secure: FakeUpstream, connect: Callable[..., Upstream]
) -> None:
    """P2-5: TLS that fails is certainly never sent."""
    client = connect(f"https://localhost:{secure.port}")
    with pytest.raises(UpstreamFailure) as failure:
        await send(client, "PUT", body=b"x")
    assert (failure.value.kind, failure.value.sent) == ("tls", False)
    assert "certificate" in failure.value.detail
    assert secure.requests == []
    assert client.connections == 0


async def test_a_certificate_of_another_name_is_refused(tmp_path: Path, connect: Callable[..., Upstream]) -> None:
    file = self_signed(tmp_path, x509.DNSName("other.test"))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    upstream = FakeUpstream(server)
    await upstream.start()
    client = connect(f"https://localhost:{upstream.port}", tls=ssl.create_default_context(cafile=str(file)))
    with pytest.raises(UpstreamFailure) as failure:
        await get(client)
    assert (failure.value.kind, failure.value.sent) == ("tls", False)
    await upstream.stop()


async def test_an_upstream_without_tls_is_a_tls_failure(fake: FakeUpstream, connect: Callable[..., Upstream]) -> None:
    fake.script = lambda wire: wire.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    client = connect(f"https://localhost:{fake.port}")
    with pytest.raises(UpstreamFailure) as failure:
        await get(client)
    assert (failure.value.kind, failure.value.sent) == ("tls", False)


async def test_apply_and_drop_over_tls_is_seen_once(
    contexts: Contexts, secure: FakeUpstream, connect: Callable[..., Upstream]
) -> None:
    """REC-8."""
    secure.answer(close=True)
    client = connect(f"https://localhost:{secure.port}", tls=contexts[1])
    with pytest.raises(UpstreamFailure) as failure:
        await send(client, "DELETE")
    assert (failure.value.kind, failure.value.sent) == ("reset", True)
    assert len(secure.requests) == 1
