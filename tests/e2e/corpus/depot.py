"""An upstream like many: forms, files, cookies, redirects, answers that are large, slow or live."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from pathlib import Path

from aiohttp import web

LARGE = random.Random(1).randbytes(2 << 20)  # twice what is kept of an answer, and nothing that packs well
PIECE_BYTES = 40_000
PAUSE_S = 0.6  # two of them make an answer slower than RPL-6 waits for
PAGE = Path(__file__).with_name("browser.html").read_bytes()
CHALLENGE = 'Digest realm="depot", nonce="0123456789abcdef", qop="auth", algorithm=SHA-256'


def described(field: str, filename: str | None, content_type: str | None, content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    return f"{field!r} {filename!r} {content_type!r} {len(content)} {digest}"


class Depot:
    """Runs on the loop of the test."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.forms: list[list[str]] = []
        app = web.Application(client_max_size=1 << 24)
        add = app.router.add_route
        for prefix in ("", "/hidden"):
            add("POST", prefix + "/forms", self._submit)
            add("GET", prefix + "/forms/{number}", self._form)
            add("PUT", prefix + "/files/{name}", self._put)
            add("PATCH", prefix + "/files/{name}", self._append)
            add("DELETE", prefix + "/files/{name}", self._delete)
            add("GET", prefix + "/files/{name}", self._get)  # HEAD too
            add("OPTIONS", prefix + "/files/{name}", self._options)
            add("*", prefix + "/status/{status}", self._status)
            add("POST", prefix + "/large", self._large)
            add("POST", prefix + "/large/chunked", self._large_chunked)
            add("POST", prefix + "/events", self._events)
            add("POST", prefix + "/slow", self._slow)
            add("POST", prefix + "/refused", self._refused)
            add("POST", prefix + "/guarded", self._guarded)
            add("POST", prefix + "/done", self._done)
            add("GET", prefix + "/", self._page)
        # What is packed stays packed: it is the bytes on the wire that are compared.
        self._runner = web.AppRunner(app, auto_decompress=False, access_log=None, shutdown_timeout=1)

    async def start(self) -> None:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port: int = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    def reset(self) -> None:
        self.files.clear()
        self.forms.clear()

    async def _submit(self, request: web.Request) -> web.StreamResponse:
        fields = []
        for name, value in (await request.post()).items():
            if isinstance(value, web.FileField):
                fields.append(described(name, value.filename, value.content_type, value.file.read()))
            else:
                fields.append(described(name, None, None, value.encode() if isinstance(value, str) else bytes(value)))
        self.forms.append(fields)
        answer = web.Response(status=303, headers={"Location": f"{request.path}/{len(self.forms)}"})
        answer.set_cookie("last", str(len(self.forms)), httponly=True)
        answer.set_cookie("kind", "form", path="/")
        return answer

    async def _form(self, request: web.Request) -> web.StreamResponse:
        fields = "\n".join(self.forms[int(request.match_info["number"]) - 1])
        text = f"<!doctype html><title>Stored</title><pre>{fields}</pre><p>{request.cookies.get('last')}</p>"
        answer = web.Response(text=text, content_type="text/html")
        answer.enable_compression()
        return answer

    async def _put(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        known = name in self.files
        self.files[name] = await request.read()
        tag = hashlib.sha256(self.files[name]).hexdigest()
        headers = {"ETag": f'"{tag}"', "Content-Location": request.raw_path}
        return web.Response(status=204, headers=headers) if known else web.Response(status=201, headers=headers)

    async def _append(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in self.files:
            raise web.HTTPNotFound
        self.files[name] += await request.read()
        answer = web.json_response({"name": name, "bytes": len(self.files[name])})
        answer.enable_compression()
        return answer

    async def _delete(self, request: web.Request) -> web.StreamResponse:
        if self.files.pop(request.match_info["name"], None) is None:
            return web.json_response({"error": "no such file"}, status=404)
        return web.Response(status=204)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        content = self.files.get(request.match_info["name"])
        if content is None:
            raise web.HTTPNotFound
        return web.Response(body=content, content_type="application/octet-stream")

    async def _options(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=204, headers={"Allow": "GET, HEAD, PUT, PATCH, DELETE, OPTIONS"})

    async def _status(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        status, _, reason = request.match_info["status"].partition(" ")
        return web.Response(status=int(status), reason=reason or None, text=f"said {status}\n")

    async def _large(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=LARGE, status=_status(request))

    async def _large_chunked(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for start in range(0, len(LARGE), PIECE_BYTES):
            await answer.write(LARGE[start : start + PIECE_BYTES])
        return answer

    async def _events(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await answer.prepare(request)
        for number in range(5):
            await answer.write(f"id: {number}\ndata: {json.dumps({'number': number})}\n\n".encode())
            await asyncio.sleep(0.01)
        return answer

    async def _slow(self, request: web.Request) -> web.StreamResponse:
        parts = [b"one ", b"two ", b"three\n"]
        answer = web.StreamResponse(status=_status(request), headers={"Content-Type": "text/plain"})
        answer.content_length = sum(map(len, parts))
        await answer.prepare(request)
        for part in parts:
            await answer.write(part)
            await asyncio.sleep(PAUSE_S)
        return answer

    async def _refused(self, request: web.Request) -> web.StreamResponse:
        """Answers at the head, and reads nothing of the body."""
        answer = web.Response(status=413, text="too large for us\n")
        answer.force_close()
        return answer

    async def _guarded(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        if not request.headers.get("Authorization", "").startswith("Digest "):
            return web.Response(status=401, headers={"WWW-Authenticate": CHALLENGE}, text="who are you?\n")
        return web.Response(text="welcome\n")

    async def _done(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(status=204)

    async def _page(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=PAGE, content_type="text/html", charset="utf-8")


def _status(request: web.Request) -> int:
    """What the client asks for."""
    return int(request.query.get("status", "200"))
