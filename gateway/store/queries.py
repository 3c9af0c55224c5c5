"""Named statements from the `.sql` files beside this module.

A statement starts with `-- name: <name>`; the comment lines that follow describe it and are not sent.
"""

from __future__ import annotations

import re
from importlib import resources

_NAME = re.compile(r"^-- name: (\w+)\n((?:--.*\n)*)", re.M)
_PARAMETER = re.compile(r"\$(\d+)")


def load(file: str, package: str = "gateway.store") -> dict[str, str]:
    """The statements of one file, by name; of the store's own, or those beside another package."""
    text = resources.files(package).joinpath("sql", file).read_text()
    marks = list(_NAME.finditer(text))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return {mark[1]: text[mark.end() : end].strip().rstrip(";") for mark, end in zip(marks, ends, strict=True)}


def with_step(sql: str, step: str) -> str:
    """A statement of several steps with one more before its last; each `{}` in it is a parameter of its own."""
    first = max(int(number) for number in _PARAMETER.findall(sql)) + 1
    numbers = range(first, first + step.count("{}"))
    steps, last = sql.rsplit("\n)\nSELECT ", 1)
    return f"{steps}\n), {step.format(*(f'${number}' for number in numbers))}\nSELECT {last}"
