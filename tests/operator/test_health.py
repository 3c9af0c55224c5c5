"""OPS-1: health, readiness and metrics, open to whoever reaches the port."""

from __future__ import annotations

from tests.operator.console import Console


async def test_healthz_says_that_the_process_lives_whatever_else_is_away(storeless: Console) -> None:
    """OPS-1: neither the store nor readiness has a say in it."""
    storeless.ready = (False, ["store away"])
    reply = await storeless.ask("/healthz", role=None)
    assert (reply.status, reply.json) == (200, {"status": "ok"})


async def test_readyz_follows_readiness_and_tells_the_reasons(storeless: Console) -> None:
    """OPS-1, OPS-3."""
    reply = await storeless.ask("/readyz", role=None)
    assert (reply.status, reply.json) == (200, {"ready": True, "reasons": []})
    storeless.ready = (False, ["draining", "store away"])
    reply = await storeless.ask("/readyz", role=None)
    assert (reply.status, reply.problem) == (503, "not-ready")
    assert reply.json["ready"] is False
    assert reply.json["reasons"] == ["draining", "store away"]
    assert reply.headers["retry-after"]
    storeless.ready = (True, [])
    assert (await storeless.ask("/readyz", role=None)).status == 200


async def test_metrics_are_passed_on_as_they_are(storeless: Console) -> None:
    """OPS-1."""
    reply = await storeless.ask("/metrics", role=None)
    assert (reply.status, reply.body) == (200, storeless.metrics)
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_head_is_get_without_a_body(storeless: Console) -> None:
    """Probes often ask so."""
    reply = await storeless.ask("/healthz", role=None, method="HEAD")
    assert (reply.status, reply.body) == (200, b"")
    assert reply.headers["content-length"] == str(len((await storeless.ask("/healthz", role=None)).body))


async def test_no_answer_may_be_cached_or_sniffed(storeless: Console) -> None:
    """SEC-5: ledger data stays out of caches; nothing is taken for a page; no versions are told."""
    storeless.ready = (False, [])
    for path in ("/healthz", "/readyz", "/metrics", "/v1/in-doubt", "/v1/nothing", "/nothing"):
        headers = (await storeless.ask(path)).headers
        assert headers["cache-control"] == "no-store", path
        assert headers["x-content-type-options"] == "nosniff", path
        assert headers["server"] == "twophp", path


async def test_a_stopped_listener_leaves_its_port_and_can_start_again(storeless: Console) -> None:
    """OPS-1."""
    await storeless.listener.stop()
    storeless.port = await storeless.listener.start("127.0.0.1", storeless.port)
    assert (await storeless.ask("/healthz", role=None)).status == 200
