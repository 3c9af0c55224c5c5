"""Rules between sections: what each of them may say alone, but not together. Rules about routes are in `route_checks`.

Each check yields findings; none of them reads files, clocks or the environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.settings.access import ApiKeyIdentity, JwtIdentity, MtlsIdentity, TrustedHeaderIdentity
from gateway.settings.addresses import Address, is_loopback
from gateway.settings.faults import Location
from gateway.settings.model import Document
from gateway.settings.sections import Tls


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong, or (`warning`) something that works but was probably not meant.

    `about` names further locations that it depends on: if one of them is wrong in itself, this one is not reported.
    """

    location: Location
    message: str
    hint: str = ""
    about: tuple[Location, ...] = ()
    warning: bool = False


def check(document: Document) -> Iterator[Finding]:
    """Everything that is wrong between sections."""
    yield from _plaintext(document)
    yield from _listeners(document)
    yield from _store(document)
    yield from _identity(document)
    yield from _tokens(document)
    yield from _signatures(document)
    yield from _callbacks(document)
    yield from _ledger(document)


def _addresses(document: Document) -> Iterator[tuple[Location, Address]]:
    """Every listener, by the location that names its address."""
    yield ("listen",), Address(document.listen.host, document.listen.port)
    yield ("operator",), Address(document.operator.host, document.operator.port)
    for index, egress in enumerate(document.egress):
        yield ("egress", index, "listen"), egress.listen


def _plaintext(document: Document) -> Iterator[Finding]:
    """SEC-6: http without TLS is for loopback, or said out loud."""
    if document.listen.plaintext == "allowed":
        return
    secured: dict[Location, Tls | None] = {("listen",): document.listen.tls, ("operator",): document.operator.tls}
    for location, address in _addresses(document):
        if is_loopback(address.host) or secured.get(location) is not None:
            continue
        at: Location = location if location[0] == "egress" else (*location, "host")
        tls = "" if location[0] == "egress" else f"set {location[0]}.tls, or "
        yield Finding(
            at,
            f"http without TLS on {address.host}, which others can reach (SEC-6)",
            f"{tls}say `listen.plaintext: allowed` if the network in front is trusted",
            about=(("listen",),),
        )


def _listeners(document: Document) -> Iterator[Finding]:
    """No two listeners on one address; with SO_REUSEPORT the system would share the connections out among them."""
    taken: list[tuple[Location, Address]] = []
    for location, address in _addresses(document):
        for other, other_address in taken:
            if _clash(address, other_address):
                at: Location = location if location[0] == "egress" else (*location, "port")
                message = f"{address} is already taken by `{other[0]}`, {other_address}"
                yield Finding(at, message, "give each its own port", about=(other,))
        if location[0] == "egress" and address.port == 0:
            yield Finding(location, "0 would be a port that the application cannot know", "name a port")
        taken.append((location, address))


def _clash(one: Address, other: Address) -> bool:
    every = {"0.0.0.0", "::"}
    return one.port == other.port != 0 and (one.host == other.host or bool(every & {one.host, other.host}))


def _store(document: Document) -> Iterator[Finding]:
    store, keys = document.store, document.encryption.keys
    if not store.embedded and not keys:
        # Decision 12: replicas that made a key each could not read one another's rows.
        yield Finding(
            ("encryption", "keys"),
            "missing: a store of your own needs a key that all replicas have",
            "make one with `twophp keys new` and name it: `keys: [{id: k1, env: TWOPHP_KEY_K1}]`",
            about=(("store",),),
        )
    if store.embedded and store.owner_url is not None:
        yield Finding(("store", "owner_url"), "only for a store of your own", "leave it out with `store.url: embedded`")
    for key in ("url", "owner_url"):
        url = store.url if key == "url" else store.owner_url
        if url is not None and url.has_literal_password:
            message = "a password stands in the configuration"
            yield Finding(("store", key), message, f"write `{key}: {{env: NAME}}` or `{{file: PATH}}`", warning=True)
    yield from unique(("encryption", "keys"), "id", (key.id for key in keys))


