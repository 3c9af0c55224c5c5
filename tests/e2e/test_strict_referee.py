"""nginx as a referee: the same raw bytes go to the gateway and to nginx before the same origin.

Where nginx refuses what the gateway forwards, or where they find another number of requests in the same bytes, the
difference must be on a list with its reason. All other differences are only reported (`pytest -s`).
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
import pytest_asyncio

from tests.conftest import SEARCH_PATH
from tests.e2e.fidelity import get
from tests.e2e.harness import PATIENCE_S, free_port
from tests.e2e.malformed import EVERYWHERE, TOLERATED, aimed
from tests.e2e.test_passthrough_fidelity import REQUESTS, TARGETS
from tests.e2e.wire import Call, Message, Peer, Place, module_place

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs_nginx]
place = module_place(
    listen={"max_header": "8KiB", "max_headers": 64, "header_timeout": "400ms", "body_timeout": "400ms"}
)

CONFIG = """
daemon off;
master_process off;
pid {directory}/nginx.pid;
error_log {directory}/error.log crit;
events {{}}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    client_header_timeout 400ms;
    client_body_timeout 400ms;
    large_client_header_buffers 4 8k;
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass {origin};
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
        }}
    }}
}}
"""

CORPUS: dict[str, bytes] = {
    **{f"refused: {name}": aimed(row.request, b"/plain", ()) for name, row in EVERYWHERE.items()},
    **{f"tolerated: {name}": aimed(request, b"/plain", ()) for name, request in TOLERATED.items()},
    **{f"target: {name}": get(target) for name, target in TARGETS.items() if len(target) < 4000},
    **{f"request: {name}": request for name, request in REQUESTS.items() if len(request) < 7000},
}

# Where nginx refuses and we do not, and why that is right.
RAW_PATH = "OPT-2: the raw path goes upstream byte for byte; nginx refuses what it cannot decode for its own locations"
TABS = "RFC 9110 5.5: a tab around a value is white space; it is not passed on, so nobody behind us has to know that"
STRICTER_THAN_US = {
    "tolerated: tabs around a value": TABS,
    "tolerated: tab before the coding": TABS,
    "tolerated: above the root": RAW_PATH,
    "tolerated: encoded nul": RAW_PATH,
    "tolerated: broken percent": RAW_PATH,
    "target: encoded controls": RAW_PATH,
    "target: broken percent": RAW_PATH,
}


@dataclass
class Verdict:
    """What a proxy made of some bytes."""

    status: int | None  # of the first answer; None: closed without one
    forwarded: list[Message] = field(default_factory=list)

    @property
    def refused(self) -> bool:
        return not self.forwarded

    def __str__(self) -> str:
        seen = ", ".join(f"{seen.line.decode('latin-1')[:60]} +{len(seen.body)}" for seen in self.forwarded)
        return f"{self.status} {'refused' if self.refused else 'forwarded ' + seen}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def nginx_port(place: Place, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[int]:
    directory: Path = tmp_path_factory.mktemp("nginx")
    port = free_port()
    config = directory / "nginx.conf"
    config.write_text(CONFIG.format(directory=directory, port=port, origin=place.origin.url))
    program = shutil.which("nginx", path=SEARCH_PATH)
    assert program is not None
    process = await asyncio.create_subprocess_exec(program, "-p", str(directory), "-c", str(config))
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                assert process.returncode is None, (directory / "error.log").read_text()
                try:
                    (await Peer.connect(port)).close()
                    break
                except ConnectionError:
                    await asyncio.sleep(0.02)
        yield port
    finally:
        process.kill()
        await process.wait()


async def answer_whole(call: Call) -> None:
    await call.body()
    if call.message.whole:
        await call.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    else:
        call.wire.close()


async def verdict(place: Place, port: int, request: bytes) -> Verdict:
    place.origin.seen.clear()
    peer = await Peer.connect(port)
    await peer.send(request)
    status: int | None
    try:
        status = (await peer.answer()).status
    except (asyncio.IncompleteReadError, ConnectionError):
        status = None
    # A last request tells that all before it has been dealt with, if the connection still takes one.
    await peer.send(b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    await peer.ended()
    peer.close()
    whole = [seen for seen in place.origin.seen if seen.whole and seen.target != b"/last"]
    return Verdict(status, whole)


@pytest.mark.parametrize("name", CORPUS)
async def test_nginx_does_not_refuse_what_the_gateway_forwards(place: Place, nginx_port: int, name: str) -> None:
    """RELIABILITY, "How it is shown": referees side by side."""
    place.origin.behave = answer_whole
    ours = await verdict(place, place.gateway.port, CORPUS[name])
    theirs = await verdict(place, nginx_port, CORPUS[name])
    if str(ours) != str(theirs):
        print(f"{name}\n    gateway: {ours}\n    nginx:   {theirs}")
    if name in STRICTER_THAN_US:
        assert theirs.refused, "no difference any more: take it off the list"
        assert not ours.refused, "no difference any more: take it off the list"
    else:
        assert ours.refused or not theirs.refused, (str(ours), str(theirs))
    if not ours.refused and not theirs.refused:
        assert len(ours.forwarded) == len(theirs.forwarded)
        assert [seen.body for seen in ours.forwarded] == [seen.body for seen in theirs.forwarded]


PIECES = (b"\r\n", b"\n", b"\r", b" ", b"\t", b":", b";", b",", b"0", b"\x00", b"\xff", b"%2f", b"//", b"#", b"chunked",
          b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"GET /in HTTP/1.1")  # fmt: skip


def mutated(random: Random, request: bytes) -> bytes:
    """With one to three bytes lost, changed or doubled, or something put in."""
    data = bytearray(request)
    for _ in range(random.randint(1, 3)):
        at = random.randrange(len(data))
        match random.randrange(4):
            case 0:
                del data[at]
            case 1:
                data[at] = random.randrange(256)
            case 2:
                data[at:at] = data[at : at + random.randint(1, 12)]
            case _:
                data[at:at] = random.choice(PIECES)
    return bytes(data)


@pytest.mark.parametrize("seed", range(6))
async def test_mutations_are_never_understood_as_other_requests_than_nginx_finds(
    place: Place, nginx_port: int, seed: int
) -> None:
    """RELIABILITY, "How it is shown": what both forward is as many requests, with the same methods and bodies."""
    place.origin.behave = answer_whole
    random = Random(seed)
    compared = 0
    originals = [request for name, request in CORPUS.items() if name.startswith(("tolerated", "request"))]
    for _ in range(300):
        request = mutated(random, random.choice(originals))
        ours = await verdict(place, place.gateway.port, request)
        if ours.refused:
            continue
        theirs = await verdict(place, nginx_port, request)
        if not theirs.refused:
            compared += 1
            found = [[(seen.method, seen.body) for seen in one.forwarded] for one in (ours, theirs)]
            assert found[0] == found[1], request
    assert compared > 10
