"""Secrets: named in the YAML by `{env: NAME}` or `{file: PATH}`, read when asked for, never shown.

Loading checks that a secret can be read and has the right form, so that `twophp check` finds a missing one; no message
repeats any part of a value. Paths are relative to the working directory, like every path of the configuration.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import parse_qs, urlsplit

from gateway.settings.rules import Refused, Rule, Says, Section, Text, without_empty
from gateway.settings.texts import Name

SECRET_MAX_BYTES = 64 * 1024  # a PEM or a key, not a data file given by mistake
SECRET_FORM = "`{env: NAME}` or `{file: PATH}`, never the value itself"

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SecretUnavailable(Exception):
    """A secret that could be read when the settings were loaded, and no longer can."""


class EnvName(Rule):
    """The name of an environment variable. Text that cannot be one may be the secret itself, so it is not shown."""

    schema: ClassVar[dict[str, Any]] = {"type": "string", "pattern": f"^{_ENV_NAME.pattern}$"}

    def parse(self, value: object) -> str:
        if isinstance(value, str) and _ENV_NAME.fullmatch(value):
            return value
        raise Refused("the name of an environment variable", shown=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret(Section):
    """Where a secret is."""

    env: Annotated[str | None, EnvName(), Says("Environment variable that holds the secret.")] = None
    file: Annotated[str | None, Text(), Says("File that holds the secret.")] = None

    @classmethod
    def accept(cls, data: object) -> object:
        if not isinstance(data, dict):
            raise Refused(SECRET_FORM, shown=False)
        return without_empty(cls, data)

    def check(self) -> None:
        if (self.env is None) == (self.file is None):
            raise Refused(SECRET_FORM, hint="exactly one of the two", shown=False)
        try:
            value = self.reveal()
        except SecretUnavailable as missing:
            raise Refused(problem=str(missing), shown=False) from None
        self.check_value(value)

    def check_value(self, value: str) -> None:
        """What the secret must look like; raises `Refused` without showing it."""

    @property
    def source(self) -> str:
        """Where it is kept, for messages."""
        return f"environment variable {self.env}" if self.env is not None else f"file {self.file}"

    def reveal(self) -> str:
        """The secret itself, read now; white space around it, as at the end of a file, is not part of it."""
        value = os.environ.get(self.env) if self.env is not None else self._read()
        if value is None:
            raise SecretUnavailable(f"{self.source} is not set")
        if not value.strip():
            raise SecretUnavailable(f"{self.source} is empty")
        return value.strip()

    def _read(self) -> str:
        assert self.file is not None
        try:
            with Path(self.file).open("rb") as file:
                content = file.read(SECRET_MAX_BYTES + 1)
            if len(content) > SECRET_MAX_BYTES:
                raise SecretUnavailable(f"{self.source} is larger than {SECRET_MAX_BYTES} bytes")
            return content.decode()
        except OSError as error:
            raise SecretUnavailable(f"{self.source}: {error.strerror or 'cannot be read'}") from None
        except UnicodeDecodeError:
            raise SecretUnavailable(f"{self.source} is not UTF-8 text") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionKey(Secret):
    """A master key of the vault: base64 of 32 bytes (SEC-4)."""

    id: Annotated[str, Name(), Says("The id that stored rows name this key by.")]

    def check_value(self, value: str) -> None:
        if _decoded_bytes(value) != 32:
            raise Refused(
                problem=f"{self.source} does not hold base64 of 32 bytes",
                hint="make one with `twophp keys new`",
                shown=False,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey(Secret):
    """A Standard Webhooks secret for callbacks and compensation hooks (ACM-3)."""

    def check_value(self, value: str) -> None:
        encoded = value.removeprefix("whsec_")
        if encoded == value or not 24 <= _decoded_bytes(encoded) <= 64:
            problem = f"{self.source} does not hold `whsec_` and base64 of 24 to 64 bytes"
            raise Refused(problem=problem, hint="make one with: echo whsec_$(openssl rand -base64 32)", shown=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureKey(Secret):
    """A key that request signatures are checked with (SEC-3)."""

    id: Annotated[str, Name(), Says("The `keyid` of signatures made with it.")]
    algorithm: Annotated[
        Literal["hmac-sha256", "ed25519"],
        Says("hmac-sha256: base64 of the shared secret; ed25519: the public key as PEM."),
    ]

    def check_value(self, value: str) -> None:
        if self.algorithm == "hmac-sha256" and _decoded_bytes(value) < 16:
            raise Refused(problem=f"{self.source} does not hold base64 of at least 16 bytes", shown=False)
        if self.algorithm == "ed25519" and not _is_ed25519(value):
            raise Refused(problem=f"{self.source} does not hold an Ed25519 public key as PEM", shown=False)


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """`embedded`, or the URL of a Postgres, given as it is or as a secret. Never shows a password."""

    secret: Secret | None = None
    literal: str = field(default="embedded", repr=False)

    @property
    def embedded(self) -> bool:
        return self.secret is None and self.literal == "embedded"

    @property
    def has_literal_password(self) -> bool:
        """A password that stands in the YAML itself: it works, and is warned about."""
        return self.secret is None and _has_password(self.literal)

    def reveal(self) -> str:
        """The URL, password included."""
        return self.literal if self.secret is None else self.secret.reveal()


class PostgresUrl(Rule):
    """`store.url` and `store.owner_url`. The value found is never shown: it may carry a password."""

    def __init__(self, *, embedded: bool) -> None:
        self.embedded = embedded

    def parse(self, value: object) -> StoreUrl:
        own = "`postgresql://USER@HOST:PORT/NAME`, or one with a password as `{env: NAME}` or `{file: PATH}`"
        allowed = f"`embedded`, {own}" if self.embedded else own
        if isinstance(value, dict):
            secret = self._secret(value, allowed)
            if not _is_postgres(secret.reveal()):
                raise Refused(
                    problem=f"{secret.source} does not hold a URL that starts with postgresql://", shown=False
                )
            return StoreUrl(secret)
        if isinstance(value, str) and ((self.embedded and value == "embedded") or _is_postgres(value)):
            return StoreUrl(literal=value)
        raise Refused(allowed, shown=False)

    def _secret(self, value: dict[Any, Any], allowed: str) -> Secret:
        if set(value) - {"env", "file"}:
            raise Refused(allowed, shown=False)
        env, file = value.get("env"), value.get("file")
        secret = Secret(
            env=None if env is None else EnvName().parse(env), file=None if file is None else Text().parse(file)
        )
        secret.check()
        return secret

    def json_schema(self) -> dict[str, Any]:
        text: dict[str, Any] = {"type": "string", "pattern": "^postgres(ql)?://"}
        if self.embedded:
            text = {"type": "string", "pattern": "^(embedded$|postgres(ql)?://)"}
        source = {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": False}
        source["properties"] = {"env": EnvName().json_schema(), "file": Text().json_schema()}
        return {"anyOf": [text, source]}


def _is_postgres(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("postgresql", "postgres") and "://" in url
    except ValueError:
        return False


def _has_password(url: str) -> bool:
    if not _is_postgres(url):
        return False
    parts = urlsplit(url)
    return bool(parts.password) or "password" in parse_qs(parts.query)


def _decoded_bytes(text: str) -> int:
    """How many bytes a base64 text stands for; -1 if it is none."""
    try:
        return len(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return -1


def _is_ed25519(text: str) -> bool:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        return isinstance(load_pem_public_key(text.encode()), Ed25519PublicKey)
    except ValueError:
        return False