def _identity(document: Document) -> Iterator[Finding]:
    match document.identity:
        case ApiKeyIdentity(keys=keys):
            yield from unique(("identity", "keys"), "name", (key.name for key in keys))
            yield from unique(("identity", "keys"), "sha256", (key.sha256 for key in keys))
        case TrustedHeaderIdentity(trusted_networks=networks):
            if not networks:
                yield Finding(("identity", "trusted_networks"), "at least one network: nobody's header is believed")
            for index, network in enumerate(networks):
                if network.prefixlen == 0:
                    message = "anyone who reaches the port can name themselves"
                    yield Finding(
                        ("identity", "trusted_networks", index), message, "name the proxy's network", warning=True
                    )
        case JwtIdentity() as jwt:
            yield from _jwt(jwt)
        case MtlsIdentity():
            if document.listen.tls is None or document.listen.tls.client_ca is None:
                needed = "mtls needs client certificates"
                yield Finding(("identity", "method"), needed, "set listen.tls with client_ca", about=(("listen",),))


def _jwt(jwt: JwtIdentity) -> Iterator[Finding]:
    if not jwt.algorithms:
        yield Finding(("identity", "algorithms"), "at least one algorithm")
    if not jwt.claims:
        yield Finding(("identity", "claims"), "at least one claim: it names the caller")
    if (jwt.jwks is None) == (jwt.secret is None):
        yield Finding(("identity",), "jwt needs exactly one of `jwks` and `secret`")
        return
    for index, algorithm in enumerate(jwt.algorithms):
        # A public key taken for a shared secret is the classic forgery: each source has its own algorithms.
        if algorithm.startswith("HS") != (jwt.secret is not None):
            source = "`secret`" if jwt.secret is None else "`jwks`"
            message = f"`{algorithm}` goes with {source}, which is not set"
            hint = "with a secret, name HS256, HS384 or HS512" if jwt.secret is not None else ""
            yield Finding(("identity", "algorithms", index), message, hint, about=(("identity",),))


def _tokens(document: Document) -> Iterator[Finding]:
    yield from unique(("tokens",), "name", (token.name for token in document.tokens))
    yield from unique(("tokens",), "sha256", (token.sha256 for token in document.tokens))
    for index, token in enumerate(document.tokens):
        if token.service is not None and token.role != "sync":
            yield Finding(("tokens", index, "service"), f"only for role `sync`; this token's role is `{token.role}`")


def _signatures(document: Document) -> Iterator[Finding]:
    yield from unique(("signatures", "keys"), "id", (key.id for key in document.signatures.keys))


def _callbacks(document: Document) -> Iterator[Finding]:
    callbacks = document.callbacks
    if callbacks.signing_key is not None and callbacks.signing_keys:
        yield Finding(("callbacks", "signing_key"), "short for one entry of `signing_keys`", "keep one of the two")
    if callbacks.per_caller and not callbacks.all_signing_keys:
        yield Finding(("callbacks", "per_caller"), "derives from a signing key", "set callbacks.signing_keys")


def _ledger(document: Document) -> Iterator[Finding]:
    central = urlsplit(document.ledger.central if document.ledger else "")
    if central.scheme == "http" and not is_loopback(central.hostname or ""):
        yield Finding(("ledger", "central"), "the token travels over http", "use https", warning=True)


def unique(where: Location, key: str, values: Iterable[str]) -> Iterator[Finding]:
    """Values that must differ, by the position of the later one. They are named by position: some are digests."""
    first: dict[str, int] = {}
    for index, value in enumerate(values):
        if value in first:
            yield Finding((*where, index, key), f"the same `{key}` as entry {first[value] + 1}", "each needs its own")
        first.setdefault(value, index)
