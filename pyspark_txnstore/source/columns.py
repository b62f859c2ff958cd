"""Turns entries of a segment into Arrow record batches: wraps the buffers of their blocks, never walks messages.

Arrow repeats per-entry values, such as the transaction, for each message; if only such columns are requested, the
entry's head is enough. Small entries are combined until a batch is worth passing to Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from txnclient import EntryHead, WholeEntry
from txnwire.block import BinaryColumn, Block
from txnwire.errors import InvalidArgument
from txnwire.names import SegmentName

BATCH_ROWS: Final = 32_768
BATCH_BYTES: Final = 4 << 20
"""Bytes of values, keys and properties after which a batch is handed out, and rows likewise."""

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

MORE: Final = StructType(
    [
        StructField("ledger_id", LongType()),
        StructField("entry_id", LongType()),
        StructField("index", IntegerType()),
    ]
)
"""Columns only read on request: the position as numbers, which sort, and the index of a message in its entry. ▲ Not
part of a plain read: a job that copies all columns would meet new ones."""

IN_BLOCKS: Final = frozenset({"key", "value", "event_time", "properties"})
"""Columns that differ by message. An entry's head has all others."""

OF_PRODUCERS: Final = frozenset({"producer", "sequence_id"})
"""Columns that the head has only if the segment's owner is not older than this program."""

_KNOWN: Final = {field.name: field for field in (*SCHEMA, *MORE)}

_LAST_MS: Final = (1 << 63) // 1000 - 2
_TIME: Final = pa.timestamp("us", tz="UTC")
_PROPERTIES: Final = pa.map_(pa.string(), pa.string())


def schema_of(names: Sequence[str] | None) -> StructType:
    """Schema of these columns, in this order, in any letter case, each once; None: all but `MORE`. Raises
    `InvalidArgument` for an unknown one."""
    if names is None:
        return SCHEMA
    found: dict[str, StructField] = {}
    for name in names:
        if (field := _KNOWN.get(name.lower())) is None:
            raise InvalidArgument(f"option 'columns': there is no {name!r}, only {', '.join(_KNOWN)}")
        found[field.name] = field
    return StructType(list(found.values()))


def check_schema(schema: StructType) -> StructType:
    """Checks the user's schema: some of the columns, with their types. Raises `InvalidArgument`."""
    known = _KNOWN
    for field in schema:
        if field.name not in known:
            raise InvalidArgument(f"schema: there is no column {field.name!r}, only {', '.join(known)}")
        expected = known[field.name].dataType
        if field.dataType != expected:
            raise InvalidArgument(
                f"schema: column {field.name!r} is {expected.simpleString()}, not {field.dataType.simpleString()}"
            )
        if not field.nullable:
            # ▲ Spark trusts a non-null column and drops filters for null: `where key is null` would find nothing.
            raise InvalidArgument(
                f"schema: column {field.name!r} is NOT NULL there, and nothing here sees to that: leave NOT NULL out, "
                f'and say "where {field.name} is not null" if that is what is meant'
            )
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """Schema of the record batches of these columns."""
    return pa.schema([pa.field(field.name, _TYPES[field.name], field.nullable) for field in schema])


def heads_tell(schema: StructType) -> bool:
    """Whether these columns can be made from heads of entries, without their messages."""
    return IN_BLOCKS.isdisjoint(schema.names)


class Batches:
    """Makes record batches of the requested columns from entries of one segment, or from their heads, in order; with
    `keys` only of the messages that have one of these. Heads do for columns as `heads_tell`, and without `keys`."""

    def __init__(self, segment: str, schema: StructType, *, keys: Collection[bytes] | None = None) -> None:
        name = SegmentName.from_path(segment)
        self._once = {"topic": str(name.topic), "segment": str(name)}
        self._columns = [_COLUMNS[field.name] for field in schema]
        self._schema = arrow_schema(schema)
        self._keys = None if keys is None else pa.array(sorted(keys), pa.binary())

    def of(self, entries: Iterable[Sequence[WholeEntry | EntryHead]]) -> Iterator[pa.RecordBatch]:
        """Turns each input into as few batches as the bounds allow."""
        waiting: list[WholeEntry | EntryHead] = []
        rows = size = 0
        for some in entries:
            for entry in some:
                waiting.append(entry)
                if isinstance(entry, WholeEntry):
                    rows += len(entry.block)
                    size += _size(entry.block)
                else:
                    rows += entry.messages
                if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                    yield from self._batch(waiting, rows)
                    waiting, rows, size = [], 0, 0
        if waiting:
            yield from self._batch(waiting, rows)

    def _batch(self, entries: list[WholeEntry | EntryHead], rows: int) -> Iterator[pa.RecordBatch]:
        """None if no message has one of the requested keys."""
        part = _BatchEntries(entries, rows, self._once)
        if self._columns:
            batch = pa.RecordBatch.from_arrays([column(part) for column in self._columns], schema=self._schema)
        else:
            batch = of_no_columns(rows)
        if self._keys is not None:
            batch = batch.filter(pc.is_in(_key(part), value_set=self._keys))
        if batch.num_rows:
            yield batch


