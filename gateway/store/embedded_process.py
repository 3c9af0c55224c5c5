"""A program we started or adopted: signal it, ask whether it runs, wait for its end.

Works the same for our own child and for a postmaster left behind by a killed gateway, which is nobody's child of ours.
asyncio's own subprocesses cannot do the latter, and uvloop's cannot start a program as another user.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gateway.store.embedded_account import Account

POLL_S = 0.1  # only where the kernel has no pidfd (before Linux 5.3, macOS)

# Nothing of our own environment reaches Postgres: PGDATA, PGPORT or a locale would change what it does.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


class Process:
    """One process, held by a pidfd where there is one, so that a recycled pid is never signalled."""

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None) -> None:
        self.pid = pid
        self._child = child
        self._pidfd = _open_pidfd(pid)

    @classmethod
    def spawn(cls, arguments: Sequence[str | Path], *, account: Account, directory: Path, output: int) -> Process:
        """Start a program in a session of its own: the terminal's Ctrl-C must not end it before the gateway drained."""
        child = subprocess.Popen(
            [str(argument) for argument in arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=directory,
            env=ENVIRONMENT,
            umask=0o077,
            start_new_session=True,
            user=account.uid if account.lent else None,
            group=account.gid if account.lent else None,
            extra_groups=[] if account.lent else None,
        )
        return cls(child.pid, child)

    @classmethod
    def attach(cls, pid: int) -> Process | None:
        """Hold on to a process that is not our child; None if there is none."""
        try:
            process = cls(pid, None)
        except ProcessLookupError:
            return None
        if not process.running():  # a zombie
            process.close()
            return None
        return process

    def running(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        if self._pidfd is not None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            return not poll.poll(0)
        return is_alive(self.pid)

    def send(self, number: signal.Signals) -> None:
        """Signal it; one that has ended meanwhile is no error."""
        try:
            if self._child is not None:
                self._child.send_signal(number)
            elif self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:
            pass

    def send_group(self, number: signal.Signals) -> None:
        """Signal it and what it started; only for a child, whose session is its own and which is not reaped yet."""
        assert self._child is not None
        if self.running():
            os.killpg(self.pid, number)

    async def exited(self) -> int | None:
        """Wait for its end; the exit status if it was our child."""
        while self.running():
            if self._pidfd is not None:
                await _readable(self._pidfd)
            else:
                await asyncio.sleep(POLL_S)
        return self._child.returncode if self._child is not None else None

    def close(self) -> None:
        """Let go of it, running or not."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def is_alive(pid: int) -> bool:
    """Whether any process has this pid, ours to signal or not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _open_pidfd(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except OSError:
        return None  # a kernel or sandbox without it: polling does


async def _readable(descriptor: int) -> None:
    """A pidfd becomes readable when its process ends. Watch a duplicate: two waiters may not share a descriptor."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    own = os.dup(descriptor)
    loop.add_reader(own, _settle, ended)
    try:
        await ended
    finally:
        loop.remove_reader(own)
        os.close(own)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
