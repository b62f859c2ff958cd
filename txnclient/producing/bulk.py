"""Bulk sends: turns a caller's messages into columns and runs for entries, without an object per message. Pure.

A part is taken in at once and cut into runs of at most `batch_bytes`, each for one segment. Message ids are computed
from the runs' positions when they are read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from operator import add
from typing import Any, overload

from txnclient.producing.channels.batches import BulkBatch
from txnclient.producing.outgoing import MESSAGE_OVERHEAD_BYTES, check_size, checked
from txnwire.entry import Columns, OutgoingMessage
from txnwire.errors import InvalidArgument, MessageTooLarge
from txnwire.ids import MessageId
from txnwire.protocol import MAX_VALUE_BYTES, MIB

PART_MESSAGES = 10_000
"""Most messages taken in at once."""

PULLED_BYTES = 4 * MIB
"""About the most bytes pulled at once from an iterator, which may create its messages on demand."""

FIRST_PULLED = 16


class BulkPart:
    """Messages as columns, with each one's size in the buffer."""

    __slots__ = ("_ends", "_sizes", "columns")

    def __init__(self, columns: Columns, sizes: Sequence[int]) -> None:
        self.columns = columns
        self._sizes = sizes
        self._ends = list(accumulate(sizes))

    @staticmethod
    def of(messages: Sequence[Any], encode: Callable[[Any], bytes] | None = None) -> BulkPart:
        """Make a part of values, (key, value) pairs or `OutgoingMessage`s. `encode`: the values' serializer, if any.

        Raises `InvalidArgument`, `MessageTooLarge`.
        """
        columns = _bulk_columns(messages, encode)
        if columns is None:
            one_by_one = [_checked(message, encode) for message in messages]
            return BulkPart(Columns.of([message for message, _ in one_by_one]), [size for _, size in one_by_one])
        return BulkPart._of_columns(columns)

    @staticmethod
    def of_columns(given: Columns, encode: Callable[[Any], bytes] | None = None) -> BulkPart:
        """Make a part of given columns. Raises `InvalidArgument`, `MessageTooLarge`."""
        columns = None
        if given.properties is None and given.event_times is None:
            columns = _checked_columns(given.values, given.keys, encode)
        if columns is None:
            count = len(given.values)
            filled = [[None] * count if column is None else column for column in given]
            return BulkPart.of([OutgoingMessage(*message) for message in zip(*filled, strict=True)], encode)
        return BulkPart._of_columns(columns)

    @staticmethod
    def _of_columns(columns: Columns) -> BulkPart:
        lengths = list(map(len, columns.values))
        if max(lengths) > MAX_VALUE_BYTES:
            raise MessageTooLarge(
                f"a value of {max(lengths)} bytes is over the {MAX_VALUE_BYTES} bytes of a message: send it by "
                "send(value, chunk=True, txn=txn), in pieces within a transaction"
            )
        sizes = [length + MESSAGE_OVERHEAD_BYTES for length in lengths]
        if columns.keys is not None:
            sizes = list(map(add, sizes, [0 if key is None else len(key) for key in columns.keys]))
            check_size(max(sizes))
        return BulkPart(columns, sizes)

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def bytes(self) -> int:
        return self._ends[-1]

    def select(self, indexes: Sequence[int]) -> BulkPart:
        """Only these messages, in this order."""
        return BulkPart(self.columns.select(indexes), [self._sizes[i] for i in indexes])

    def runs(self, batch_bytes: int) -> Iterator[tuple[Columns, int]]:
        """Cut in order into runs of at most `batch_bytes`, a larger message alone; each with its size."""
        first, before = 0, 0
        while first < len(self):
            end = max(first + 1, bisect_right(self._ends, before + batch_bytes, first))
            yield self.columns.part(first, end), self._ends[end - 1] - before
            first, before = end, self._ends[end - 1]