def of_no_columns(rows: int) -> pa.RecordBatch:
    """A batch that has a number of rows and no columns."""
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None], children=[]))


class _BatchEntries:
    """The entries of one batch, and where the rows of each begin."""

    def __init__(self, entries: list[WholeEntry | EntryHead], rows: int, once: dict[str, str]) -> None:
        self.entries = entries
        self.rows = rows
        self.once = once
        self.counts = np.fromiter(map(_rows, entries), np.int64, len(entries))

    @property
    def blocks(self) -> Iterator[Block]:
        return (entry.block for entry in self.entries if isinstance(entry, WholeEntry))

    def numbered(self, of_entries: Iterator[int]) -> Any:
        """A number of the entry, for each of its rows."""
        return np.repeat(np.fromiter(of_entries, np.int64, len(self.entries)), self.counts)

    def places(self) -> Any:
        """Index of each row in its entry, from 0."""
        return np.arange(self.rows, dtype=np.int64) - np.repeat(np.cumsum(self.counts) - self.counts, self.counts)

    def repeated(self, items: list[str | None]) -> pa.Array:
        """Text of the entry, for each of its rows."""
        if items.count(items[0]) == len(items):
            return self.constant(items[0])
        indices = np.repeat(np.arange(len(items), dtype=np.int32), self.counts)
        return pa.array(items, pa.string()).take(pa.array(indices))

    def constant(self, item: str | None) -> pa.Array:
        return pa.repeat(pa.scalar(item, pa.string()), self.rows)

    def joined(self, arrays: list[pa.Array]) -> pa.Array:
        return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _rows(entry: WholeEntry | EntryHead) -> int:
    return len(entry.block) if isinstance(entry, WholeEntry) else entry.messages


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


def _key(part: _BatchEntries) -> pa.Array:
    return part.joined([_block_key(block) for block in part.blocks])


def _block_key(block: Block) -> pa.Array:
    column = block.key_column
    return pa.nulls(len(block), pa.binary()) if column is None else _binary(column, len(block), pa.binary())


def _value(part: _BatchEntries) -> pa.Array:
    return part.joined([_binary(block.value_column, len(block), pa.binary()) for block in part.blocks])


def _position(part: _BatchEntries) -> pa.Array:
    return part.repeated([str(entry.position) for entry in part.entries])


def _publish_time(part: _BatchEntries) -> pa.Array:
    return pa.array(part.numbered(entry.publish_time_ms * 1000 for entry in part.entries)).view(_TIME)


def _event_time(part: _BatchEntries) -> pa.Array:
    return part.joined([_block_event_time(block) for block in part.blocks])


def _block_event_time(block: Block) -> pa.Array:
    column = block.event_time_column
    if column is None:
        return pa.nulls(len(block), _TIME)
    millis = np.frombuffer(column.times, np.int64)
    known = pa.Array.from_buffers(pa.int64(), len(block), [pa.py_buffer(column.validity), pa.py_buffer(millis)])
    # Times 292 000 years away do not fit into microseconds: null, because a wrong time would be worse.
    sayable = pa.array(np.abs(millis // 2) <= _LAST_MS // 2)
    return pc.multiply(pc.if_else(sayable, known, None), 1000).view(_TIME)


def _properties(part: _BatchEntries) -> pa.Array:
    return part.joined([_block_properties(block) for block in part.blocks])


def _block_properties(block: Block) -> pa.Array:
    """▲ An empty map for a message without properties, in every entry: what other entries share its batch must not
    matter."""
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


def _txn_id(part: _BatchEntries) -> pa.Array:
    return part.repeated([None if entry.txn_id is None else str(entry.txn_id) for entry in part.entries])


def _producer(part: _BatchEntries) -> pa.Array:
    return part.repeated([entry.producer for entry in part.entries])


def _sequence_id(part: _BatchEntries) -> pa.Array:
    """The first message's of each entry, counted up through it."""
    return pa.array(part.numbered(entry.sequence_id for entry in part.entries) + part.places())


def _ledger_id(part: _BatchEntries) -> pa.Array:
    return pa.array(part.numbered(entry.position.ledger_id for entry in part.entries))


def _entry_id(part: _BatchEntries) -> pa.Array:
    return pa.array(part.numbered(entry.position.entry_id for entry in part.entries))


def _index(part: _BatchEntries) -> pa.Array:
    """0 for a large value sent in pieces: it is the one message of its first piece."""
    return pa.array(part.places().astype(np.int32))


_COLUMNS: Final[dict[str, Callable[[_BatchEntries], Any]]] = {
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
    "ledger_id": _ledger_id,
    "entry_id": _entry_id,
    "index": _index,
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
    "ledger_id": pa.int64(),
    "entry_id": pa.int64(),
    "index": pa.int32(),
}
