"""SEC-2, `identity.method: mtls`: the subject of a client certificate is the caller."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from gateway.ingress.certificates import ClientCertificate
from gateway.ingress.identity import ANONYMOUS, or_anonymous
from gateway.protocol.problems import Problem
from tests.ingress.authority import Authority


def test_a_certificate_issued_again_is_the_same_caller_and_another_subject_is_not() -> None:
    """SEC-2: by whatever key and serial number."""
    authority = Authority()
    by_certificate = ClientCertificate()

    def caller(name: str) -> bytes:
        return by_certificate.identify([], "", authority.issue(name)[0].public_bytes(Encoding.DER)).name

    assert caller("alice") == caller("alice") == b"mtls:CN=alice"
    assert caller("bob") != caller("alice")
    assert caller("alice,O=admins") == b"mtls:CN=alice\\,O=admins"  # what a name says is no part of another's


@pytest.mark.parametrize("certificate", [None, b"", b"not a certificate"])
def test_without_a_certificate_there_is_no_caller(certificate: bytes | None) -> None:
    with pytest.raises(Problem) as caught:
        ClientCertificate().identify([], "", certificate)
    assert caught.value.status == 401


def test_a_certificate_that_names_nobody_is_not_accepted() -> None:
    """SEC-2: also where callers without credentials are one shared caller."""
    nobody = Authority().issue(None)[0]
    assert nobody.subject == x509.Name([])
    lenient = or_anonymous(ClientCertificate(), "allow")
    with pytest.raises(Problem) as caught:
        lenient.identify([], "", nobody.public_bytes(Encoding.DER))
    assert caught.value.slug == "credentials-invalid"
    assert lenient.identify([], "", None) == ANONYMOUS


def test_headers_say_nothing_about_who_is_there() -> None:
    """SEC-2: what a proxy or a client claims in headers does not count."""
    headers = [(b"X-Client-Cert", b"CN=alice"), (b"Authorization", b"Bearer alice")]
    with pytest.raises(Problem):
        ClientCertificate().identify(headers, "127.0.0.1", None)
