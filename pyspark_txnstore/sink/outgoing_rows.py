"""Turns rows of a DataFrame (Arrow batches) into columns of messages for each topic. Pure.

value       binary or string          required, not null
key         binary or string          optional
properties  map<string, string>       optional
event_time  timestamp                 optional; stored to the millisecond, rounded down
topic       string                    which topic the row goes to; without it the option `topic` tells
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType, TimestampType

from txnwire.entry import Columns, OutgoingMessage
from txnwire.errors import InvalidArgument
from txnwire.protocol import MIB

_TYPES: dict[str, tuple[str, tuple[type[DataType], ...]]] = {
    "value": ("binary or string", (BinaryType, StringType)),
    "key": ("binary or string", (BinaryType, StringType)),
    "properties": ("map<string,string>", (MapType,)),
    "event_time": ("timestamp", (TimestampType,)),
    "topic": ("string", (StringType,)),
}


def check_schema(schema: StructType, topic: str | None) -> None:
    """Checks that rows of this schema can be written; the case of names does not matter. `topic`: where to, unless the
    rows name it. Raises `InvalidArgument`."""
    names = [name.lower() for name in schema.fieldNames()]
    if "value" not in names:
        raise InvalidArgument(f"the rows have no column `value`: they have {', '.join(names) or 'none'}")
    for name, field in zip(names, schema.fields, strict=True):
        if name not in _TYPES:
            raise InvalidArgument(
                f"column `{field.name}` is not written: expected {', '.join(_TYPES)}; select those, and put what else "
                "there is into `value` or `properties`"
            )
        expected, kinds = _TYPES[name]
        if not isinstance(field.dataType, kinds) or not _is_text_map(field.dataType):
            raise InvalidArgument(
                f"column `{field.name}` is {field.dataType.simpleString()}: expected {expected}, cast it"
            )
    if len(set(names)) < len(names):
        raise InvalidArgument(f"a column is there twice: {', '.join(names)}")
    if topic is None and "topic" not in names:
        raise InvalidArgument("it is not said where to write: give the option `topic`, or rows a column `topic`")


def names_topics(schema: StructType) -> bool:
    """Whether rows of this schema name their own topic."""
    return "topic" in (name.lower() for name in schema.fieldNames())


def _is_text_map(kind: DataType) -> bool:
    if not isinstance(kind, MapType):
        return True
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)


GATHERED_BYTES: Final = 8 * MIB
"""Rows held at once if they name their topics: so each topic gets more than a few rows per send."""


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields the same rows in the same order, in fewer batches if they name their topics; none is empty."""
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        held_bytes += batch.nbytes
        names_none = "topic" not in (name.lower() for name in batch.schema.names)
        if names_none or held_bytes >= GATHERED_BYTES:
            yield from _joined(held)
            held, held_bytes = [], 0
    yield from _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    joined: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def by_topic(batch: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, Columns]]:
    """The rows of a batch as messages, in order, for each of their topics. Raises `InvalidArgument`."""
    names = [name.lower() for name in batch.schema.names]
    batch = batch.rename_columns(names)
    if "topic" not in names:
        if topic is None:
            raise InvalidArgument("neither the option `topic` nor a column `topic` says where a row goes")
        yield topic, columns_of(batch)
        return
    targets = batch.column("topic")
    if targets.null_count:
        if topic is None:
            raise InvalidArgument("a row's `topic` is null, and there is no option `topic` for such rows")
        targets = pc.fill_null(targets, topic)
    distinct = pc.unique(targets).to_pylist()
    for target in distinct:
        chosen = batch if len(distinct) == 1 else batch.filter(pc.equal(targets, target))
        yield target, columns_of(chosen)


def columns_of(batch: pa.RecordBatch) -> Columns:
    """The messages of rows for one topic. Raises `InvalidArgument` for a null value."""
    values = batch.column("value")
    if values.null_count:
        raise InvalidArgument(
            f"{values.null_count} of {len(values)} rows have a null `value`: a message has one, an empty one at least"
        )
    names = batch.schema.names
    return Columns(
        _items(values),  # type: ignore[arg-type]
        _filled(batch.column("key"), _items) if "key" in names else None,
        _filled(batch.column("properties"), _maps) if "properties" in names else None,
        _filled(batch.column("event_time"), _times_ms) if "event_time" in names else None,
    )


def runs_of(columns: Columns, most_bytes: int) -> Iterator[Columns | OutgoingMessage]:
    """The messages in order: runs of messages up to `most_bytes` each, and each larger value on its own."""
    if max(map(len, columns.values), default=0) <= most_bytes:
        if columns.values:
            yield columns
        return
    large = [index for index, length in enumerate(map(len, columns.values)) if length > most_bytes]
    first = 0
    for index in large:
        if first < index:
            yield columns.part(first, index)
        message = (None if column is None else column[index] for column in columns)
        yield OutgoingMessage(*message)  # type: ignore[arg-type]
        first = index + 1
    if first < len(columns.values):
        yield columns.part(first, len(columns.values))


def _filled(column: pa.Array, read: Any) -> Any:
    """Returns None for a column that no row fills."""
    return None if column.null_count == len(column) else read(column)


def _items(column: pa.Array) -> list[bytes | None]:
    """Byte strings of a binary or string column. Arrow makes them in C: slicing the column's data takes five times as
    long."""
    items: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return items


def _maps(column: pa.Array) -> Sequence[dict[str, str] | None]:
    maps = [None if pairs is None else dict(pairs) for pairs in column.to_pylist()]
    for map_ in maps:
        if map_ and None in map_.values():
            raise InvalidArgument(f"a row's `properties` map {list(map_)} to null: expected text, leave such out")
    return maps


def _times_ms(column: pa.Array) -> list[int | None]:
    """Milliseconds since 1970, rounded down as clocks do."""
    times = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64()).to_pylist()
    return [None if time is None else time // 1000 for time in times]
