"""`twophp demo`: a sample service, an embedded Postgres and the gateway on loopback, with lines to paste."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import typer
import uvloop
from aiohttp import web

from gateway.cli.sample_upstream import make_app
from gateway.runtime.supervisor import Source, StartRefused, Supervisor
from gateway.settings import Overrides, Settings, parse
from gateway.store.embedded import EmbeddedError
from gateway.telemetry import logs

DATA_PORT, OPERATOR_PORT, SERVICE_PORT = 8080, 9080, 3000
TOKEN = "demo-operations"  # for the operator listener of the demo, on loopback only

CONFIG = """\
service: {{name: orders}}
listen: {{host: 127.0.0.1, port: {data}}}
operator: {{host: 127.0.0.1, port: {operator}}}
upstream: {{url: "http://127.0.0.1:{service}"}}
store: {{url: embedded, data_dir: .twophp}}
tokens: [{{name: demo, role: operations, sha256: "{digest}"}}]
routes:
  - {{path: /orders/**, profile: long-running}}
"""

TEXT = """
The gateway is ready: {data} -> the sample service on {service}. Paste these into another terminal:

1. Phase 1: register the intent. Nothing runs yet.

   CID=order-$(date +%s); SID=$(curl -si {data}/orders -H 'Authorization: Bearer me' \\
     -H 'DTT-2PHP-Enabled: true' -H "DTT-2PHP-Client-Correlation-ID: $CID" \\
     -H 'Content-Type: application/json' -d '{{"item": "book"}}' \\
     | tee /dev/stderr | tr -d '\\r' | sed -n 's/^DTT-2PHP-Server-Correlation-ID: //p')

2. Phase 2: confirm it, within two minutes. Now the service is called, once; paste it twice and see the same answer.

   curl -si -X POST {data}/orders/confirm -H 'Authorization: Bearer me' -H 'DTT-2PHP-Enabled: true' \\
     -H "DTT-2PHP-Client-Correlation-ID: $CID" -H "DTT-2PHP-Server-Correlation-ID: $SID"

3. The ledger: what was meant, by whom, and what came of it.

   curl -s {operator}/v1/intents/$SID -H 'Authorization: Bearer {token}' | python3 -m json.tool

Anything else passes through untouched: curl -s {data}/orders
Metrics: {operator}/metrics     Data: {directory}     Ctrl-C stops everything.
"""


def run_demo(log_level: str) -> int:
    """Run until Ctrl-C."""
    logs.configure(log_level)
    config = CONFIG.format(
        data=_free(DATA_PORT),
        operator=_free(OPERATOR_PORT),
        service=_free(SERVICE_PORT),
        digest=hashlib.sha256(TOKEN.encode()).hexdigest(),
    )
    settings = parse(config, "demo")
    try:
        return uvloop.run(_run(settings, log_level))
    except (StartRefused, EmbeddedError) as error:
        typer.echo(f"twophp: {error}", err=True)
        return 78


async def _run(settings: Settings, log_level: str) -> int:
    runner = web.AppRunner(make_app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(settings.upstream.url.rpartition(":")[2])).start()
    typer.echo("Starting an embedded Postgres, a sample service and the gateway …")
    try:
        supervisor = Supervisor(settings, Source(None, Overrides()), log_level=log_level)
        return await supervisor.run(ready=_explain)
    finally:
        await runner.cleanup()


def _explain(settings: Settings) -> None:
    typer.echo(
        TEXT.format(
            data=f"http://127.0.0.1:{settings.listen.port}",
            operator=f"http://127.0.0.1:{settings.operator.port}",
            service=settings.upstream.url,
            token=TOKEN,
            directory=Path(settings.store.data_dir).resolve(),
        )
    )


def _free(port: int) -> int:
    """The port, or another one if somebody has it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        free: int = probe.getsockname()[1]
        return free
