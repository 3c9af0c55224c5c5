"""Who may do what: caller identity, operator tokens, signature keys and callback rules."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated, Any, Literal

from gateway.settings.addresses import AllowedHost, HttpUrl, Network, NetworkRange
from gateway.settings.durations import Duration
from gateway.settings.rules import Flag, Refused, Says, Section, Text, Whole
from gateway.settings.secrets import Secret, SignatureKey, SigningKey
from gateway.settings.texts import HeaderName, Name, Sha256

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core import CoreSchema

Anonymous = Annotated[
    Literal["reject", "allow"], Says("2PHP requests without credentials: 401, or one caller shared by all of them.")
]
METHOD = Says("How callers are told apart: authorization_digest, api_key, trusted_header, jwt or mtls.")
Role = Literal["audit", "operations", "compliance", "sync"]
JwtAlgorithm = Literal[
    "HS256", "HS384", "HS512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Jwks(Section):
    """A set of public keys (RFC 7517)."""

    url: Annotated[str | None, HttpUrl(), Says("URL of the key set.")] = None
    file: Annotated[str | None, Text(), Says("File with the key set.")] = None

    def check(self) -> None:
        if (self.url is None) == (self.file is None):
            raise Refused("exactly one of `url` and `file`")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey(Section):
    name: Annotated[str, Name(), Says("The caller's name.")]
    sha256: Annotated[str, Sha256(), Says("SHA-256 of the key, hexadecimal.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationDigestIdentity(Section):
    """A caller is a digest of its Authorization header; another token is another caller."""

    method: Annotated[Literal["authorization_digest"], METHOD] = "authorization_digest"
    anonymous: Anonymous = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKeyIdentity(Section):
    """A caller is the owner of an API key; without `keys`, a digest of whatever the header holds."""

    method: Annotated[Literal["api_key"], METHOD] = "api_key"
    anonymous: Anonymous = "reject"
    header: Annotated[str, HeaderName(), Says("Header that carries the key.")] = "X-Api-Key"
    keys: Annotated[tuple[ApiKey, ...], Says("Known keys; none: any value, told apart by its digest.")] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedHeaderIdentity(Section):
    """A caller is who a proxy in front says it is."""

    method: Annotated[Literal["trusted_header"], METHOD] = "trusted_header"
    anonymous: Anonymous = "reject"
    header: Annotated[str, HeaderName(), Says("Header that the proxy sets.")] = "X-Remote-User"
    trusted_networks: Annotated[
        tuple[Annotated[Network, NetworkRange()], ...], Says("Peers whose header is believed.")
    ] = (ip_network("127.0.0.0/8"),)


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtIdentity(Section):
    """A caller is certain claims of a bearer token."""

    method: Annotated[Literal["jwt"], METHOD] = "jwt"
    anonymous: Anonymous = "reject"
    algorithms: Annotated[tuple[JwtAlgorithm, ...], Says("Accepted algorithms.")] = ("RS256",)
    jwks: Annotated[Jwks | None, Says("Public keys, for RS, PS, ES and EdDSA.")] = None
    secret: Annotated[Secret | None, Says("Shared secret, for HS.")] = None
    issuer: Annotated[str | None, Text(), Says("Required `iss`.")] = None
    audience: Annotated[str | None, Text(), Says("Required `aud`.")] = None
    claims: Annotated[tuple[Annotated[str, Text()], ...], Says("Claims that name the caller.")] = ("iss", "sub")


@dataclass(frozen=True, slots=True, kw_only=True)
class MtlsIdentity(Section):
    """A caller is the subject of its client certificate."""

    method: Annotated[Literal["mtls"], METHOD] = "mtls"
    anonymous: Anonymous = "reject"


Identity = AuthorizationDigestIdentity | ApiKeyIdentity | TrustedHeaderIdentity | JwtIdentity | MtlsIdentity

IDENTITIES: dict[str, type[Section]] = {
    "authorization_digest": AuthorizationDigestIdentity,
    "api_key": ApiKeyIdentity,
    "trusted_header": TrustedHeaderIdentity,
    "jwt": JwtIdentity,
    "mtls": MtlsIdentity,
}


class ByMethod:
    """`identity.method` decides which keys the section has; left out, it is `authorization_digest`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic_core import core_schema

        def method(data: object) -> object:
            return (data.get("method") or "authorization_digest") if isinstance(data, dict) else None

        choices = {name: handler.generate_schema(section) for name, section in IDENTITIES.items()}
        return core_schema.tagged_union_schema(choices, method)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        # Not `oneOf`: a section without `method` fits several of them, and is the first.
        return {"anyOf": handler(schema)["oneOf"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Token(Section):
    """A token for the operator listener and the central ledger (SEC-5)."""

    name: Annotated[str, Name(), Says("Who holds it; named in audit events.")]
    role: Annotated[Role, Says("What it may do.")]
    sha256: Annotated[str, Sha256(), Says("SHA-256 of the token, hexadecimal.")]
    service: Annotated[str | None, Name(), Says("Role sync: the service it may write for; default: its name.")] = None

    @property
    def writes_for(self) -> str | None:
        """The service whose entries a sync token may write."""
        return (self.service or self.name) if self.role == "sync" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Signatures(Section):
    """Keys for `replay_proof: signature` (SEC-3)."""

    keys: Annotated[tuple[SignatureKey, ...], Says("Keys of the configuration's own.")] = ()
    jwks: Annotated[Jwks | None, Says("A key set of somebody else's.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks(Section):
    """Delivery of callbacks and compensation hooks, and where callbacks may go (ACM-3, ACM-4)."""

    allow_http: Annotated[bool, Flag(), Says("Whether callback URLs may be http.")] = False
    allow_hosts: Annotated[
        tuple[Annotated[str, AllowedHost()], ...], Says("Hosts that may be internal, on any port.")
    ] = ()
    allow_networks: Annotated[
        tuple[Annotated[Network, NetworkRange()], ...], Says("Networks that may be internal, on any port.")
    ] = ()
    ports: Annotated[tuple[Annotated[int, Whole(1, 65535)], ...], Says("Ports that callback URLs may name.")] = (
        443,
        8443,
    )
    timeout_ms: Annotated[int, Duration(), Says("Longest time of one delivery.")] = 5_000
    schedule_ms: Annotated[
        tuple[Annotated[int, Duration()], ...], Says("Pauses before each retry; after the last, dead-letter.")
    ] = (5_000, 300_000, 1_800_000, 7_200_000, 18_000_000, 36_000_000, 36_000_000)
    signing_keys: Annotated[tuple[SigningKey, ...], Says("whsec_<base64> each; all sign, newest first.")] = ()
    signing_key: Annotated[SigningKey | None, Says("Short for one entry in signing_keys.")] = None
    per_caller: Annotated[bool, Flag(), Says("Derive a signing key of its own for each caller.")] = False

    @property
    def all_signing_keys(self) -> tuple[SigningKey, ...]:
        """The signing keys, however they were written."""
        return self.signing_keys if self.signing_key is None else (self.signing_key,)
