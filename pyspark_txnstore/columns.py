"""Entries of a segment as Arrow record batches: the buffers of their blocks are wrapped, never walked by message.

What an entry says once, such as its transaction, is repeated for its messages by Arrow. Small entries are put together
until a batch is worth handing to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from txnclient import WholeEntry
from txnwire.block import BinaryColumn, Block
from txnwire.errors import InvalidArgument
from txnwire.names import SegmentName

BATCH_ROWS: Final = 32_768
BATCH_BYTES: Final = 4 << 20
"""Of values, keys and properties: a batch is handed out once it has so many, or as many rows."""

SCHEMA: Final = StructType(
    [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("segment", StringType()),
        StructField("position", StringType()),
        StructField("publish_time", TimestampType()),
        StructField("event_time", TimestampType()),
        StructField("properties", MapType(StringType(), StringType())),
        StructField("txn_id", StringType()),
        StructField("producer", StringType()),
        StructField("sequence_id", LongType()),
    ]
)

_LAST_MS: Final = (1 << 63) // 1000 - 2
_TIME: Final = pa.timestamp("us", tz="UTC")
_PROPERTIES: Final = pa.map_(pa.string(), pa.string())


def schema_of(names: Sequence[str] | None) -> StructType:
    """Of these columns, in this order; None: all. Raises `InvalidArgument` for one there is not."""
    if names is None:
        return SCHEMA
    known = {field.name: field for field in SCHEMA}
    for name in names:
        if name not in known:
            raise InvalidArgument(f"option 'columns': there is no {name!r}, only {', '.join(known)}")
    return StructType([known[name] for name in names])


def check_schema(schema: StructType) -> StructType:
    """A schema the user gave: some of the columns, with their types. Raises `InvalidArgument`."""
    known = {field.name: field for field in SCHEMA}
    for field in schema:
        if field.name not in known:
            raise InvalidArgument(f"schema: there is no column {field.name!r}, only {', '.join(known)}")
        expected = known[field.name].dataType
        if field.dataType != expected:
            raise InvalidArgument(
                f"schema: column {field.name!r} is {expected.simpleString()}, not {field.dataType.simpleString()}"
            )
        if not field.nullable:
            # ▲ Spark takes it for true, and leaves out what asks for null: `where key is null` would find nothing.
            raise InvalidArgument(
                f"schema: column {field.name!r} is NOT NULL there, and nothing here sees to that: leave NOT NULL out, "
                f'and say "where {field.name} is not null" if that is what is meant'
            )
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """Of the record batches of these columns."""
    return pa.schema([pa.field(field.name, _TYPES[field.name], field.nullable) for field in schema])


class Batches:
    """Record batches of entries of one segment, of the columns that are asked for, in order."""

    def __init__(self, segment: str, schema: StructType) -> None:
        name = SegmentName.from_path(segment)
        self._once = {"topic": str(name.topic), "segment": str(name)}
        self._columns = [_COLUMNS[field.name] for field in schema]
        self._schema = arrow_schema(schema)

    def of(self, entries: Iterable[Sequence[WholeEntry]]) -> Iterator[pa.RecordBatch]:
        """Whatever comes in at once goes out in as few batches as the bounds allow."""
        waiting: list[WholeEntry] = []
        rows = size = 0
        for some in entries:
            for entry in some:
                waiting.append(entry)
                rows += len(entry.block)
                size += _size(entry.block)
                if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                    yield self._batch(waiting, rows)
                    waiting, rows, size = [], 0, 0
        if waiting:
            yield self._batch(waiting, rows)

    def _batch(self, entries: list[WholeEntry], rows: int) -> pa.RecordBatch:
        part = _Part(entries, rows, self._once)
        return pa.RecordBatch.from_arrays([column(part) for column in self._columns], schema=self._schema)


class _Part:
    """The entries of one batch, and where each one's rows begin."""

    def __init__(self, entries: list[WholeEntry], rows: int, once: dict[str, str]) -> None:
        self.entries = entries
        self.rows = rows
        self.once = once
        self.counts = np.fromiter((len(entry.block) for entry in entries), np.int64, len(entries))

    def repeated(self, items: list[str | None]) -> pa.Array:
        """Text that an entry has once, for each of its rows."""
        if items.count(items[0]) == len(items):
            return self.constant(items[0])
        indices = np.repeat(np.arange(len(items), dtype=np.int32), self.counts)
        return pa.array(items, pa.string()).take(pa.array(indices))

    def constant(self, item: str | None) -> pa.Array:
        return pa.repeat(pa.scalar(item, pa.string()), self.rows)

    def joined(self, arrays: list[pa.Array]) -> pa.Array:
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _size(block: Block) -> int:
    size = len(block.value_column.data)
    if block.key_column is not None:
        size += len(block.key_column.data)
    if block.property_column is not None:
        size += len(block.property_column.keys.data) + len(block.property_column.values.data)
    return size


