"""What people do with git: push, clone, fetch, force, delete."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.corpus.git_server import ENVIRONMENT, PASSWORD, USER
from tests.e2e.corpus.world import run

REMOTE = f"http://{USER}:{PASSWORD}@"
# Enough to negotiate about: git packs what it says of so many.
MANY_COMMITS = b"".join(
    b"commit refs/heads/many\ncommitter A <a@example.org> %d +0000\ndata 1\nx\n" % (1_700_000_000 + number)
    for number in range(64)
)


class Work:
    """Two people's clones of one repository."""

    def __init__(self, directory: Path, url: str) -> None:
        self.directory = directory
        self.url = url.replace("http://", REMOTE) + "/shop.git"

    async def git(self, where: str, *arguments: str, stdin: bytes = b"") -> str:
        command = ("git", "-C", self.directory / where, *arguments)
        return (await run(*command, env=ENVIRONMENT, stdin=stdin)).decode().replace(str(self.directory), "")

    async def commit(self, where: str, name: str, content: bytes) -> None:
        (self.directory / where / name).write_bytes(content)
        await self.git(where, "add", name)
        await self.git(where, "commit", "--quiet", "--message", f"Add {name}")

    async def history(self, where: str) -> str:
        return await self.git(where, "log", "--all", "--decorate=full", "--format=%H %D %s")


async def push_and_fetch(work: Work, *, photo: bytes) -> list[str]:
    """What git said on the way, and the histories at its end."""
    await work.git(".", "init", "--quiet", "mine")
    await work.commit("mine", "README", b"# Shop\n")
    await work.git("mine", "remote", "add", "origin", work.url)
    told = [await work.git("mine", "push", "--porcelain", "origin", "main")]
    await work.commit("mine", "photo", photo)  # larger than http.postBuffer: sent in chunks, after a probe
    await work.git("mine", "tag", "--annotate", "--message", "First", "v1")
    told.append(await work.git("mine", "push", "--porcelain", "--follow-tags", "origin", "main", "main:other"))
    await work.git(".", "clone", "--quiet", work.url, "theirs")  # an answer larger than what is kept
    told.append(await work.history("theirs"))
    await work.commit("theirs", "small", b"1\n")
    told.append(await work.git("theirs", "push", "--porcelain", "origin", "main"))
    await work.git("mine", "fast-import", "--quiet", stdin=MANY_COMMITS)
    await work.git("mine", "fetch", "--quiet", "origin")
    told.append(await work.git("mine", "push", "--porcelain", "--force", "origin", "main:forced", ":other"))
    told += [await work.history("mine"), await work.git("theirs", "ls-remote", "origin")]
    return told
