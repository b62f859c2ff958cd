"""The sink's pure parts: names of transactions, what winners commit, rows to messages (DESIGN §10)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_txnstore.shared.options import SinkOptions, Use
from pyspark_txnstore.sink import batch_names, outgoing_rows
from pyspark_txnstore.sink.content import NOTHING, Content
from pyspark_txnstore.sink.outgoing_rows import by_topic, check_schema, columns_of, gathered, runs_of
from pyspark_txnstore.sink.runs import DRIVER_FOLDERS, BatchRun, has_mark, mark_of
from pyspark_txnstore.sink.winners import BatchCommit, Repeat, Written, advice, check_repeat, to_commit, told
from txnwire.entry import Columns, OutgoingMessage
from txnwire.errors import InvalidArgument, InvalidTxnState
from txnwire.names import MAX_TXN_NAME_BYTES

QUERY = "0d8a4c5c-55a2-4d1a-9c8e-2f1f7f6f0a11"
NAME = f"sink/{QUERY}/public%2Fdefault%2Fout/7"
TOPIC = "topic://public/default/out"
SINK = batch_names.stream_sink("sink", TOPIC)


# ---- names ----------------------------------------------------------------------------------------------------------


def test_a_micro_batch_is_named_by_sink_query_and_batch() -> None:
    properties = {batch_names.QUERY_ID: QUERY, batch_names.BATCH_ID: "7"}
    assert batch_names.micro_batch_of(properties, SINK) == (NAME, f"sink/{QUERY}/7", True)


def test_x1_a_batch_is_another_one_for_another_topic() -> None:
    """▲ Of a checkpoint that was copied the query and the batches are the same."""
    topics = [TOPIC, TOPIC + "2", None]
    names = [batch_names.micro_batch_name(batch_names.stream_sink(None, topic), QUERY, 7).text for topic in topics]
    assert len(set(names)) == len(topics)
    writes = [batch_names.write_name(batch_names.batch_sink("sink", topic), "day-1").text for topic in topics]
    assert len(set(writes)) == len(topics)


def test_no_two_writes_have_one_name() -> None:
    """Whatever their parts contain; and what a `df.write` is called is no micro-batch's name."""
    texts = ["a", "a/b", "b", "a%2Fb", "~a", "-", f"spark/{QUERY}", "x" * 150, "x" * 151, "/" * 60, QUERY]
    topics = [TOPIC, "topic://public/default/a", "topic://public/default/out2", None]
    names = [
        batch_names.write_name(batch_names.batch_sink(sink, topic), write_id).text
        for sink in (None, *texts)
        for topic in topics
        for write_id in (*texts, "7")
    ]
    names += [
        batch_names.micro_batch_name(batch_names.stream_sink(sink, topic), QUERY, 7).text
        for sink in (None, *texts)
        for topic in topics
    ]
    assert len(set(names)) == len(names)


def test_names_of_earlier_versions_are_known() -> None:
    """▲ What they have committed and Spark had not noted is not written again."""
    assert batch_names.micro_batch_name(batch_names.stream_sink("a/b", TOPIC), QUERY, 7).former == f"a/b/{QUERY}/7"
    assert batch_names.micro_batch_name(batch_names.stream_sink(None, TOPIC), QUERY, 7).former == f"spark/{QUERY}/7"
    assert batch_names.write_name(batch_names.batch_sink("a/b", TOPIC), "x/y").former == "a/b/x/y"
    assert batch_names.write_name(batch_names.batch_sink(None, TOPIC), "x/y").former == f"{TOPIC}/x/y"
    assert batch_names.write_name(batch_names.batch_sink(None, None), "x/y").former == "spark/x/y"


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {batch_names.QUERY_ID: QUERY},
        {batch_names.BATCH_ID: "7"},
        {batch_names.QUERY_ID: QUERY, batch_names.BATCH_ID: "-1"},
        {batch_names.QUERY_ID: "no uuid", batch_names.BATCH_ID: "7"},
    ],
)
def test_without_query_and_batch_there_is_no_name(properties: dict[str, str | None]) -> None:
    with pytest.raises(InvalidArgument, match=r"micro-batch|UUID"):
        batch_names.micro_batch_of(properties, SINK)


