"""A transparent route is not noticed (TRN-2, OPT-2, RPL-6).

Real clients work with real upstreams, once directly and once through a gateway; what they send, what they are told and
what becomes of it is the same, byte for byte, and the ledger has every mutation.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import requests
from requests.auth import HTTPDigestAuth

from tests.e2e.corpus.browser import browse
from tests.e2e.corpus.comparison import REVEALED, assert_same_course
from tests.e2e.corpus.dav_server import DavServer
from tests.e2e.corpus.depot import Depot
from tests.e2e.corpus.git_server import GitServer, pack_of
from tests.e2e.corpus.git_work import Work, push_and_fetch
from tests.e2e.corpus.world import ORIGIN, World, run, world

pytestmark = pytest.mark.asyncio(loop_scope="module")

BIG = random.Random(2).randbytes(3 << 20)  # larger than what is kept of a payload
SMALL = "Grüße aus dem Archiv\n".encode() * 40


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def depot(
    tmp_path_factory: pytest.TempPathFactory, postgres_url: str, template_database: str
) -> AsyncIterator[World]:
    upstream = Depot()
    await upstream.start()
    async with world(upstream, tmp_path_factory.mktemp("depot"), postgres_url, template_database) as made:
        yield made
    await upstream.stop()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("files")
    (directory / "big").write_bytes(BIG)
    (directory / "small.txt").write_bytes(SMALL)
    (directory / "small.txt.gz").write_bytes(gzip.compress(SMALL, mtime=0))
    return directory


# --- curl

BOUNDARY = rb"-{20,}[0-9a-zA-Z]{16,}"
CURL: dict[str, str] = {
    "form": "-d a=1 --data-urlencode b=ä&c {url}/forms",
    "form, followed to its page": "-L --compressed -c - -d a=1 {url}/forms",
    "multipart form": "-F note=läuft -F file=@small.txt;type=text/plain -F other=@small.txt.gz {url}/forms",
    "multipart form too large to keep": "-F note=läuft -F big=@big {url}/forms",
    "put": "-T small.txt {url}/files/",
    "put again": "-T small.txt {url}/files/a --next -T small.txt.gz {url}/files/a",
    "put what is too large to keep": "-T big {url}/files/ --next {url}/files/big",
    "put after 100": "-H 'Expect: 100-continue' -T small.txt {url}/files/",
    "put chunked": "-T - {url}/files/chunked --next {url}/files/chunked",
    "put packed": "-H 'Content-Encoding: gzip' -T small.txt.gz {url}/files/a --next {url}/files/a",
    "put nothing": "-X PUT {url}/files/nothing --next -X PUT -d= {url}/files/nothing",
    "patch": "-T small.txt {url}/files/a --next --compressed -X PATCH -d more {url}/files/a",
    "delete": "-T small.txt {url}/files/a --next -X DELETE {url}/files/a --next -X DELETE {url}/files/a",
    "delete with a body": "-X DELETE -d why {url}/files/a",
    "query": "-d a=1 {url}/status/200?q=%2F&&b=%C3%BC?",
    "encoded path": "-g -T small.txt {url}/files/a%2Fb%20c%C3%BC;v=1",
    "scoped name at the root": "-X PUT -d a=1 {url}/@scope%2Fname",
    "dots and slashes": "--path-as-is -d a=1 {url}/a/./b/../status//200",
    "from another origin": "-H 'Origin: {origin}' -d a=1 {url}/status/200 {url}/events {url}/large",
    "preflight": "-H 'Origin: {origin}' -H 'Access-Control-Request-Method: PUT' -X OPTIONS {url}/files/a",
    "credentials": "-u me:secret -d a=1 {url}/status/200",
    "old client": "-0 -d a=1 {url}/status/200 --next -0 -T small.txt {url}/files/a",
    "read": "-T small.txt {url}/files/a --next -I {url}/files/a --next -X OPTIONS {url}/files/a --next {url}/files/b",
    "unknown to all": "-d a=1 {url}/nowhere --next -X PUT {url}/forms --next -X PURGE {url}/files/a",
    "own reason": "-d a=1 {url}/status/299%20Wie%20es%20beliebt",
    "redirects": "-d a=1 {url}/status/301 --next -d a=1 {url}/status/307",
    "refused": "-d a=1 {url}/status/400 --next -d a=1 {url}/status/401 --next -d a=1 {url}/status/409",
    "failed": "-d a=1 {url}/status/500 --next -d a=1 {url}/status/503",
    "in doubt": "-d a=1 {url}/status/502 --next -d a=1 {url}/status/504",
    "not modified": "-d a=1 {url}/status/304 --next -d a=1 {url}/status/205",
    "large answer": "-d a=1 {url}/large",
    "large answer, chunked": "-d a=1 {url}/large/chunked",
    "events": "-N -d a=1 {url}/events",
    "slow answer": "-N -d a=1 {url}/slow",
    "in doubt, with a large answer": "-d a=1 {url}/large?status=502",
    "in doubt, with a slow answer": "-N -d a=1 {url}/slow?status=504",
    "failed, with a large answer": "-d a=1 {url}/large?status=500",
    "nothing revealed": "-d a=1 {url}/hidden/forms {url}/hidden/large {url}/hidden/events {url}/hidden/status/502",
}


@pytest.mark.needs_curl
@pytest.mark.parametrize("name", CURL)
async def test_curl(depot: World, files: Path, name: str) -> None:
    async def client(url: str) -> bytes:
        calls = [shlex.split(call) for call in CURL[name].format(url=url, origin=ORIGIN).split("--next")]
        each = ["-sS", "--max-time", "20", "-w", "%{http_code} %{size_download}"]
        arguments = [word for call in calls for word in ("--next", *each, *call)][1:]
        return await run("curl", *arguments, cwd=files, stdin=SMALL)

    await depot.same(client, varying=[BOUNDARY])


@pytest.mark.needs_curl
@pytest.mark.parametrize("size", [300_000, len(BIG)], ids=["kept", "too large to keep"])
async def test_an_upload_that_the_upstream_refuses_at_its_head(depot: World, files: Path, size: int) -> None:
    """P1-9: the answer is the same. On the way to it the gateway has asked for a body that must be durable first."""
    (files / "upload").write_bytes(BIG[:size])

    async def client(url: str) -> bytes:
        sending = ("-H", "Expect: 100-continue", "--data-binary", "@upload")
        return await run("curl", "-sS", "-w", "%{http_code}", *sending, url + "/refused", cwd=files)

    direct, through = await depot.twice(client)
    assert_same_course(direct.front, through.front, whole_uploads=False)
    server_id = through.front[0].header(REVEALED)
    assert server_id is not None
    intent = await depot.gateway.intent(server_id.decode())
    assert (intent["phase"], intent["response"]["status"]) == ("FAILED", 413)


# --- requests


def use_requests(url: str) -> list[Any]:
    """An afternoon of a Python program."""
    with requests.Session() as session:
        session.headers["Accept-Language"] = "de, en;q=0.5"
        answers = [
            session.post(url + "/forms", data={"a": "1", "b": ["2", "ü"]}),
            session.post(url + "/forms", files={"f": ("Größe.txt", SMALL, "text/plain"), "g": ("g", BIG[:300_000])}),
            session.put(url + "/files/a b", data=SMALL),
            session.put(url + "/files/ü", data=(BIG[start : start + 9_000] for start in range(0, 90_000, 9_000))),
            session.put(url + "/files/none", data=b""),
            session.patch(url + "/files/a b", json={"ü": [1, 2.5, None]}),
            session.get(url + "/files/a b"),
            session.head(url + "/files/ü"),
            session.options(url + "/files/ü"),
            session.delete(url + "/files/a b"),
            session.delete(url + "/files/a b"),
            session.post(url + "/guarded", data=SMALL, auth=HTTPDigestAuth("me", "secret")),
            session.post(url + "/large/chunked", stream=True),
            session.post(url + "/events", json={}, stream=True),
            session.post(url + "/status/307", allow_redirects=False),
            session.post(url + "/status/503", data=iter([b"in ", b"chunks"])),
        ]
        told = [(answer.status_code, answer.reason, answer.url, answer.encoding, answer.content) for answer in answers]
        return [*told, session.cookies.get_dict()]


async def test_requests(depot: World) -> None:
    await depot.same(
        lambda url: asyncio.to_thread(use_requests, url),
        varying=[rb"(?<=boundary=)[0-9a-f]{32}", rb"(?<=--)[0-9a-f]{32}", rb'(?:cnonce|response)="[0-9a-f]+"'],
    )


# --- a browser


@pytest.mark.needs_chromium
async def test_a_browsers_uploads(depot: World, tmp_path: Path) -> None:
    """A form with files and its page, fetch and XMLHttpRequest."""
    profiles = iter((tmp_path / "direct", tmp_path / "through"))
    through = await depot.same(
        lambda url: browse(url, depot.front, next(profiles)), varying=[rb"----WebKitFormBoundary[0-9A-Za-z]{16}"]
    )
    report = json.loads(through.result)
    assert len(report) == 10, report
    assert "'image.bin' 'image/png' 300000" in report[0]


# --- git


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def git(
    tmp_path_factory: pytest.TempPathFactory, postgres_url: str, template_database: str
) -> AsyncIterator[World]:
    upstream = GitServer(tmp_path_factory.mktemp("repositories"))
    await upstream.start()
    async with world(upstream, tmp_path_factory.mktemp("git"), postgres_url, template_database) as made:
        yield made
    await upstream.stop()


@pytest.mark.needs_git
async def test_git_push_over_http(git: World, tmp_path: Path) -> None:
    """Smart HTTP with credentials: push, clone, fetch, a forced push and a deleted branch."""
    directories = iter((tmp_path / "direct", tmp_path / "through"))

    async def client(url: str) -> list[str]:
        directory = next(directories)
        directory.mkdir()
        told = await push_and_fetch(Work(directory, url), photo=BIG)
        assert isinstance(git.upstream, GitServer)
        return [*told, await Work(git.upstream.repository.parent, url).history("shop.git")]

    through = await git.same(client, content=pack_of)
    assert b"Content-Encoding: gzip" in b"".join(exchange.request_head for exchange in through.front)


# --- WebDAV


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def dav(
    tmp_path_factory: pytest.TempPathFactory, postgres_url: str, template_database: str
) -> AsyncIterator[World]:
    upstream = DavServer(tmp_path_factory.mktemp("dav") / "files")
    upstream.start()
    async with world(upstream, tmp_path_factory.mktemp("webdav"), postgres_url, template_database) as made:
        yield made
    upstream.stop()


CADAVER = """
mkcol shelf
cd shelf
put small.txt
put small.txt Größe.txt
put big
ls
copy small.txt copy.txt
move copy.txt moved.txt
propset moved.txt colour green
propget moved.txt colour
propnames moved.txt
lock moved.txt
discover moved.txt
put small.txt.gz moved.txt
unlock moved.txt
cat small.txt
get big got
delete small.txt
mkcol inner
rmcol inner
delete nothing
mkcol shelf/missing/parent
ls
quit
"""
LOCK_TOKEN = rb"opaquelocktoken:0x[0-9a-f]+"


@pytest.mark.needs_cadaver
async def test_a_webdav_client(dav: World, files: Path) -> None:
    """Methods that are no concern of 2PHP pass: MKCOL, PROPFIND, PROPPATCH, COPY, MOVE, LOCK, UNLOCK."""

    async def client(url: str) -> dict[Path, bytes]:
        await run("cadaver", url + "/", cwd=files, stdin=CADAVER.encode(), env={"HOME": str(files)})
        assert (files / "got").read_bytes() == BIG
        assert isinstance(dav.upstream, DavServer)
        return {
            path.relative_to(dav.upstream.directory): path.read_bytes()
            for path in dav.upstream.directory.rglob("*")
            if path.is_file()
        }

    through = await dav.same(client, varying=[LOCK_TOKEN])
    assert len(through.result) == 3, through.result
    assert {"MKCOL", "PROPFIND", "PROPPATCH", "COPY", "MOVE", "LOCK", "UNLOCK"} <= through.methods


@pytest.mark.needs_litmus
@pytest.mark.parametrize("suite", ["copymove", "props", "locks", "http"])
async def test_a_webdav_test_suite(dav: World, tmp_path: Path, suite: str) -> None:
    through = await dav.same(lambda url: run_litmus(url, suite, tmp_path), varying=[LOCK_TOKEN])
    assert len(through.front) > 2


@pytest.mark.needs_litmus
async def test_a_webdav_test_suite_with_a_fragment(dav: World, tmp_path: Path) -> None:
    """All that litmus asks for is answered alike but a target with a fragment, which no request may have."""
    direct, through = await dav.twice(lambda url: run_litmus(url, "basic", tmp_path))
    assert {e.line for e in through.front} - {e.line for e in through.back} == {b"DELETE /litmus/frag/#ment"}
    assert_same_course(*([e for e in made.front if b"/frag/" not in e.line] for made in (direct, through)))


async def run_litmus(url: str, suite: str, directory: Path) -> bytes:
    return await run("litmus", "-k", url + "/", cwd=directory, env={"TESTS": suite})