def _binary(column: BinaryColumn, count: int, kind: Any) -> pa.Array:
    validity = None if column.validity is None else pa.py_buffer(column.validity)
    return pa.Array.from_buffers(kind, count, [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)])


def _key(part: _Part) -> pa.Array:
    return part.joined([_block_key(entry.block) for entry in part.entries])


def _block_key(block: Block) -> pa.Array:
    column = block.key_column
    return pa.nulls(len(block), pa.binary()) if column is None else _binary(column, len(block), pa.binary())


def _value(part: _Part) -> pa.Array:
    return part.joined([_binary(entry.block.value_column, len(entry.block), pa.binary()) for entry in part.entries])


def _position(part: _Part) -> pa.Array:
    return part.repeated([str(entry.position) for entry in part.entries])


def _publish_time(part: _Part) -> pa.Array:
    times = np.fromiter((entry.publish_time_ms for entry in part.entries), np.int64, len(part.entries))
    return pa.array(np.repeat(times * 1000, part.counts)).view(_TIME)


def _event_time(part: _Part) -> pa.Array:
    return part.joined([_block_event_time(entry.block) for entry in part.entries])


def _block_event_time(block: Block) -> pa.Array:
    column = block.event_time_column
    if column is None:
        return pa.nulls(len(block), _TIME)
    millis = np.frombuffer(column.times, np.int64)
    known = pa.Array.from_buffers(pa.int64(), len(block), [pa.py_buffer(column.validity), pa.py_buffer(millis)])
    # What lies 292 000 years away cannot be said in microseconds: null, for a wrong time would be worse.
    sayable = pa.array(np.abs(millis // 2) <= _LAST_MS // 2)
    return pc.multiply(pc.if_else(sayable, known, None), 1000).view(_TIME)


def _properties(part: _Part) -> pa.Array:
    return part.joined([_block_properties(entry.block) for entry in part.entries])


def _block_properties(block: Block) -> pa.Array:
    """▲ An empty map where a message has none, in every entry: whether another one in its batch has some is chance."""
    column = block.property_column
    if column is None:
        offsets = pa.py_buffer(bytes(4 * (len(block) + 1)))
        nothing = pa.array([], pa.string())
        pairs = pa.StructArray.from_arrays([nothing, nothing], fields=_pair_fields())
        return pa.Array.from_buffers(_PROPERTIES, len(block), [None, offsets], children=[pairs])
    count = column.offsets[len(block)]
    pairs = pa.StructArray.from_arrays(
        [_binary(column.keys, count, pa.string()), _binary(column.values, count, pa.string())], fields=_pair_fields()
    )
    return pa.Array.from_buffers(_PROPERTIES, len(block), [None, pa.py_buffer(column.offsets)], children=[pairs])


def _pair_fields() -> list[Any]:
    return [_PROPERTIES.key_field, _PROPERTIES.item_field]


def _txn_id(part: _Part) -> pa.Array:
    return part.repeated([None if entry.txn_id is None else str(entry.txn_id) for entry in part.entries])


def _producer(part: _Part) -> pa.Array:
    return part.repeated([entry.producer for entry in part.entries])


def _sequence_id(part: _Part) -> pa.Array:
    """The first message's of each entry, counted up through it."""
    firsts = np.fromiter((entry.sequence_id for entry in part.entries), np.int64, len(part.entries))
    begins = np.cumsum(part.counts) - part.counts
    return pa.array(np.repeat(firsts - begins, part.counts) + np.arange(part.rows, dtype=np.int64))


_COLUMNS: Final[dict[str, Callable[[_Part], Any]]] = {
    "key": _key,
    "value": _value,
    "topic": lambda part: part.constant(part.once["topic"]),
    "segment": lambda part: part.constant(part.once["segment"]),
    "position": _position,
    "publish_time": _publish_time,
    "event_time": _event_time,
    "properties": _properties,
    "txn_id": _txn_id,
    "producer": _producer,
    "sequence_id": _sequence_id,
}

_TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "segment": pa.string(),
    "position": pa.string(),
    "publish_time": _TIME,
    "event_time": _TIME,
    "properties": _PROPERTIES,
    "txn_id": pa.string(),
    "producer": pa.string(),
    "sequence_id": pa.int64(),
}
