"""A caller is the subject of its client certificate (SEC-2, `identity.method: mtls`).

Whether the certificate is good was decided by the TLS handshake, against `listen.tls.client_ca`. The subject is written
as RFC 4514 does: a certificate issued again for the same subject is the same caller.
"""

from __future__ import annotations

from functools import lru_cache

from cryptography import x509

from gateway.ingress.identity import AtOnce, Caller
from gateway.protocol import problems
from gateway.protocol.messages import Headers

CERTIFICATES_REMEMBERED = 4096  # reading one takes some 20 µs, and clients come back


class ClientCertificate(AtOnce):
    """The subject of the certificate that the connection was made with."""

    __slots__ = ("_caller",)

    def __init__(self) -> None:
        self._caller = lru_cache(maxsize=CERTIFICATES_REMEMBERED)(_caller)

    def identify(self, headers: Headers, peer: str, certificate: bytes | None = None) -> Caller:
        if certificate is None:
            raise problems.credentials_missing()
        found = self._caller(certificate)
        if found is None:
            raise problems.credentials_invalid()
        return found


def _caller(certificate: bytes) -> Caller | None:
    """None: the certificate names nobody, or says so in a way that cannot be read."""
    try:
        subject = x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
    except ValueError:
        return None
    return Caller(b"mtls:" + subject.encode()) if subject else None
