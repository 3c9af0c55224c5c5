"""Git over HTTP as anybody would serve it: `git http-backend`, a CGI program, below a small server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from pathlib import Path

from aiohttp import BasicAuth, web

from tests.e2e.wire import Message

USER, PASSWORD = "me", "secret"

# Nothing of the machine's own configuration, and nothing that differs between two runs.
ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_COMMITTER_DATE": "1700000000 +0000",
    "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "pack.threads",  # deltas found by several threads differ from run to run
    "GIT_CONFIG_VALUE_0": "1",
    "GIT_CONFIG_KEY_1": "init.defaultBranch",
    "GIT_CONFIG_VALUE_1": "main",
    "GIT_CONFIG_KEY_2": "gc.auto",
    "GIT_CONFIG_VALUE_2": "0",
}


def pack_of(message: Message) -> bytes:
    """What the server of a fetch says: its pack comes in packets whose sizes are those of its reads from a pipe."""
    if message.header(b"content-type") != b"application/x-git-upload-pack-result":
        return message.body
    said, pack, at = b"", b"", 0
    while at < len(message.body):
        size = max(int(message.body[at : at + 4], 16), 4)  # less: a delimiter
        packet = message.body[at : at + size]
        if packet[4:5] == b"\x01":
            pack += packet[5:]
        else:
            said += packet
        at += size
    return said + pack


class GitServer:
    """Serves `shop.git`, which everybody may read and `me` may write."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.repository = directory / "shop.git"
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, auto_decompress=False, access_log=None, shutdown_timeout=1)

    async def start(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port: int = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    def reset(self) -> None:
        shutil.rmtree(self.repository, ignore_errors=True)
        subprocess.run(
            ["git", "init", "--quiet", "--bare", str(self.repository)], check=True, env={**os.environ, **ENVIRONMENT}
        )

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        user = _user(request)
        if user is None and "git-receive-pack" in request.path_qs:
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="git"'})
        program = await asyncio.create_subprocess_exec(
            "git", "http-backend",
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            env={**os.environ, **ENVIRONMENT, **self._variables(request, user)},
        )  # fmt: skip
        assert program.stdin is not None
        assert program.stdout is not None
        feeding = asyncio.create_task(_feed(request, program.stdin))
        answer = web.StreamResponse()
        while line := (await program.stdout.readline()).rstrip(b"\r\n"):
            name, _, value = line.decode().partition(": ")
            if name == "Status":
                answer.set_status(int(value[:3]), value[4:])
            else:
                answer.headers[name] = value
        await answer.prepare(request)
        while data := await program.stdout.read(1 << 16):
            await answer.write(data)
        await feeding
        await program.wait()
        return answer

    def _variables(self, request: web.Request, user: str | None) -> dict[str, str]:
        variables = {
            "GIT_PROJECT_ROOT": str(self._directory),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": request.method,
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query_string,
            "CONTENT_TYPE": request.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }
        if user is not None:
            variables["REMOTE_USER"] = user
        if request.content_length is not None:
            variables["CONTENT_LENGTH"] = str(request.content_length)
        return variables


def _user(request: web.Request) -> str | None:
    given = request.headers.get("Authorization")
    if given is None:
        return None
    credentials = BasicAuth.decode(given)
    return USER if (credentials.login, credentials.password) == (USER, PASSWORD) else None


async def _feed(request: web.Request, stdin: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):  # it need not read all of a request that it refuses
        async for data in request.content.iter_any():
            stdin.write(data)
            await stdin.drain()
    stdin.close()