def test_a_batch_of_a_sink_is_told_by_its_name_whatever_the_query() -> None:
    other = "topic://public/default/out2"
    assert batch_names.is_micro_batch(NAME, SINK, 7)
    for sink, batch in (
        (SINK, 77),
        (batch_names.stream_sink("sink", other), 7),
        (batch_names.stream_sink("s", TOPIC), 7),
    ):
        assert not batch_names.is_micro_batch(NAME, sink, batch)
    for name in ("", f"{NAME}/7", f"x/{NAME}", batch_names.write_name(SINK, "7").text):
        assert not batch_names.is_micro_batch(name, SINK, 7)


def test_the_longest_names_fit() -> None:
    topics = [TOPIC, f"topic://{'t' * 49}/{'n' * 49}/{'x' * 46}", f"topic://{'t' * 128}/{'n' * 128}/{'x' * 128}"]
    for topic in topics:
        for text in ("s" * batch_names.MAX_PART_BYTES, "s" * batch_names.MAX_WRITE_ID_BYTES, "é" * 75, "/" * 50):
            sink = batch_names.stream_sink(text, topic)
            for name in (batch_names.micro_batch_name(sink, QUERY, 2**63), batch_names.write_name(sink, text)):
                assert len(name.text.encode()) <= MAX_TXN_NAME_BYTES


@pytest.mark.parametrize("text", ["", "é" * 151])
def test_names_that_are_given_are_taken_as_they_are_or_refused(text: str) -> None:
    for made in (batch_names.stream_sink, batch_names.batch_sink):
        assert made("delays", TOPIC).name == "delays"
        with pytest.raises(InvalidArgument, match="sinkName"):
            made(text, TOPIC)
    with pytest.raises(InvalidArgument, match="writeId"):
        batch_names.write_name(SINK, text)


# ---- options --------------------------------------------------------------------------------------------------------

GIVEN = {"service.url": "txn://h:1", "topic": TOPIC}


@pytest.mark.parametrize("use", ["write", "stream write"])
def test_what_spark_gives_to_any_sink_is_passed_over(use: Use) -> None:
    others = ["path", "checkpointLocation", "queryName", "maxRecordsPerFile", "compression", "timestampFormat"]
    given = GIVEN | dict.fromkeys(others, "x") | {"asyncProgressTrackingEnabled": "false"}
    assert SinkOptions.parse(given, use=use) == SinkOptions.parse(GIVEN, use=use)


