"""Values of options at their limits, and what is refused of them by the option's name."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.datasource import InputPartition

from pyspark_txnstore import DefaultSource
from pyspark_txnstore.shared.offsets import encode_offset
from pyspark_txnstore.shared.options import SinkOptions, SourceOptions, Use
from pyspark_txnstore.source.columns import SCHEMA, schema_of
from pyspark_txnstore.source.source import BatchReader, read
from txnclient import Snapshot
from txnclient.reading.snapshot import SegmentBounds, TopicBounds
from txnwire.errors import InvalidArgument
from txnwire.ids import Position

TOPIC = "topic://public/default/prices"
URL = {"service.url": "txn://h:1", "topic": TOPIC}


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("007", 7), (" 5 ", 5), ("9" * 18, 10**18 - 1)],
    ids=["one", "zeros", "blanks", "most"],
)
def test_a_number_is_taken_up_to_eighteen_digits(text: str, value: int) -> None:
    parsed = SourceOptions.parse(URL | {"maxEntriesPerTrigger": text, "maxRowsPerTrigger": text}, use="stream read")
    assert (parsed.max_entries, parsed.max_rows) == (value, value)


@pytest.mark.parametrize("text", ["0", "00", "-1", "+1", "1.0", "", "9" * 19, "²", "٣"])
def test_what_is_no_positive_number_is_refused(text: str) -> None:
    for name in ("maxEntriesPerTrigger", "minPartitions", "service.timeoutMs", "planningRetryMs"):
        with pytest.raises(InvalidArgument, match=f"option '{name}': .*is not a positive whole number"):
            SourceOptions.parse(URL | {name: text}, use="stream read")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("7b", 7), ("2k", 2048), ("3KB", 3072), ("4m", 4 << 20), ("5G", 5 << 30),
        ("0", None), ("1t", None), ("k", None),
    ],
)  # fmt: skip
def test_a_size_is_bytes_or_has_a_unit(text: str, value: int | None) -> None:
    given = URL | {"maxBytesPerTrigger": text}
    if value is not None:
        assert SourceOptions.parse(given, use="stream read").max_bytes == value
        return
    with pytest.raises(InvalidArgument, match=r"'maxBytesPerTrigger': .* is not a number of bytes"):
        SourceOptions.parse(given, use="stream read")


@pytest.mark.parametrize("text", ["", ",", " , ,"])
def test_a_list_without_a_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"option 'topics': .*names nothing"):
        SourceOptions.parse({"service.url": "txn://h:1", "topics": text}, use="read")
    if text:
        with pytest.raises(InvalidArgument, match=r"option 'columns': .*names nothing"):
            DefaultSource(URL | {"columns": text}).schema()


def test_each_name_of_a_list_is_checked() -> None:
    with pytest.raises(InvalidArgument, match="option 'topics': topic 'orders'"):
        SourceOptions.parse({"service.url": "txn://h:1", "topics": f"{TOPIC}, orders"}, use="read")


@pytest.mark.parametrize(("name", "use"), [("sinkName", "stream write"), ("sinkName", "write"), ("writeId", "write")])
def test_a_name_that_is_given_is_not_empty(name: str, use: Use) -> None:
    with pytest.raises(InvalidArgument, match=f"option '{name}': it is empty"):
        SinkOptions.parse(URL | {name: "  "}, use=use)


def test_without_a_service_there_is_nothing_to_read_or_write() -> None:
    with pytest.raises(InvalidArgument, match=r"option 'service.url' is required"):
        SourceOptions.parse({"topic": TOPIC}, use="read")
    with pytest.raises(InvalidArgument, match=r"option 'service.url' is required"):
        SinkOptions.parse({"topic": TOPIC}, use="write")


def test_any_of_several_options_may_be_the_wrong_one() -> None:
    with pytest.raises(InvalidArgument, match="option 'maxrows' is not known"):
        SourceOptions.parse(URL | {"columns": "key", "maxRows": "5"}, use="read")


@pytest.mark.parametrize("name", ["endingOffsets", "snapshot"])
def test_nothing_ends_before_everything(name: str) -> None:
    for offset in (encode_offset(None), {"v": 1, "earliest": True}):
        with pytest.raises(InvalidArgument, match=f"option '{name}': nothing lies before"):
            SourceOptions.parse(URL | {name: json.dumps(offset)}, use="read")
    assert SourceOptions.parse(URL | {"startingOffsets": json.dumps(encode_offset(None))}, use="read").start is None


def test_ranges_of_two_stores_have_no_order() -> None:
    """▲ What is wrong with them is told by the cluster that one of them is not of."""

    def cut(store: str, revision: int) -> str:
        at = Position(1, revision)
        bounds = TopicBounds(1, {"public/default/prices/0000-ffff-0": SegmentBounds(at, at)})
        return Snapshot(revision, {TOPIC: bounds}, store=store).to_json()

    given = {"startingOffsets": cut("a", 9), "endingOffsets": cut("b", 7)}
    assert SourceOptions.parse(URL | given, use="read").end is not None
    with pytest.raises(InvalidArgument, match="it is newer than the end"):
        SourceOptions.parse(URL | given | {"endingOffsets": cut("a", 7)}, use="read")


def test_compacted_rows_lack_each_column_that_is_a_number() -> None:
    options = SourceOptions.parse(URL | {"compacted": "true", "compactedPath": "/tmp"}, use="read")
    with pytest.raises(InvalidArgument, match="compacted rows have no entry_id, index, only 'position'"):
        BatchReader(options, schema_of(["value", "entry_id", "index"]))
    BatchReader(options, schema_of(["value", "position"]))
    BatchReader(SourceOptions.parse(URL, use="read"), schema_of(["entry_id"]))


def test_of_the_partition_that_spark_makes_for_an_empty_plan_nothing_is_read() -> None:
    assert list(read(SourceOptions.parse(URL, use="read"), SCHEMA, InputPartition(0))) == []
