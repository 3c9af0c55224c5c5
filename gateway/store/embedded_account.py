"""The operating-system account that the embedded Postgres runs as.

Postgres refuses to run as root. A gateway that runs as root therefore lends its cluster to an unprivileged account;
any other gateway runs Postgres as itself. This module only looks: it never creates users and never changes a mode.
"""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

# `postgres` exists wherever a distribution's Postgres was installed; `nobody` exists everywhere.
UNPRIVILEGED_NAMES = ("postgres", "nobody")


class EmbeddedError(Exception):
    """The embedded Postgres cannot be used; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Account:
    """Who runs Postgres. `lent` is true when that is not the gateway's own user."""

    name: str
    uid: int
    gid: int
    lent: bool

    def can_enter(self, directory: Path) -> bool:
        """Whether this account may pass through `directory` and everything above it."""
        return self.first_closed(directory) is None

    def first_closed(self, directory: Path) -> Path | None:
        """The topmost directory on the way to `directory` that this account may not pass through."""
        resolved = directory.resolve()
        for step in (*reversed(resolved.parents), resolved):
            if not self._may(step.stat(), stat.S_IXUSR, stat.S_IXGRP, stat.S_IXOTH):
                return step
        return None

    def _may(self, status: os.stat_result, owner_bit: int, group_bit: int, other_bit: int) -> bool:
        if status.st_uid == self.uid:
            return bool(status.st_mode & owner_bit)
        if status.st_gid == self.gid:
            return bool(status.st_mode & group_bit)
        return bool(status.st_mode & other_bit)


def choose_account(cluster: Path | None) -> Account:
    """The account for a cluster; one that exists already keeps the account that owns its files."""
    uid = os.geteuid()
    if uid != 0:
        return Account(name_of(uid), uid, os.getegid(), lent=False)
    if cluster is not None and cluster.exists() and (owner := cluster.stat()).st_uid != 0:
        return Account(name_of(owner.st_uid), owner.st_uid, owner.st_gid, lent=True)
    for name in UNPRIVILEGED_NAMES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid, lent=True)
    raise EmbeddedError(
        "Postgres does not run as root, and neither the user 'postgres' nor 'nobody' exists here: "
        "run the gateway as an ordinary user, or set store.url to a Postgres of your own"
    )


def name_of(uid: int) -> str:
    """The user's name; Postgres itself needs it to exist (peer authentication and initdb look it up)."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise EmbeddedError(
            f"the user id {uid} has no name on this system, and Postgres needs one: "
            "add it to /etc/passwd, or set store.url to a Postgres of your own"
        ) from None
