"""Named statements from the `.sql` files beside this module.

A statement starts with `-- name: <name>`; the comment lines that follow describe it and are not sent.
"""

from __future__ import annotations

import re
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)\n((?:--.*\n)*)", re.M)


def load(file: str) -> dict[str, str]:
    """The statements of one file, by name."""
    text = resources.files(__package__).joinpath("sql", file).read_text()
    marks = list(_NAME.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return {mark[1]: text[mark.end() : end].strip().rstrip(";") for mark, end in zip(marks, ends, strict=True)}