@pytest.mark.parametrize("use", ["write", "stream write"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sinkname2": "a"}, "'sinkname2' is not known; of a"),
        ({"allowDifferentReplays": "true"}, "is not known"),
        ({"overwriteSchema": "true"}, "is not known"),
        ({"allowDifferentReplay": "yes"}, "neither true nor false"),
        ({"startingOffsets": "latest"}, "is not for this"),
        ({"asyncProgressTrackingEnabled": "True"}, "not exactly once"),
    ],
)
def test_what_is_meant_for_this_sink_and_is_wrong_is_refused(use: Use, options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        SinkOptions.parse(GIVEN | options, use=use)


# ---- runs -----------------------------------------------------------------------------------------------------------


def test_a_newer_run_takes_the_place_of_an_older_one_and_of_nothing_else() -> None:
    older, newer = (
        BatchRun(time_ms.to_bytes(6, "big") + bytes(6)) for time_ms in (1_700_000_000_000, 1_700_000_000_001)
    )
    assert newer.supersedes(older.stamp.hex())
    for attempt in (newer.stamp.hex(), "00", "", "0011223344556677"):
        assert not older.supersedes(attempt)
    assert older.is_superseded_by(newer.stamp.hex())
    for attempt in (older.stamp.hex(), "ff", "", "ff112233445566ff"):
        assert not newer.is_superseded_by(attempt)
    assert len(BatchRun.begin().stamp) == 12


def test_a_run_with_a_mark_is_told_by_it_and_older_or_newer_than_any_other() -> None:
    """▲ Those of an earlier version have none."""
    driver = {DRIVER_FOLDERS: "/tmp/blockmgr-1"}
    mark = mark_of({"topic": TOPIC, "queryName": "q"}, driver)
    run, plain = BatchRun.begin(mark), BatchRun.begin()
    assert len(run.stamp) == 20
    assert has_mark(run.stamp.hex(), mark)
    assert mark == mark_of({"queryname": "q", "TOPIC": TOPIC}, driver)
    for options, environment in (
        ({"topic": TOPIC}, driver),
        ({"topic": TOPIC, "queryName": "q"}, {DRIVER_FOLDERS: "/b"}),
    ):
        assert not has_mark(run.stamp.hex(), mark_of(options, environment))
    assert not has_mark(plain.stamp.hex(), mark)
    assert not has_mark(plain.stamp.hex(), mark_of({}, {}))
    assert mark_of({"topic": TOPIC}, {}) == mark_of({"topic": TOPIC}, {DRIVER_FOLDERS: ""}) == b""
    for older, newer in (
        (run, BatchRun(b"\xff" * 12)),
        (BatchRun(bytes(12)), run),
        (BatchRun(bytes(12) + b"\xff" * 8), run),
    ):
        assert (newer.supersedes(older.stamp.hex()), older.supersedes(newer.stamp.hex())) == (True, False)
    assert run.writer_id(1) == BatchRun(run.stamp[:12]).writer_id(1)


def test_writers_of_a_run_follow_each_other_and_are_no_other_runs() -> None:
    runs = [BatchRun(bytes(12)), BatchRun(b"\xff" * 12), *(BatchRun.begin() for _ in range(50))]
    ids = [run.writer_id(number) for run in runs for number in (0, 1, 2, 2**28 - 1)]
    assert len(set(ids)) == len(ids)
    assert all(0 < writer < 2**64 for writer in ids)
    assert runs[2].writer_id(8) == runs[2].writer_id(7) + 1


# ---- winners --------------------------------------------------------------------------------------------------------


def written(txn_id: str | None = "0-1", writer: int = 0, *, name: str = NAME, committed: bool = False) -> Written:
    content = Content(1, 5) if txn_id else NOTHING
    return Written(name, former="before", txn_id=txn_id, writer_id=writer, content=content, committed=committed)


def test_one_commit_for_all_that_had_rows() -> None:
    assert to_commit([written(writer=9), written(None), written(writer=3)], 7) == BatchCommit(
        NAME, "0-1", (3, 9), Content(2, 10), "before"
    )


@pytest.mark.parametrize("messages", [[], [written(None)], [written(None), written(None)]])
def test_x1_a_batch_without_rows_commits_nothing(messages: list[WriterCommitMessage | None]) -> None:
    assert to_commit(messages, 7) is None


def test_x1_a_batch_found_committed_commits_nothing_and_tells_what_it_leaves_out() -> None:
    messages = [written(committed=True), written(None), written(writer=4)]
    for some in (messages, messages[::-1]):
        assert to_commit(some, 7) == Repeat(NAME, "0-1", Content(2, 10))


def test_x1_a_repeat_with_the_same_rows_is_left_out() -> None:
    assert check_repeat(NAME, "rows=3 digest=00000000000000ff", Content(3, 255), allow_different=False) is None


@pytest.mark.parametrize("content", [Content(4, 255), Content(3, 254), Content(2, 255), NOTHING])
def test_x1_a_repeat_with_other_rows_fails_unless_that_is_allowed(content: Content) -> None:
    """▲ A checkpoint that has lost its newest batch gives its number to other rows, and they were never written."""
    note = "rows=3 digest=00000000000000ff"
    with pytest.raises(InvalidTxnState, match=f"committed with {note}, and this run of it has {content}"):
        check_repeat(NAME, note, content, allow_different=False)
    assert f"this run has {content}" in (check_repeat(NAME, note, content, allow_different=True) or "")


@pytest.mark.parametrize("note", [None, "", "rows=3", "rows=3 digest2=00000000000000ff", "of somebody else"])
def test_x1_what_has_no_note_of_this_version_is_not_compared_and_that_is_told(note: str | None) -> None:
    assert "not known" in (check_repeat(NAME, note, Content(3, 255), allow_different=False) or "")


def test_winners_of_different_transactions_fail_the_batch() -> None:
    with pytest.raises(InvalidTxnState, match=r"0-1, 0-2.*transactionTimeoutMs"):
        to_commit([written("0-1", 1), written("0-2", 2)], 7)
    with pytest.raises(InvalidTxnState, match="0-1, 0-2"):
        to_commit([written("0-1", 1), written("0-2", committed=True)], 7)


@pytest.mark.parametrize("name", [f"sink/{QUERY}/17", f"sink/{QUERY}/70", f"other/{QUERY}/7"])
def test_winners_of_another_batch_fail_it(name: str) -> None:
    with pytest.raises(InvalidTxnState, match="run again"):
        to_commit([written(), written(name=name)], 7)


def test_the_batch_is_the_one_that_spark_commits() -> None:
    with pytest.raises(InvalidTxnState, match="batch 8"):
        to_commit([written()], 8)
    assert to_commit([written()]) == BatchCommit(
        NAME, "0-1", (0,), Content(1, 5), "before"
    )  # of a df.write, which has no number


@pytest.mark.parametrize("message", [None, WriterCommitMessage()])
def test_what_is_no_report_fails_the_batch(message: WriterCommitMessage | None) -> None:
    with pytest.raises(InvalidTxnState, match="reported"):
        to_commit([written(), message], 7)


def test_only_a_write_that_finds_its_name_again_is_to_be_run_again() -> None:
    assert "run it again" in advice(NAME, repeatable=True)
    told = advice(NAME, repeatable=False)
    assert "run it again" not in told
    assert "look before you write again" in told


def test_any_task_tells_of_which_batch_it_was() -> None:
    assert told([None, written(None), written()]) == written(None)
    assert told([None, WriterCommitMessage()]) is None


# ---- rows -----------------------------------------------------------------------------------------------------------


def schema(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in columns.items()])