def parts_of(messages: Iterable[Any], encode: Callable[[Any], bytes] | None = None) -> Generator[BulkPart, None, None]:
    """The messages in parts of a bounded number, and of bounded bytes if they come from an iterator."""
    if isinstance(messages, (bytes, bytearray, memoryview, str)):
        raise InvalidArgument("send_many takes many messages: an iterable of values, or of (key, value) pairs")
    if isinstance(messages, Columns):
        _check_lengths(messages)
        for first in range(0, len(messages.values), PART_MESSAGES):
            yield BulkPart.of_columns(messages.part(first, first + PART_MESSAGES), encode)
        return
    if isinstance(messages, Sequence):
        for first in range(0, len(messages), PART_MESSAGES):
            yield BulkPart.of(messages[first : first + PART_MESSAGES], encode)
        return
    iterator = iter(messages)
    pulled = FIRST_PULLED
    while gathered := list(islice(iterator, pulled)):
        part = BulkPart.of(gathered, encode)
        yield part
        pulled = max(1, min(PART_MESSAGES, PULLED_BYTES * len(part) // part.bytes))


def runs_no_code(messages: object) -> bool:
    """Whether taking them in runs no code of the caller except a serializer."""
    if not isinstance(messages, Columns):
        return False
    maps = messages.properties
    return all(column is None or type(column) in (list, tuple) for column in messages) and (
        maps is None or set(map(type, maps)) <= {dict, type(None)}
    )


def _check_lengths(columns: Columns) -> None:
    for column in columns:
        if column is not None and not isinstance(column, Sequence):
            raise InvalidArgument(f"a column is a sequence, not {type(column).__name__}")
        if column is not None and len(column) != len(columns.values):
            raise InvalidArgument(f"a column has {len(column)} items, that of the values {len(columns.values)}")


def _bulk_columns(messages: Sequence[Any], encode: Callable[[Any], bytes] | None) -> Columns | None:
    """Columns without checking each message; None unless all are of one simple kind."""
    kinds = set(map(type, messages))
    if kinds == {tuple}:
        if set(map(len, messages)) != {2}:
            return None
        keys, values = zip(*messages, strict=True)
        return _checked_columns(values, keys, encode)
    if OutgoingMessage in kinds or tuple in kinds:
        return None
    return _checked_columns(messages, None, encode)


def _checked_columns(
    values: Sequence[Any], keys: Sequence[Any] | None, encode: Callable[[Any], bytes] | None
) -> Columns | None:
    """The same from columns, by the types of their items."""
    if keys is not None:
        kinds = set(map(type, keys))
        if kinds == {str}:
            try:
                keys = [key.encode() for key in keys]
            except UnicodeEncodeError:
                return None  # the check of each message names the key
        elif kinds == {type(None)}:
            keys = None
        elif not kinds <= {bytes, type(None)}:
            return None
    if encode is not None:
        values = list(map(encode, values))
    return Columns(values, keys) if set(map(type, values)) == {bytes} else None


def _checked(message: Any, encode: Callable[[Any], bytes] | None) -> tuple[OutgoingMessage, int]:
    if isinstance(message, OutgoingMessage):
        value, key, properties, event_time_ms = message
    elif isinstance(message, tuple):
        if len(message) != 2:
            raise InvalidArgument(f"send_many takes values or (key, value) pairs, not tuples of {len(message)}")
        key, value = message
        properties = event_time_ms = None
    else:
        key, value, properties, event_time_ms = None, message, None, None
    return checked(value if encode is None else encode(value), key, properties, event_time_ms)


class SentIds(Sequence[MessageId]):
    """The ids of a bulk send in the order of its messages: compact, each computed when it is read."""

    __slots__ = ("_batches", "_count", "_ends", "_orders", "_ranks")

    def __init__(self) -> None:
        self._batches: list[BulkBatch] = []
        self._ends: list[int] = []
        """Number of messages up to the end of each batch."""
        self._orders: list[tuple[int, Sequence[int]]] = []
        """For messages in another order than the batches: the first one's place, and the batches' order of them."""
        self._ranks: array[int] | None = None
        """Each message's rank in the batches, computed for the `_orders` known at the last lookup."""
        self._count = 0

    def add(self, batch: BulkBatch) -> None:
        self._batches.append(batch)
        self._ends.append(batch.count + (self._ends[-1] if self._ends else 0))

    def taken(self, indexes: Sequence[int] | None, count: int) -> None:
        """The batches added since the last call hold the next `count` messages, in order or in the order `indexes`."""
        if indexes is not None:
            self._orders.append((self._count, array("i", indexes)))
        self._count += count

    @property
    def batches(self) -> Sequence[BulkBatch]:
        return self._batches

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> MessageId: ...
    @overload
    def __getitem__(self, index: slice) -> list[MessageId]: ...
    def __getitem__(self, index: int | slice) -> MessageId | list[MessageId]:
        if isinstance(index, slice):
            return [self._id(one) for one in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(f"message {index} of {self._count}")
        return self._id(index % self._count)

    def _id(self, index: int) -> MessageId:
        rank = index if not self._orders and self._ranks is None else self._all_ranks()[index]
        number = bisect_right(self._ends, rank)
        batch = self._batches[number]
        return batch.id_of(rank - (self._ends[number] - batch.count))

    def _all_ranks(self) -> array[int]:
        """Computed on demand, because most callers never read ids."""
        ranks = self._ranks = array("q") if self._ranks is None else self._ranks
        for first, indexes in self._orders:
            ranks.extend(range(len(ranks), first))
            placed = array("q", bytes(8 * len(indexes)))
            for rank, index in enumerate(indexes):
                placed[index] = first + rank
            ranks.extend(placed)
        self._orders.clear()
        ranks.extend(range(len(ranks), self._count))
        return ranks

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]
