"""OBL-1 to OBL-4 on a running gateway: what is reserved survives kill -9, and what nobody settles is taken back."""

from __future__ import annotations

import hashlib
import json
import signal
from typing import Any

from tests.e2e.conftest import MakeGateway
from tests.e2e.harness import TOKENS, Gateway, Reply, eventually


async def post(gateway: Gateway, path: str, document: dict[str, Any]) -> Reply:
    return await gateway.operator("POST", path, data=json.dumps(document).encode())


async def reserve(gateway: Gateway, key: str) -> str:
    reply = await post(
        gateway, "/v1/obligations", {"flow": "publish", "key": key, "payload": {"n": 1}, "trace_id": "t-1"}
    )
    assert reply.status == 201, reply.body
    return str(reply.json["id"])


async def look(gateway: Gateway, obligation: str) -> Any:
    return (await gateway.operator("GET", f"/v1/obligations/{obligation}")).json


async def test_a_reservation_survives_a_kill_and_is_committed_afterwards(gateway: Gateway) -> None:
    """OBL-1: durable once acknowledged, payload and all; and so is the commit."""
    made = await reserve(gateway, "batch-1")
    await gateway.kill()
    await gateway.start()
    found = await look(gateway, made)
    assert (found["state"], found["payload"]) == ("Reserved", {"n": 1})
    reply = await post(gateway, f"/v1/obligations/{made}/commit", {"trace_id": "t-2"})
    assert (reply.status, reply.json["state"]) == (200, "Committed")
    await gateway.kill()
    await gateway.start()
    assert [event["code"] for event in (await look(gateway, made))["events"]] == ["OBL-001", "OBL-002"]
    leases = (await gateway.operator("GET", "/v1/obligations?flow=fencing")).json["items"]
    assert "Reserved" in [lease["state"] for lease in leases]


async def test_what_died_between_reserve_and_commit_is_taken_back(make_gateway: MakeGateway) -> None:
    """OBL-3: by whoever lives, on the configured interval; the key is free, the late commit refused, all of it told."""
    quick = {"leak_timeout": "1s", "scan_interval": "200ms"}
    gateway = await make_gateway(obligations=quick)
    made = await reserve(gateway, "batch-1")
    await gateway.kill()
    await gateway.start()

    async def taken_back() -> bool:
        return bool((await look(gateway, made))["state"] == "RolledBack")

    await eventually(taken_back)
    found = await look(gateway, made)
    assert [event["code"] for event in found["events"]] == ["OBL-001", "OBL-004", "OBL-003"]
    late = await post(gateway, f"/v1/obligations/{made}/commit", {"trace_id": "t-2"})
    assert (late.status, late.json["code"]) == (410, "ERR_OBL_LEAK_TIMEOUT")
    assert await reserve(gateway, "batch-1") != made
    scan = (await gateway.operator("GET", "/v1/obligations")).json["scan"]
    assert scan["leaked_total"] >= 1
    metrics = (await gateway.operator("GET", "/metrics", role=None)).body.decode()
    assert "twophp_obligations_leaked_total 1.0" in metrics
    assert "twophp_obligation_scans_total" in metrics


async def test_a_token_that_a_reload_takes_away_is_a_revocation_on_record(gateway: Gateway) -> None:
    """OBL-4, SEC-5: reserved, and committed once the token is worth nothing."""
    gateway.changes["tokens"] = [
        {"name": role, "role": role, "sha256": hashlib.sha256(TOKENS[role].encode()).hexdigest()}
        for role in TOKENS
        if role != "audit"
    ]
    gateway.write_config()
    assert gateway.process is not None
    gateway.process.send_signal(signal.SIGHUP)

    async def revoked() -> Any:
        items = (await gateway.operator("GET", "/v1/obligations?flow=revoke&state=Committed")).json["items"]
        return items

    (item,) = await eventually(revoked)
    digest = hashlib.sha256(TOKENS["audit"].encode()).hexdigest()
    assert item["key"].startswith(f"token/{digest[:16]}/")
    assert [event["code"] for event in (await look(gateway, item["id"]))["events"]] == ["OBL-001", "OBL-002"]
    assert (await gateway.operator("GET", "/v1/obligations", role="audit")).status == 401
