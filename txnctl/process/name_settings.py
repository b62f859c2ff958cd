"""The settings of transaction names as people type them: a value for all namespaces, then those of single ones. Pure.

7d, orders=90d
2000000, orders=100000
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from coordinator_v5.settings import NameSettings
from txnctl.process.amounts import seconds_of
from txnwire.errors import InvalidArgument

T = TypeVar("T")

LEAST_KEEP_S: Final = 60.0
MOST_KEEP_S: Final = 36_525 * 24 * 3600.0


def name_settings(keep: str, most: str) -> NameSettings:
    """Raises `InvalidArgument`."""
    keep_s, keep_s_of = keeps(keep)
    number, number_of = bounds(most)
    return NameSettings(keep_s=keep_s, keep_s_of=keep_s_of, most=number, most_of=number_of)


def keeps(text: str) -> tuple[float, dict[str, float]]:
    """Seconds for all namespaces, and those of single ones. Raises `InvalidArgument`."""
    return _by_namespace(text, _keep, "as 7d, orders=90d")


def bounds(text: str) -> tuple[int, dict[str, int]]:
    """As `keeps`, numbers of names."""
    return _by_namespace(text, _bound, "as 2000000, orders=100000")


def _keep(text: str) -> float:
    keep_s = seconds_of(text)
    if not LEAST_KEEP_S <= keep_s <= MOST_KEEP_S:
        raise InvalidArgument(f"{text!r}: expected a minute to 100 years")
    return keep_s


def _bound(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise InvalidArgument(f"{text!r}: expected a number from 1 on")
    return int(text)


def _by_namespace(text: str, read: Callable[[str], T], example: str) -> tuple[T, dict[str, T]]:
    for_all: list[T] = []
    single: dict[str, T] = {}
    for part in text.split(","):
        namespace, equals, value = part.strip().rpartition("=")
        namespace = namespace.strip()
        known = namespace in single if equals else bool(for_all)
        if known or "/" in namespace:
            raise InvalidArgument(f"{text!r}: expected one value, and then one of each namespace, {example}")
        if equals:
            single[namespace] = read(value.strip())
        else:
            for_all.append(read(value.strip()))
    if not for_all:
        raise InvalidArgument(f"{text!r}: expected a value for all namespaces first, {example}")
    return for_all[0], single
