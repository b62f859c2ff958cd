"""Parses numbers among the arguments of an operator's questions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from txnwire.errors import InvalidArgument

MAX_ROWS: Final = 100_000
"""Limit of a listing."""

MAX_AGE_S: Final = 100 * 366 * 24 * 3600.0


def number_of(args: Mapping[str, Any], name: str, default: float, *, most: float) -> float:
    """Raises `InvalidArgument` unless it is a number from 0 to `most`. None or empty is the default."""
    value = args.get(name)
    if value is None:
        return default
    if type(value) not in (int, float) or not 0 <= value <= most:
        raise InvalidArgument(f"{name} {str(value)[:100]}: expected a number from 0 to {most:g}")
    return float(value)
