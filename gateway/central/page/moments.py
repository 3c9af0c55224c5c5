"""Times as people read them: UTC to the second, and how long ago (pure: the present is passed in)."""

from __future__ import annotations

from datetime import UTC, datetime

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def parsed(value: object) -> datetime | None:
    """A moment from an entry, which writes it as ISO 8601, or from the store."""
    if value is None or isinstance(value, datetime):
        return value
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def stamp(value: object) -> str:
    """2026-11-18 12:11:51"""
    at = parsed(value)
    return "–" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def exact(value: object) -> str:
    """For machines and tool tips: to the millisecond."""
    at = parsed(value)
    return "" if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def age(value: object, now: datetime) -> str:
    """`3 min ago`, or `in 20 s` for a deadline ahead."""
    at = parsed(value)
    if at is None:
        return ""
    seconds = (now - at).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return f"{span(seconds)} ago" if seconds > 0 else f"in {span(-seconds)}"


def span(seconds: float) -> str:
    """A length of time in its largest unit, and the next one below ten."""
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    whole = int(seconds)
    for index, (size, name) in enumerate(_UNITS):
        count, rest = divmod(whole, size)
        if count:
            if count < 10 and index + 1 < len(_UNITS):
                smaller, smaller_name = _UNITS[index + 1]
                if rest // smaller:
                    return f"{count} {name} {rest // smaller} {smaller_name}"
            return f"{count} {name}"
    return "0 s"
