"""The option `where`: which rows, entries and segments a `load()` reads. Pure.

    key = 'customer-7' and publish_time >= '2026-11-24T06:00:00Z'
    segment in ('segment://public/shop/orders/0000-7fff-1') and txn_id = '0000-0000000000000011'

A conjunction, in SQL's words, of columns by which reading can be skipped. It is exact: a row is returned if and only if
the condition holds. As in SQL null equals nothing: a condition on the key leaves out rows without one, and likewise for
the transaction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol, TypeVar

from txnwire.errors import InvalidArgument
from txnwire.ids import TxnId, hash_key
from txnwire.names import SegmentName, TopicName

V = TypeVar("V")

COLUMNS: Final = ("topic", "segment", "key", "publish_time", "txn_id")

_BEGIN: Final = re.compile(r"\s*(\w+)\s*(>=|<=|=|>|<|in\b)\s*", re.IGNORECASE)
_LITERAL: Final = re.compile(r"\s*(?:x'((?:[0-9a-f]{2})*)'|'((?:[^']|'')*)')\s*", re.IGNORECASE)
_CLOSED: Final = re.compile(r"\)\s*")
_AND: Final = re.compile(r"and\b", re.IGNORECASE)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Entry(Protocol):
    """An entry or its head: what all of its rows have in common."""

    @property
    def txn_id(self) -> TxnId | None: ...
    @property
    def publish_time_ms(self) -> int: ...


@dataclass(frozen=True)
class Condition:
    """A field that is None matches everything. `from_us`, `through_us`: publish times in us, both inclusive."""

    topics: frozenset[str] | None = None
    segments: frozenset[str] | None = None
    """As in the column: `segment://…`."""
    keys: frozenset[bytes] | None = None
    txn_ids: frozenset[TxnId] | None = None
    from_us: int | None = None
    through_us: int | None = None

    @property
    def asks_entries(self) -> bool:
        """Whether an entry's head can tell that the entry is left out."""
        return self.txn_ids is not None or self.from_us is not None or self.through_us is not None

    @property
    def asks_keys_alone(self) -> bool:
        return not self.asks_entries and self.topics is None and self.segments is None

    def may_hold_in(self, segment: str) -> bool:
        """Whether a segment, by its path, may have matching rows. ▲ A key was in every segment whose range holds its
        hash, through all splits and merges, so segments of any age qualify."""
        name = SegmentName.from_path(segment)
        if self.topics is not None and str(name.topic) not in self.topics:
            return False
        if self.segments is not None and str(name) not in self.segments:
            return False
        return self.keys is None or any(name.lo <= hash_key(key) <= name.hi for key in self.keys)

    def holds_of(self, entry: Entry) -> bool:
        """Whether it holds for what all rows of an entry have in common."""
        if self.txn_ids is not None and entry.txn_id not in self.txn_ids:
            return False
        at_us = entry.publish_time_ms * 1000
        return (self.from_us is None or at_us >= self.from_us) and (self.through_us is None or at_us <= self.through_us)


EVERYTHING: Final = Condition()


def parse(text: str) -> Condition:
    """Raises `InvalidArgument` that says what was expected, and where."""
    found, at = EVERYTHING, 0
    while True:
        begin = _BEGIN.match(text, at)
        if begin is None:
            raise InvalidArgument(f"{text[at:]!r:.80}: expected a column, one of =, >, >=, <, <= and in, and a value")
        column, operator = begin[1].lower(), begin[2].lower()
        if column not in COLUMNS:
            raise InvalidArgument(f"there is no condition on {begin[1]!r}, only on {', '.join(COLUMNS)}")
        values, at = _list(text, begin.end()) if operator == "in" else _one(text, begin.end())
        found = _narrowed(found, column, operator, values)
        if at == len(text):
            return found
        connective = _AND.match(text, at)
        if connective is None:
            raise InvalidArgument(f"{text[at:]!r:.80}: expected 'and' and another condition, or nothing more")
        at = connective.end()


def _one(text: str, at: int) -> tuple[list[bytes], int]:
    literal = _LITERAL.match(text, at)
    if literal is None:
        raise InvalidArgument(f"{text[at:]!r:.80}: expected a value, such as 'text' or X'ff00'")
    value = bytes.fromhex(literal[1]) if literal[1] is not None else literal[2].replace("''", "'").encode()
    return [value], literal.end()


def _list(text: str, at: int) -> tuple[list[bytes], int]:
    values: list[bytes] = []
    while text[at : at + 1] == ("," if values else "("):
        some, at = _one(text, at + 1)
        values += some
    end = _CLOSED.match(text, at)
    if end is None:
        raise InvalidArgument(f"{text[at:]!r:.80}: expected values in brackets, with commas between them")
    return values, end.end()


def _narrowed(found: Condition, column: str, operator: str, values: list[bytes]) -> Condition:
    if column == "publish_time":
        return _timed(found, operator, [_microseconds(value.decode(errors="replace")) for value in values])
    if operator not in ("=", "in"):
        raise InvalidArgument(f"{column} {operator}: expected = or in")
    if column == "key":
        return replace(found, keys=_both(found.keys, values))
    texts = [_text(column, value) for value in values]
    match column:
        case "topic":
            return replace(found, topics=_both(found.topics, (str(TopicName.parse(text)) for text in texts)))
        case "segment":
            return replace(found, segments=_both(found.segments, (str(SegmentName.parse(text)) for text in texts)))
        case _:
            return replace(found, txn_ids=_both(found.txn_ids, (TxnId.parse(text) for text in texts)))


def _timed(found: Condition, operator: str, times: list[int]) -> Condition:
    if operator == "in" and len(times) > 1:
        raise InvalidArgument("publish_time in: expected a range, by >= and <")
    (time,) = times
    lower = {"=": time, "in": time, ">=": time, ">": time + 1}.get(operator)
    upper = {"=": time, "in": time, "<=": time, "<": time - 1}.get(operator)
    return replace(found, from_us=_either(max, found.from_us, lower), through_us=_either(min, found.through_us, upper))


def _either(nearer: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return one if other is None else other
    return nearer(one, other)


def _both(before: frozenset[V] | None, values: Iterable[V]) -> frozenset[V]:
    wanted = frozenset(values)
    return wanted if before is None else before & wanted


def _text(column: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{column}: expected text, not X'{value.hex()}'") from error


def _microseconds(text: str) -> int:
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidArgument(f"publish_time: {text!r:.40} is no time, such as 2026-11-24T06:00:00Z") from error
    if time.tzinfo is None:
        raise InvalidArgument(f"publish_time: {text!r} has no time zone: write {text}Z for UTC")
    return (time - _EPOCH) // timedelta(microseconds=1)
