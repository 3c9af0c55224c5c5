"""A set of public keys from a file or a URL (RFC 7517): for signatures (SEC-3) and for JSON Web Tokens (SEC-2).

Keys are cached and read anew from time to time, so that a key withdrawn at the source stops working here. Who names a
key that is not known sets off one more reading, at most so often: made-up key IDs cannot make us a nuisance to the
source. Shared secrets and private keys in the set are not taken: what everybody can read proves nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from jwt import PyJWK
from jwt.exceptions import PyJWTError

log = logging.getLogger(__name__)

REFRESH_S = 300.0  # how long a withdrawn key may go on working while its source is there
STALE_MAX_S = 3600.0  # and while its source is away: an outage there should not become one here at once
PAUSE_S = 10.0  # between two readings, whatever is asked for
FETCH_TIMEOUT_S = 5.0
DOCUMENT_BYTES_MAX = 256 * 1024
KEYS_MAX = 200


class KeysAway(Exception):
    """The keys cannot be read, and what was read before is too old to go by."""


class KeySet:
    """The keys of one source, by their IDs."""

    def __init__(self, *, url: str | None = None, file: str | None = None) -> None:
        assert (url is None) != (file is None), "keys come from one place"
        self._url = url
        self._file = file
        self._keys: dict[str, PyJWK] = {}
        self._read_at: float | None = None
        self._tried_at: float | None = None
        self._reading: asyncio.Task[None] | None = None

    async def key(self, kid: str) -> PyJWK | None:
        """The key of this ID, None when the source has none; `KeysAway` when nobody can tell."""
        found = self._keys.get(kid)
        if found is not None and self._younger_than(REFRESH_S):
            return found
        reading = self._read_soon()
        if found is not None and self._younger_than(STALE_MAX_S):
            return found  # read anew beside: who has a known key does not wait for a slow source
        if reading is not None:
            await asyncio.shield(reading)
        if not self._younger_than(STALE_MAX_S):
            raise KeysAway
        return self._keys.get(kid)

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _younger_than(self, age_s: float) -> bool:
        return self._read_at is not None and time.monotonic() - self._read_at < age_s

    def _read_soon(self) -> asyncio.Task[None] | None:
        """The reading under way, or a new one unless the last was just now."""
        if self._reading is None and (self._tried_at is None or time.monotonic() - self._tried_at >= PAUSE_S):
            self._tried_at = time.monotonic()
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="read a key set")
        return self._reading

    async def _read(self) -> None:
        try:
            document = await (self._fetch(self._url) if self._url is not None else self._load())
            self._keys = parse(document)
            self._read_at = time.monotonic()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            log.warning("a key set cannot be read", extra={"source": self._url or self._file}, exc_info=error)
        finally:
            self._reading = None

    async def _load(self) -> bytes:
        assert self._file is not None
        with Path(self._file).open("rb") as file:  # noqa: ASYNC230 - a small local file, rarely read
            return file.read(DOCUMENT_BYTES_MAX + 1)

    async def _fetch(self, url: str) -> bytes:
        """One request on a connection of its own: nothing is followed, nothing is sent twice."""
        timeout = aiohttp.ClientTimeout(total=FETCH_TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session,
            session.get(url, headers={"Accept": "application/json"}, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                raise ValueError(f"the source of the keys answered {answer.status}")
            document = bytearray()
            async for chunk in answer.content.iter_any():
                document += chunk
                if len(document) > DOCUMENT_BYTES_MAX:
                    break
            return bytes(document)


class KeySets:
    """The key sets of a process: a reload goes on with what was read from a URL, which may be away just then."""

    def __init__(self) -> None:
        self._by_url: dict[str, KeySet] = {}

    def of(self, *, url: str | None, file: str | None) -> KeySet:
        """The keys of a source. A file is read anew by a reload, as every other file is."""
        if url is None:
            return KeySet(file=file)
        return self._by_url.setdefault(url, KeySet(url=url))


def parse(document: bytes) -> dict[str, PyJWK]:
    """The public keys of a JWK Set that are named and meant for signatures; ValueError when it is none."""
    if len(document) > DOCUMENT_BYTES_MAX:
        raise ValueError("the key set is too large")
    loaded: Any = orjson.loads(document)
    entries = loaded.get("keys") if isinstance(loaded, dict) else None
    if not isinstance(entries, list) or len(entries) > KEYS_MAX:
        raise ValueError("not a JWK Set, or one of too many keys")
    found = {}
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("kid"), str):
            continue
        if entry.get("kty") == "oct" or "d" in entry or entry.get("use", "sig") != "sig":
            continue
        try:
            found[entry["kid"]] = PyJWK(entry)
        except (PyJWTError, TypeError, ValueError):
            continue  # malformed, or of a kind that we cannot check; the others serve
    return found
