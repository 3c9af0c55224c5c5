"""The one connection to the central ledger: registration and batches, each sent once, within bounded time.

No redirects (a token must not travel elsewhere), no proxies of the environment, no cookies, no second try by itself:
when to try again is the sync's decision. Says what became of a request as one of few words; never raises for what the
other side does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

import aiohttp
import orjson
import zstandard

TIMEOUT_S = 20.0  # of one request, all in all: a batch of 8 MiB over a slow link
CONNECT_TIMEOUT_S = 5.0
KEEP_ALIVE_S = 75.0  # above the default interval of 10 s: one connection serves many batches
ANSWER_BYTES_MAX = 64 * 1024
LEVEL = 3  # of zstd: ledger rows shrink to a tenth of their size; higher levels cost more time than they save

Word = Literal[
    "done",
    "away",  # no connection, no answer in time, or an answer that says to come back later
    "unknown",  # 404: the central ledger does not know this service (any more)
    "unauthorized",  # 401
    "forbidden",  # 403: the token is not for this service
    "conflict",  # 409: the ID belongs to another service
    "revoked",  # 410
    "too_large",  # 413
    "refused",  # anything else that trying again would not change
]
WORDS: Mapping[int, Word] = {
    200: "done",
    401: "unauthorized",
    403: "forbidden",
    404: "unknown",
    408: "away",
    409: "conflict",
    410: "revoked",
    413: "too_large",
    429: "away",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a request. `detail` is the other side's own explanation, cut short."""

    word: Word
    status: int = 0
    detail: str = ""
    document: Any = None


class Central:
    """The central ledger, as one service sees it."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url.rstrip("/")
        self._pack = zstandard.ZstdCompressor(level=LEVEL)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1, keepalive_timeout=KEEP_ALIVE_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "twophp-gateway", "Authorization": f"Bearer {token}"},
            skip_auto_headers=("Accept-Encoding",),
            timeout=aiohttp.ClientTimeout(total=TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S),
            trust_env=False,
            auto_decompress=False,
        )

    async def close(self) -> None:
        """Close the connection; what is in flight fails."""
        await self._session.close()

    async def register(
        self, name: str, service_ledger_id: UUID, operator_url: str | None, pull_token: str | None
    ) -> Reply:
        """LED-4."""
        said = {
            "name": name,
            "service_ledger_id": str(service_ledger_id),
            "operator_url": operator_url,
            "pull_token": pull_token,
        }
        body = orjson.dumps({key: value for key, value in said.items() if value is not None})
        return await self._post("/v1/services", body, {"Content-Type": "application/json"})

    async def push(self, service_ledger_id: UUID, entries: Sequence[Mapping[str, Any]]) -> Reply:
        """LED-2: a batch, all or nothing. Pushed again it is stored once."""
        lines = b"".join([orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE) for entry in entries])
        headers = {"Content-Type": "application/x-ndjson", "Content-Encoding": "zstd"}
        return await self._post(f"/v1/sync?service_ledger_id={service_ledger_id}", self._pack.compress(lines), headers)

    async def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
        try:
            async with self._session.post(
                self._url + path, data=body, headers=headers, allow_redirects=False
            ) as answer:
                content = await answer.content.read(ANSWER_BYTES_MAX)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            return Reply("away", detail=type(error).__name__)
        word = WORDS.get(answer.status, "away" if answer.status >= 500 else "refused")
        document = _json(content)
        detail = document.get("detail") if isinstance(document, dict) else None
        return Reply(word, answer.status, str(detail or "")[:200], document)


def _json(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
