"""Number and digest of a write's rows: they reveal a repeat that would write other rows. Pure.

The digest is the sum modulo 2^64 of one 64-bit hash a row, so neither the order of rows nor their division among tasks
counts. A row's hash chains its fields in a fixed order, each seeded with the hash so far: topic, event time,
properties, key, value. A missing field changes the seed by a constant.

The commit's note holds the digest (`client.commit(note=…)`). ▲ Never change how it is made, or each batch repeated
across an upgrade fails. Use a new name (`digest2`) instead: then a note of an earlier version is not compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Final, NamedTuple, TypeVar

from xxhash import xxh3_64_intdigest

from txnwire.entry import Columns

V = TypeVar("V")

_NO_TIME: Final = 0x9E3779B97F4A7C15
_NO_PROPERTIES: Final = 0xC2B2AE3D27D4EB4F
_NO_KEY: Final = 0x165667B19E3779F9
"""▲ A different seed for each field: two rows may have the same content in different fields."""
_MODULUS: Final = 1 << 64

_NOTE: Final = re.compile(r"rows=([0-9]{1,20}) digest=([0-9a-f]{16})\Z")


class Content(NamedTuple):
    rows: int
    digest: int

    def __str__(self) -> str:
        return f"rows={self.rows} digest={self.digest:016x}"

    @staticmethod
    def parse(note: str | None) -> Content | None:
        """Parses a commit's note; None if it holds no digest, as an earlier version's."""
        match = None if note is None else _NOTE.match(note)
        return None if match is None else Content(int(match[1]), int(match[2], 16))


NOTHING: Final = Content(0, 0)


def total(parts: Iterable[Content]) -> Content:
    """The sum over all of them, in any order."""
    rows = digest = 0
    for part in parts:
        rows += part.rows
        digest += part.digest
    return Content(rows, digest % _MODULUS)


def content_of(messages: Iterable[tuple[str, Columns]]) -> Content:
    """Content of messages, by the full name of their topic."""
    return total(_of_topic(topic, columns) for topic, columns in messages)


def _of_topic(topic: str, columns: Columns) -> Content:
    seeds: _Seeds = xxh3_64_intdigest(topic.encode())
    seeds = _through(columns.event_times, _time, seeds, _NO_TIME)
    seeds = _through(columns.properties, _properties, seeds, _NO_PROPERTIES)
    seeds = _through(columns.keys, xxh3_64_intdigest, seeds, _NO_KEY)
    return Content(len(columns.values), sum(map(xxh3_64_intdigest, columns.values, _each(seeds))) % _MODULUS)


_Seeds = int | Iterator[int]
"""One value for each row, made lazily, or one for all rows."""


def _each(seeds: _Seeds) -> Iterator[int]:
    return repeat(seeds) if isinstance(seeds, int) else seeds


def _through(column: Sequence[V | None] | None, hashed: Callable[[V, int], int], seeds: _Seeds, lacking: int) -> _Seeds:
    """Returns the seeds after this field. ▲ A column that no row of a batch fills counts like a partly filled one: the
    division of rows into batches must not matter."""
    if column is None:
        return seeds ^ lacking if isinstance(seeds, int) else (seed ^ lacking for seed in seeds)
    if None not in column:
        return map(hashed, column, _each(seeds))  # type: ignore[arg-type]
    return (
        seed ^ lacking if item is None else hashed(item, seed) for item, seed in zip(column, _each(seeds), strict=False)
    )


def _time(epoch_ms: int, seed: int) -> int:
    return xxh3_64_intdigest(epoch_ms.to_bytes(8, "big", signed=True), seed)


def _properties(properties: Mapping[str, str], seed: int) -> int:
    """Independent of their order; empty properties count like a missing map, as both are stored alike."""
    if not properties:
        return seed ^ _NO_PROPERTIES
    seed = (seed + len(properties)) % _MODULUS
    for name in sorted(properties):
        seed = xxh3_64_intdigest(properties[name].encode(), xxh3_64_intdigest(name.encode(), seed))
    return seed
