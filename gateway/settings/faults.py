"""What is wrong with a configuration, and where (OPS-2): file, line, column, key, what was found, what is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Location = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file, or an option of the command line, which has no line."""

    name: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        return ":".join(str(part) for part in (self.name, self.line, self.column) if part is not None)


def dotted(location: Location) -> str:
    """`("routes", 0, "ttl")` as `routes[0].ttl`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong. What does not apply is empty: the key of a syntax error, the value of a missing key."""

    mark: Mark
    key: str
    problem: str = ""
    found: str = ""
    allowed: str = ""
    hint: str = ""

    def __str__(self) -> str:
        found = f"found {self.found}" if self.found else ""
        allowed = f"allowed: {self.allowed}" if self.allowed else ""
        where = f"{self.mark}: {self.key}" if self.key else str(self.mark)
        return f"{where}: " + "; ".join(part for part in (self.problem, found, allowed, self.hint) if part)


class SettingsError(Exception):
    """A configuration that cannot be used, with everything that is wrong with it, in the order of the file."""

    def __init__(self, errors: Sequence[Fault]) -> None:
        self.errors = tuple(sorted(errors, key=lambda fault: (fault.mark.line or 0, fault.mark.column or 0)))
        super().__init__("\n".join(str(fault) for fault in self.errors))

    def __reduce__(self) -> tuple[type[SettingsError], tuple[tuple[Fault, ...]]]:
        return SettingsError, (self.errors,)
