"""From a file to `CentralSettings`, or to everything that is wrong with it at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gateway.settings.central import CentralDocument, CentralSettings, reachable_without_tls
from gateway.settings.checks import Finding, unique
from gateway.settings.explain import explain, kind
from gateway.settings.faults import Fault, SettingsError
from gateway.settings.loading import located, text_of
from gateway.settings.nodes import Node, read

OWN_KEYS = frozenset({"retention", "stalled", "pull", "page"})  # that no gateway's configuration has
GATEWAY_KEYS = frozenset({"upstream", "routes", "service"})


def load_central(path: Path) -> CentralSettings:
    """Settings of a central ledger from a file. Raises `SettingsError`."""
    return parse_central(text_of(path), str(path))


def parse_central(text: str, name: str = "settings") -> CentralSettings:
    """Settings from a text; `name` is what errors call it. Raises `SettingsError`."""
    root, faults = read(text, name)
    if not isinstance(root.value, dict):
        allowed = "a mapping of sections, such as `listen: {port: 9443}`"
        raise SettingsError([*faults, Fault(root.mark, "", found=kind(root.plain()), allowed=allowed)])
    try:
        document = _adapter().validate_python(root.plain())
    except ValidationError as error:
        raise SettingsError([*faults, *(fault for _, fault in explain(error, root, CentralDocument))]) from None
    warnings: list[Fault] = []
    for finding in _check(document):
        (warnings if finding.warning else faults).append(located(finding, root))
    if faults:
        raise SettingsError(faults)
    sections: dict[str, Any] = {section.name: getattr(document, section.name) for section in fields(CentralDocument)}
    return CentralSettings(**sections, warnings=tuple(warnings))


def is_central(path: Path) -> bool:
    """Whether a file configures a central ledger: it has keys that only such a one has, none of a gateway's own."""
    try:
        root, _ = read(text_of(path), str(path))
    except SettingsError:
        return False
    return _has_keys_of_a_central(root)


def _has_keys_of_a_central(root: Node) -> bool:
    keys = set(root.value) if isinstance(root.value, dict) else set()
    return bool(keys & OWN_KEYS) and not keys & GATEWAY_KEYS


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[CentralDocument]:
    return TypeAdapter(CentralDocument)


def _check(document: CentralDocument) -> Iterator[Finding]:
    """Rules between sections."""
    if reachable_without_tls(document):
        yield Finding(
            ("listen", "host"),
            f"http without TLS on {document.listen.host}, which others can reach (SEC-6)",
            "set listen.tls, or say `listen.plaintext: allowed` if the network in front is trusted",
        )
    store, keys = document.store, document.encryption.keys
    if not store.embedded and not keys:
        yield Finding(
            ("encryption", "keys"),
            "missing: a store of your own needs a key that stays when this machine goes",
            "make one with `twophp keys new` and name it: `keys: [{id: k1, env: TWOPHP_KEY_K1}]`",
        )
    if store.embedded and store.owner_url is not None:
        yield Finding(("store", "owner_url"), "only for a store of your own", "leave it out with `store.url: embedded`")
    for key in ("url", "owner_url"):
        url = store.url if key == "url" else store.owner_url
        if url is not None and url.has_literal_password:
            message = "a password stands in the configuration"
            yield Finding(("store", key), message, f"write `{key}: {{env: NAME}}` or `{{file: PATH}}`", warning=True)
    yield from unique(("encryption", "keys"), "id", (key.id for key in keys))
    yield from unique(("tokens",), "name", (token.name for token in document.tokens))
    yield from unique(("tokens",), "sha256", (token.sha256 for token in document.tokens))
    if not document.tokens:
        message, hint = "missing: nobody may read or write (SEC-5)", "add one for each reader and each service"
        yield Finding(("tokens",), message, hint, warning=True)
