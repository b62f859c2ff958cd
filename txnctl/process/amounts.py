"""Sizes, durations and times as people type them: `10G`, `7d`, `2026-11-22T10:00`. Pure.

Plain numbers keep the unit that the option or setting names.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from txnwire.errors import InvalidArgument

SIZES: Final[dict[str, int]] = {
    "": 1,
    "b": 1,
    **{f"{letter}{end}": 1000**power for power, letter in enumerate("kmgt", 1) for end in ("", "b")},
    **{f"{letter}i{end}": 1024**power for power, letter in enumerate("kmgt", 1) for end in ("", "b")},
}
"""Bytes of a unit, in lower case: `10G` and `10GB` have 1000³ each, `10Gi` and `10GiB` 1024³."""

DURATIONS_MS: Final = {
    unit: ms
    for ms, units in {
        1: "ms millisecond milliseconds",
        1000: "s sec secs second seconds",
        60_000: "m min mins minute minutes",
        3_600_000: "h hour hours",
        86_400_000: "d day days",
        604_800_000: "w week weeks",
    }.items()
    for unit in units.split()
}

_NUMBER: Final = r"([0-9]{1,30}(?:\.[0-9]{1,30})?)"
"""▲ So few digits that it is finite in any unit."""
_SIZE: Final = re.compile(_NUMBER + r"\s*([A-Za-z]*)\Z")
_PART: Final = re.compile(_NUMBER + r"\s*([A-Za-z]+)\s*")


def size_of(text: str) -> int:
    """Bytes. Raises `InvalidArgument`."""
    match = _SIZE.match(text.strip())
    unit = None if match is None else SIZES.get(match[2].lower())
    if match is None or unit is None:
        raise InvalidArgument(f"{text!r} is no size: expected bytes, or as 500k, 64MiB, 10G")
    return round(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def seconds_of(text: str) -> float:
    """A plain number means seconds. Raises `InvalidArgument`."""
    number = _plain(text)
    return number if number is not None else _milliseconds(text) / 1000


def milliseconds_of(text: str) -> int:
    """A plain number means milliseconds. Raises `InvalidArgument`."""
    number = _plain(text)
    return round(number if number is not None else _milliseconds(text))


def time_of(text: str) -> datetime | None:
    """A time in ISO 8601, without a zone in that of this machine; None if it is none."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.astimezone()


def _plain(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    if not 0 <= number < float("inf"):
        raise InvalidArgument(f"{text!r} is no duration: expected a number that is not negative, or as 90s, 12h, 7d")
    return number


def _milliseconds(text: str) -> float:
    parts = _PART.findall(text)
    units = [DURATIONS_MS.get(unit if unit in DURATIONS_MS else unit.lower() * (len(unit) > 1)) for _, unit in parts]
    if not parts or _PART.sub("", text.strip()) or None in units:
        raise InvalidArgument(f"{text!r} is no duration: expected a number, or as 500ms, 90s, 1h30m, 7d, 7 days")
    return sum(float(number) * (unit or 0) for (number, _), unit in zip(parts, units, strict=True))