ALL = {
    "value": t.BinaryType(),
    "key": t.StringType(),
    "properties": t.MapType(t.StringType(), t.StringType()),
    "event_time": t.TimestampType(),
    "topic": t.StringType(),
}


def test_all_columns_are_written_and_most_are_optional() -> None:
    check_schema(schema(**ALL), None)
    check_schema(schema(value=t.StringType()), TOPIC)


@pytest.mark.parametrize(
    ("columns", "topic", "message"),
    [
        ({"key": t.StringType()}, TOPIC, "no column `value`: they have key"),
        ({}, TOPIC, "they have none"),
        ({"value": t.LongType()}, TOPIC, "`value` is bigint: expected binary or string"),
        ({**ALL, "amount": t.LongType()}, TOPIC, "`amount` is not written"),
        ({**ALL, "properties": t.MapType(t.StringType(), t.LongType())}, TOPIC, "`properties` is map<string,bigint>"),
        ({**ALL, "event_time": t.TimestampNTZType()}, TOPIC, "expected timestamp"),
        ({"value": t.StringType()}, None, "option `topic`"),
    ],
)
def test_a_schema_that_cannot_be_written_says_why(columns: dict[str, Any], topic: str | None, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        check_schema(schema(**columns), topic)


def test_rows_become_columns_of_messages() -> None:
    times = [datetime(2026, 1, 1, tzinfo=UTC), None, datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=UTC)]
    batch = pa.record_batch(
        {
            "value": pa.array([b"a", b"", "é".encode()]),
            "key": pa.array(["k", None, ""]),
            "properties": pa.array([[("x", "1")], None, []], pa.map_(pa.string(), pa.string())),
            "event_time": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )
    expected = Columns([b"a", b"", "é".encode()], [b"k", None, b""], [{"x": "1"}, None, {}], [1767225600000, None, -1])
    assert columns_of(batch) == expected
    sliced = columns_of(batch.slice(1, 1))
    assert sliced == Columns([b""], None, None, None)


def test_names_of_columns_have_any_case_as_in_spark() -> None:
    check_schema(t.StructType([t.StructField("Key", t.StringType()), t.StructField("VALUE", t.StringType())]), "a")
    batch = pa.record_batch({"Key": pa.array([b"k"]), "VALUE": pa.array([b"1"])})
    assert list(by_topic(batch, "a")) == [("a", Columns([b"1"], [b"k"]))]
    with pytest.raises(InvalidArgument, match="twice"):
        check_schema(
            t.StructType([t.StructField("Value", t.StringType()), t.StructField("value", t.StringType())]), "a"
        )


def test_rows_go_to_the_topics_they_name_in_order() -> None:
    batch = pa.record_batch(
        {"value": pa.array(["1", "2", "3", "4"]), "topic": pa.array(["b", "a", None, "b"])},
    )
    assert list(by_topic(batch, "b")) == [("b", Columns([b"1", b"3", b"4"])), ("a", Columns([b"2"]))]
    with pytest.raises(InvalidArgument, match="`topic` is null"):
        list(by_topic(batch, None))


def test_rows_that_name_their_topics_are_gathered_in_order_and_not_without_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    schema = pa.schema([("Topic", pa.string()), ("value", pa.string())])
    batches = [
        pa.record_batch([["a", "b"][:rows], [str(number), "x"][:rows]], schema)
        for number, rows in enumerate([2, 0, 1, 2, 1])
    ]
    for most, sizes in ((1, [2, 1, 2, 1]), (batches[0].nbytes + 1, [3, 3]), (2**20, [6])):
        monkeypatch.setattr(outgoing_rows, "GATHERED_BYTES", most)
        found = list(gathered(iter(batches)))
        assert [one.num_rows for one in found] == sizes
        assert pa.Table.from_batches(found).to_pylist() == pa.Table.from_batches(batches).to_pylist()
    monkeypatch.setattr(outgoing_rows, "GATHERED_BYTES", 2**20)
    assert [one.num_rows for one in gathered(iter([one.select(["value", "Topic"]) for one in batches]))] == [6]
    plain = [one.select(["value"]) for one in batches]
    assert [one.num_rows for one in gathered(iter(plain))] == [2, 1, 2, 1], "nothing is gained by waiting"
    assert list(gathered(iter([]))) == []


def test_large_values_go_by_themselves_in_order() -> None:
    columns = Columns([b"a", b"bb", b"ccc", b"d", b"eee"], keys=[b"1", None, b"3", b"4", None])
    assert list(runs_of(columns, 3)) == [columns]
    assert list(runs_of(columns, 2)) == [
        Columns([b"a", b"bb"], [b"1", None]),
        OutgoingMessage(b"ccc", b"3"),
        Columns([b"d"], [b"4"]),
        OutgoingMessage(b"eee"),
    ]
    assert list(runs_of(Columns([b"xx", b"yy"]), 1)) == [OutgoingMessage(b"xx"), OutgoingMessage(b"yy")]


def test_large_arrow_types_are_taken_too() -> None:
    batch = pa.record_batch({"value": pa.array([b"x" * 10, b"y"], pa.large_binary())})
    assert columns_of(batch).values == [b"x" * 10, b"y"]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"value": pa.array([b"a", None])}, "1 of 2 rows have a null `value`"),
        (
            {
                "value": pa.array([b"a"]),
                "properties": pa.array([[("x", None)]], pa.map_(pa.string(), pa.string())),
            },
            "to null",
        ),
        (
            {
                "value": pa.array([b"a", b"b", b"c"]),
                "properties": pa.array(
                    [[("x", "1")], [], [("y", "2"), ("z", None)]], pa.map_(pa.string(), pa.string())
                ),
            },
            r"map \['y', 'z'\] to null",
        ),
    ],
)
def test_nulls_are_refused_where_a_message_has_none(column: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        columns_of(pa.record_batch(column))
