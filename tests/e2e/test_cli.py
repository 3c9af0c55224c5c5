"""The command line as its users run it (OPS-2, ACM-3, SEC-4)."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
import sys
from pathlib import Path

from tests.e2e.conftest import CREATED, MakeGateway
from tests.e2e.harness import TOKENS, Gateway, eventually
from tests.upstream.fake import FakeUpstream, Wire


async def twophp(*arguments: str, **environment: str) -> tuple[int, str, str]:
    """Exit status, output and errors."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env={**os.environ, **environment},
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def test_check_names_file_line_key_and_what_is_allowed(tmp_path: Path) -> None:
    """OPS-2: and a near miss is pointed out."""
    file = tmp_path / "gateway.yaml"
    file.write_text("upstream: {url: 'http://127.0.0.1:1'}\nroutes:\n  - path: /a\n    tll: 3s\n    mode: maybe\n")
    status, _, errors = await twophp("check", "-c", str(file))
    assert status == 2
    assert f"{file}:4:5: routes[0].tll: unknown key; did you mean `routes[0].ttl`?" in errors
    assert f"{file}:5:" in errors
    assert "`maybe`" in errors
    assert "transparent" in errors
    file.write_text("upstream: {url: 'http://127.0.0.1:1'}\nroutes: [{path: /a, recovery: redrive}]\n")
    status, out, errors = await twophp("check", "-c", str(file))
    assert (status, "ok" in out) == (0, True)
    assert errors == ""


async def test_keys_and_schema() -> None:
    """SEC-4, OPS-2."""
    status, out, _ = await twophp("keys", "new")
    assert status == 0
    assert len(base64.b64decode(out)) == 32
    status, out, _ = await twophp("schema")
    assert status == 0
    assert "routes" in json.loads(out)["properties"]


async def test_operators_see_what_is_in_doubt_and_what_was_not_heard(
    make_gateway: MakeGateway, upstream: FakeUpstream
) -> None:
    """REC-2, ACM-3: tables and JSON, and a clear word when the token is wrong."""

    async def drop(wire: Wire) -> None:
        await wire.request()
        wire.close()

    upstream.script = drop
    gateway = await make_gateway(callbacks={"allow_http": True, "allow_networks": ["127.0.0.0/8"]})
    reply = await gateway.register(
        "c-1", DTT_2PHP_Auto_Confirm="true", DTT_2PHP_Callback="http://127.0.0.1:9/", body=b"x"
    )
    where = {"TWOPHP_URL": gateway.operator_url, "TWOPHP_TOKEN": TOKENS["operations"]}
    status, out, _ = await twophp("in-doubt", "list", **where)
    assert status == 0
    assert reply.server_id in out
    status, out, _ = await twophp("deliveries", "gaps", "--json", **where)
    (item,) = json.loads(out)["items"]
    assert item["server_correlation_id"] == reply.server_id
    status, out, _ = await twophp("deliveries", "retry", item["id"], **where)
    assert (status, out.split(":")[0]) == (0, item["id"])
    status, out, _ = await twophp("deliveries", "list", "--state", "pending", **where)
    assert item["id"] in out
    status, _, errors = await twophp("deliveries", "list", **{**where, "TWOPHP_TOKEN": "wrong"})
    assert status == 1
    assert "No configured token" in errors


async def test_a_rotated_key_is_taken_over_by_a_reload(data_dir: Path, upstream: FakeUpstream) -> None:
    """SEC-4, OPS-1: `keys rotate` and SIGHUP; the new key seals, and what the old one sealed still opens."""
    gateway = Gateway(data_dir, upstream.url, None)
    upstream.answer(CREATED)
    try:
        await gateway.start()
        before = await gateway.register("c-before")
        assert (await gateway.confirm("c-before", before.server_id)).status == 200
        status, out, _ = await twophp("keys", "rotate", "--data-dir", str(data_dir / "store"))
        assert (status, "local-2 seals" in out) == (0, True)
        assert gateway.process is not None
        gateway.process.send_signal(signal.SIGHUP)
        await eventually(lambda: "configuration reloaded" in gateway.logs())
        assert gateway.logs().count('"the store is open"') == 2
        after = await gateway.register("c-after")
        assert (await gateway.confirm("c-after", after.server_id)).status == 200
        assert (await gateway.confirm("c-before", before.server_id)).body == b'{"id": "17"}'
        await gateway.stop()
        await gateway.start()
        for client_id, server_id in (("c-before", before.server_id), ("c-after", after.server_id)):
            assert (await gateway.confirm(client_id, server_id)).body == b'{"id": "17"}'
        assert len(upstream.requests) == 2
    finally:
        await gateway.aclose()
