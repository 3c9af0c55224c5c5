"""A certificate authority of a test's own."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

LOOPBACK = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


def subject(name: str | None) -> x509.Name:
    return x509.Name([] if name is None else [x509.NameAttribute(NameOID.COMMON_NAME, name)])


class Authority:
    """Issues certificates, for servers on loopback and for clients."""

    def __init__(self, name: str = "test authority") -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = subject(name)
        self.certificate = self._signed(self.name, self.key.public_key(), authority=True)

    def issue(self, name: str | None) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        """A certificate for a subject, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        return self._signed(subject(name), key.public_key(), authority=False), key

    def _signed(self, whose: x509.Name, key: ec.EllipticCurvePublicKey, *, authority: bool) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(whose)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )
        if not authority:
            builder = builder.add_extension(x509.SubjectAlternativeName([LOOPBACK]), critical=False)
        return builder.sign(self.key, hashes.SHA256())

    def write(self, directory: Path) -> Path:
        """The authority's own certificate, as `client_ca` names it."""
        file = directory / "authority.pem"
        file.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        return file

    def write_issued(self, directory: Path, name: str | None, file: str) -> Path:
        """A certificate with its key, in one file."""
        certificate, key = self.issue(name)
        path = directory / file
        path.write_bytes(
            certificate.public_bytes(Encoding.PEM)
            + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )
        return path


def client_context(authority: Path, certificate: Path | None) -> ssl.SSLContext:
    """How a client with this certificate speaks TLS to a server of this authority."""
    context = ssl.create_default_context(cafile=str(authority))
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context
