"""A gateway's stand-in for tests that kill it: runs the embedded Postgres on the directory given and waits."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from gateway.store.embedded import EmbeddedPostgres


async def main() -> None:
    server = EmbeddedPostgres(Path(sys.argv[1]))
    dsn = await server.start()
    print(server.postmaster_pid, dsn, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
