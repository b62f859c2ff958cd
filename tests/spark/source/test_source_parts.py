"""Parts of the source that need neither Spark nor a cluster: columns, options, what is passed over, first batches."""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from pyspark_txnstore import DefaultSource
from pyspark_txnstore.shared import kafka_options
from pyspark_txnstore.shared.offsets import Isolation, adds, encode_offset, is_laid_out_anew
from pyspark_txnstore.shared.options import OPTIONS, SinkOptions, SourceOptions
from pyspark_txnstore.source import columns, first_batch
from pyspark_txnstore.source.columns import SCHEMA, Batches, check_schema, schema_of
from pyspark_txnstore.source.cuts import of_segment, passed_over
from pyspark_txnstore.source.source import coarse, plan
from txnclient import EntryHead, Snapshot, WholeEntry
from txnclient.reading.entries import PieceHead
from txnclient.reading.snapshot import SegmentBounds, Span, TopicBounds
from txnwire.block import OutgoingMessage, decode_block, encode_block
from txnwire.errors import InvalidArgument
from txnwire.ids import EARLIEST, Position, TxnId

SEGMENT = "public/default/prices/0000-ffff-0"
TOPIC = "topic://public/default/prices"
URL = {"service.url": "txn://127.0.0.1:6650", "topic": TOPIC}


# Columns


def entry(messages: Sequence[OutgoingMessage], **fields: Any) -> WholeEntry:
    block = decode_block(encode_block(messages))
    known = {
        "position": Position(1, 4),
        "txn_id": None,
        "writer": 0,
        "producer": "p",
        "sequence_id": 10,
        "publish_time_ms": 1_700_000_000_000,
        "block": block,
        "incarnation": 1,
    }
    return WholeEntry(**{name: fields.get(name, known[name]) for name in WholeEntry._fields})


TEXTS = st.text(max_size=4)
MESSAGES = st.builds(
    OutgoingMessage,
    st.binary(max_size=5),
    st.none() | st.binary(max_size=3),
    st.none() | st.dictionaries(TEXTS, TEXTS, max_size=3),
    st.none() | st.integers(-(10**12), 10**13),
)
ENTRIES = st.builds(
    lambda messages, position, txn, producer, first, time: entry(
        messages, position=position, txn_id=txn, producer=producer, sequence_id=first, publish_time_ms=time
    ),
    st.lists(MESSAGES, min_size=1, max_size=4),
    st.builds(Position, st.integers(1, 9), st.integers(0, 9)),
    st.none() | st.builds(TxnId, st.integers(0, 9), st.integers(1, 9)),
    st.sampled_from(["p", "q"]),
    st.integers(0, 2**40),
    st.integers(0, 10**13),
)


def expected(one: WholeEntry) -> list[dict[str, Any]]:
    """Message by message, as the block itself tells it."""
    start = datetime(1970, 1, 1, tzinfo=UTC)

    def time(ms: int | None) -> datetime | None:
        return None if ms is None else start + timedelta(milliseconds=ms)

    return [
        {
            "key": one.block.key(index),
            "value": one.block.value(index),
            "topic": TOPIC,
            "segment": f"segment://{SEGMENT}",
            "position": str(one.position),
            "publish_time": time(one.publish_time_ms),
            "event_time": time(one.block.event_time_ms(index)),
            "properties": list(one.block.properties(index).items()),
            "txn_id": None if one.txn_id is None else str(one.txn_id),
            "producer": one.producer,
            "sequence_id": one.sequence_id + index,
        }
        for index in range(len(one.block))
    ]


@given(st.lists(st.lists(ENTRIES, min_size=1, max_size=4), max_size=3))
def test_batches_say_what_each_message_says(some: list[list[WholeEntry]]) -> None:
    batches = list(Batches(SEGMENT, SCHEMA).of(some))
    assert [row for batch in batches for row in batch.to_pylist()] == [
        row for one in chain(*some) for row in expected(one)
    ]
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == to_arrow_schema(SCHEMA, timezone="UTC")


def test_small_entries_go_out_together_and_large_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BATCH_ROWS", 5)
    monkeypatch.setattr(columns, "BATCH_BYTES", 100)
    sizes = [(1, 1), (2, 1), (1, 1), (3, 1), (1, 200), (1, 1)]
    entries = [[entry([OutgoingMessage(b"x" * size)] * count)] for count, size in sizes]
    assert [batch.num_rows for batch in Batches(SEGMENT, SCHEMA).of(entries)] == [7, 1, 1]


@pytest.mark.parametrize(
    "message",
    [
        OutgoingMessage(b"x" * 60),
        OutgoingMessage(b"", b"x" * 60),
        OutgoingMessage(b"", None, {"x" * 60: ""}),
        OutgoingMessage(b"", None, {"": "x" * 60}),
    ],
    ids=["value", "key", "name", "property"],
)
def test_all_that_is_in_a_message_counts_for_the_size_of_a_batch(
    monkeypatch: pytest.MonkeyPatch, message: OutgoingMessage
) -> None:
    """▲ Or as many rows as there are would be held at once, however large they are."""
    monkeypatch.setattr(columns, "BATCH_BYTES", 100)
    entries = [[entry([message])] * 3, [entry([message])] * 2]
    assert [batch.num_rows for batch in Batches(SEGMENT, SCHEMA).of(entries)] == [2, 2, 1]


def test_heads_go_out_when_they_stand_for_enough_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "BATCH_ROWS", 5)
    heads = [EntryHead(Position(1, n), None, 0, 3, 10, 0, False, None) for n in range(3)]
    assert [batch.num_rows for batch in Batches(SEGMENT, schema_of(["position"])).of([heads])] == [6, 3]


def test_buffers_of_a_large_entry_are_wrapped_not_copied() -> None:
    one = entry([OutgoingMessage(os.urandom(1000)) for _ in range(100)])
    (batch,) = Batches(SEGMENT, schema_of(["value"])).of([[one]])
    data = one.block.value_column.data
    assert batch.column("value").buffers()[2].address == pa.py_buffer(data).address


def test_an_event_time_that_no_timestamp_can_say_is_null() -> None:
    times = [2**62, -(2**63), 9_223_372_036_854_000, None, 5]
    one = entry([OutgoingMessage(b"", event_time_ms=time) for time in times])
    (batch,) = Batches(SEGMENT, schema_of(["event_time"])).of([[one]])
    micros = batch.column("event_time").view(pa.int64()).to_pylist()
    assert micros == [None, None, 9_223_372_036_854_000_000, None, 5000]


def test_positions_are_there_as_numbers_where_they_are_asked_for() -> None:
    entries = [entry([OutgoingMessage(b"")] * 2, position=Position(11, 9)), entry([OutgoingMessage(b"")])]
    (batch,) = Batches(SEGMENT, schema_of(["index", "ledger_id", "entry_id"])).of([entries])
    assert list(zip(*(column.to_pylist() for column in batch.columns), strict=True)) == [
        (0, 11, 9),
        (1, 11, 9),
        (0, 1, 4),
    ]
    assert not {"index", "ledger_id", "entry_id"} & set(SCHEMA.names)
    assert batch.schema == to_arrow_schema(schema_of(["index", "ledger_id", "entry_id"]), timezone="UTC")


def test_the_option_columns_takes_names_in_any_case_each_once_or_none() -> None:
    def names(text: str) -> list[str]:
        return DefaultSource(URL | {"columns": text}).schema().names

    assert names("Value, PRODUCER,value, Entry_Id") == ["value", "producer", "entry_id"]
    assert names(" ") == []
    with pytest.raises(InvalidArgument, match=r"no .Valeu., only key, value, .*, ledger_id, entry_id, index"):
        names("Valeu")


def test_a_schema_names_known_columns_with_their_types() -> None:
    assert check_schema(schema_of(["value", "topic"])).names == ["value", "topic"]
    with pytest.raises(InvalidArgument, match="there is no column 'vlaue'"):
        check_schema(StructType([StructField("key", BinaryType()), StructField("vlaue", BinaryType())]))
    with pytest.raises(InvalidArgument, match="column 'value' is binary, not string"):
        check_schema(StructType([StructField("value", StringType())]))


def test_a_schema_with_not_null_is_refused() -> None:
    """▲ Spark would leave out a filter for nulls, and answer that there are none."""
    with pytest.raises(InvalidArgument, match="column 'key' is NOT NULL there"):
        check_schema(StructType([StructField("key", BinaryType(), nullable=False)]))


# Options


def test_options_that_are_not_given_have_the_defaults_of_the_table() -> None:
    stated = {option.name: option.default for option in OPTIONS}
    source = SourceOptions.parse(URL, use="stream read")
    assert (source.start, source.end, source.uncommitted, source.fail_on_data_loss) == (None, None, False, True)
    assert (stated["startingOffsets"], stated["endingOffsets"], stated["failOnDataLoss"]) == (
        "earliest",
        "latest",
        "true",
    )
    assert source.timeout_s * 1000 == int(stated["service.timeoutMs"])
    sink = SinkOptions.parse(URL, use="stream write")
    assert sink.transaction_timeout_ms == int(stated["transactionTimeoutMs"])


def test_options_are_read_whatever_the_case_of_their_names() -> None:
    options = URL | {"MAXBYTESPERTRIGGER": "64m", "minpartitions": "8", "FailOnDataLoss": "False"}
    source = SourceOptions.parse(options, use="stream read")
    assert (source.max_bytes, source.min_partitions, source.fail_on_data_loss) == (64 * 1024 * 1024, 8, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"service.url": "127.0.0.1"}, "'service.url'"),
        ({"topic": "prices"}, "'topic': topic 'prices': expected topic://"),
        ({"topicsPattern": "topic://.*"}, "not 'topic' and 'topicsPattern'"),
        ({"maxEntriesPerTrigger": "0"}, "'maxEntriesPerTrigger': '0' is not a positive whole number"),
        ({"maxBytesPerTrigger": "1.5g"}, "'maxBytesPerTrigger': '1.5g' is not a number of bytes"),
        ({"failOnDataLoss": "no"}, "'failOnDataLoss': 'no' is neither true nor false"),
        ({"isolationLevel": "serializable"}, "'isolationLevel'"),
        ({"startingOffsets": "newest"}, "'startingOffsets': 'newest': expected earliest, latest or JSON"),
        ({"startingOffsets": '{"v":7}'}, "'startingOffsets': not an offset that this version"),
        ({"startingOffsets": '{"prices":{"0":5}}'}, "not an offset of txnstore: .*prices.*: expected a snapshot"),
        ({"startingOffsets": "{"}, "'startingOffsets'"),
        ({"path": "/data"}, "takes no path"),
        ({"maxRecordsPerFile": "5"}, "'maxrecordsperfile' is not known"),
        ({"snapshot": "{}"}, "'snapshot' is not for this"),
        ({"sinkName": "s"}, "'sinkName' is not for this: it belongs to write or stream write"),
        (
            {"kafka.bootstrap.servers": "h:1"},
            "belongs to Kafka's source: name servers of the cluster with 'service.url'",
        ),
        ({"subscribe": "prices"}, "'topic', or several with 'topics'"),
        ({"subscribePattern": "p.*"}, "use 'topicsPattern'"),
        ({"maxOffsetsPerTrigger": "5"}, "use 'maxRowsPerTrigger'"),
        ({"minOffsetsPerTrigger": "5"}, "use 'minEntriesPerTrigger'"),
        ({"includeHeaders": "true"}, "the column 'properties'"),
        ({"kafka.security.protocol": "SSL"}, "this source uses no client of Kafka's"),
        ({"maxRows": "5"}, "'maxrows' is not known; of a stream read there are: service.url, .*minPartitions"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        SourceOptions.parse(URL | options, use="stream read")


def test_an_option_of_kafkas_is_answered_with_options_that_there_are() -> None:
    known = {option.name for option in OPTIONS}
    for name, hint in kafka_options._HINTS.items():
        assert name not in {one.lower() for one in known}, "what is known here needs no hint"
        named = re.findall(r"'([A-Za-z.]+)'", hint)
        assert set(named) <= known | {"properties"}, name


def test_topics_are_told_in_one_way() -> None:
    with pytest.raises(InvalidArgument, match="is needed, not none"):
        SourceOptions.parse({"service.url": "txn://h:1"}, use="read")
    several = {"service.url": "txn://h:1", "topics": f"{TOPIC}, {TOPIC}2 ,{TOPIC}"}
    assert SourceOptions.parse(several, use="read").topics == (TOPIC, f"{TOPIC}2")
    pattern = {"service.url": "txn://h:1", "topicsPattern": "topic://(unclosed"}
    with pytest.raises(InvalidArgument, match="'topicsPattern'"):
        SourceOptions.parse(pattern, use="read")


def test_a_batch_read_ends_in_one_way() -> None:
    cut = json.dumps(encode_offset(snapshot({})))
    assert SourceOptions.parse(URL | {"snapshot": cut}, use="read").end == snapshot({})
    with pytest.raises(InvalidArgument, match="leave one out"):
        SourceOptions.parse(URL | {"snapshot": cut, "endingOffsets": cut}, use="read")
    with pytest.raises(InvalidArgument, match="has nothing to read"):
        SourceOptions.parse(URL | {"startingOffsets": "latest"}, use="read")
    with pytest.raises(InvalidArgument, match="a snapshot has only committed messages"):
        SourceOptions.parse(URL | {"snapshot": cut, "isolationLevel": "read_uncommitted"}, use="read")


@pytest.mark.parametrize("end", ["endingOffsets", "snapshot"])
def test_a_range_the_wrong_way_round_is_not_taken_for_lost_data(end: str) -> None:
    early, late = (json.dumps(encode_offset(snapshot({}, revision=revision))) for revision in (7, 8))
    assert SourceOptions.parse(URL | {"startingOffsets": early, end: late}, use="read").start == snapshot({})
    assert SourceOptions.parse(URL | {"startingOffsets": early, end: early}, use="read").end == snapshot({})
    with pytest.raises(InvalidArgument, match=r"newer than the end, of revision 8 and.*7.*exchange the two"):
        SourceOptions.parse(URL | {"startingOffsets": late, end: early, "failOnDataLoss": "false"}, use="read")


def test_ranges_of_one_revision_have_an_order_too() -> None:
    """Messages outside of transactions do not raise it."""
    early, late = (json.dumps(encode_offset(snapshot({"a": {"0000-ffff-0": at(entry)}}))) for entry in (1, 2))
    assert SourceOptions.parse(URL | {"startingOffsets": early, "endingOffsets": late}, use="read").end is not None
    with pytest.raises(InvalidArgument, match="newer than the end"):
        SourceOptions.parse(URL | {"startingOffsets": late, "endingOffsets": early}, use="read")


def test_the_source_is_called_txnstore() -> None:
    assert DefaultSource.name() == "txnstore"
    assert DefaultSource(URL | {"columns": "value"}).schema() == schema_of(["value"])


# Cuts


def at(entry_id: int, *, sealed: bool = False) -> SegmentBounds:
    return SegmentBounds(Position(1, entry_id), Position(1, entry_id), sealed)


def snapshot(
    topics: dict[str, dict[str, SegmentBounds]], *, revision: int = 7, epoch: int = 1, lost: int = -1
) -> Snapshot:
    found = {
        f"topic://public/default/{name}": TopicBounds(
            epoch, {f"public/default/{name}/{path}": one for path, one in segments.items()}, lost
        )
        for name, segments in topics.items()
    }
    return Snapshot(revision, found, store="s")


def test_what_retention_took_between_two_cuts_is_passed_over() -> None:
    start = snapshot({"a": {"0000-ffff-0": at(4)}})
    end = snapshot({"a": {"0000-7fff-1": at(9), "8000-ffff-2": at(9)}}, revision=9, epoch=3, lost=0)
    assert start.obstacle(end) is not None
    before, after = passed_over(start, end)
    assert before.obstacle(after) is None
    assert after.segments == end.segments
    assert before.topics["topic://public/default/a"].segments == {}


def test_a_topic_that_was_made_again_is_read_from_its_beginning() -> None:
    start = snapshot({"a": {"0000-ffff-0": at(4)}, "b": {"0000-ffff-0": at(4)}}, epoch=3)
    end = snapshot({"a": {"0000-ffff-0": at(2)}, "b": {"0000-ffff-0": at(9)}}, revision=9, epoch=3)
    before, after = passed_over(start, end)
    assert list(before.topics) == ["topic://public/default/b"]
    assert before.obstacle(after) is None
    assert list(passed_over(start, replace(end, topics={}))[0].topics) == []


def test_what_is_lost_of_any_topic_and_segment_is_passed_over_and_what_is_kept_goes_on() -> None:
    """▲ A segment without its start would be read again."""
    kept = {"0000-7fff-1": at(4), "8000-ffff-2": at(4)}
    start = snapshot({name: {"0000-ffff-0": at(4, sealed=True), **kept} for name in "ab"})
    end = snapshot(dict.fromkeys("ab", kept), revision=9, epoch=3, lost=0)
    before, after = passed_over(start, end)
    assert before.obstacle(after) is None
    assert before.segments == after.segments == end.segments
    made_again = snapshot({"a": kept, "b": {**kept, "8000-ffff-2": at(2)}}, revision=9, epoch=3, lost=0)
    assert list(passed_over(start, made_again)[0].topics) == ["topic://public/default/a"]


def test_cuts_of_different_stores_are_never_reconciled() -> None:
    with pytest.raises(InvalidArgument, match="another cluster"):
        passed_over(snapshot({"a": {}}), replace(snapshot({"a": {}}, revision=9), store="other"))


def test_a_task_is_told_of_its_own_segment_and_all_that_is_open() -> None:
    cut = replace(snapshot({"a": {"0000-7fff-0": at(4), "8000-ffff-1": at(5)}, "b": {}}), pending=(TxnId(1, 2),))
    own = of_segment(cut, "public/default/a/8000-ffff-1")
    assert own.segments == {"public/default/a/8000-ffff-1": at(5)}
    # ▲ Known to the topic, not to the segment: it came later and is read whole or refused.
    assert list(of_segment(cut, "public/default/a/0000-3fff-2").topics) == ["topic://public/default/a"]
    assert of_segment(cut, "public/default/c/0000-ffff-0").topics == {}
    start = snapshot({"a": {"0000-7fff-0": at(1)}}, revision=3)
    options = SourceOptions.parse({"service.url": "txn://h:1", "topicsPattern": ".*"}, use="read")
    first, second = (pickle.loads(pickle.dumps(part)).span() for part in plan(options, start, cut))
    assert (first.start, first.end) == (start, replace(cut, topics=of_segment(cut, first_path(first)).topics))
    assert first.continues("topic://public/default/a")
    assert second.continues("topic://public/default/a")
    assert second.after("public/default/a/8000-ffff-1") == EARLIEST
    assert not second.shows("public/default/a/8000-ffff-1", Position(1, 2), TxnId(1, 2), 0)
    assert second.shows("public/default/a/8000-ffff-1", Position(1, 2), TxnId(1, 3), 0)


def first_path(span: Span) -> str:
    assert span.end is not None
    return next(iter(span.end.segments))


def test_a_stream_goes_on_where_something_came_or_a_layout_changed() -> None:
    here = snapshot({"a": {"0000-ffff-0": at(4)}})
    assert not adds(here, replace(here, revision=8))
    assert adds(here, snapshot({"a": {"0000-ffff-0": at(5)}}, revision=8))
    sealed = snapshot(
        {"a": {"0000-ffff-0": at(4, sealed=True), "0000-7fff-1": SegmentBounds(EARLIEST, EARLIEST)}},
        revision=8,
        epoch=2,
    )
    assert adds(here, sealed)
    beside = {"a": {"0000-ffff-0": at(4)}, "b": {"0000-ffff-1": SegmentBounds(EARLIEST, EARLIEST)}}
    assert not adds(here, snapshot(beside, revision=8))
    assert adds(here, snapshot(beside | {"b": {"0000-ffff-1": at(0)}}, revision=8)), "the first message of a new topic"
    nothing = SegmentBounds(EARLIEST, EARLIEST)
    assert not adds(None, snapshot({"a": {"0000-ffff-0": nothing}}))
    assert adds(None, here)
    for some in ({"0000-7fff-0": nothing, "8000-ffff-1": at(0)}, {"0000-7fff-0": at(0), "8000-ffff-1": nothing}):
        assert adds(None, snapshot({"a": some})), "in any segment"


def test_a_layout_that_changes_in_any_of_the_topics_is_to_be_gone_on_to() -> None:
    segments = {"0000-ffff-0": at(4)}
    names = [f"topic://public/default/{name}" for name in "abc"]
    here = snapshot(dict.fromkeys("abc", segments))
    assert not is_laid_out_anew(here, here)
    for name in names:
        changed = {**here.topics, name: here.topics[name]._replace(epoch=2)}
        assert is_laid_out_anew(here, replace(here, topics=changed))
        joining = replace(here, topics={other: here.topics[other] for other in names if other != name})
        assert not is_laid_out_anew(joining, replace(here, topics=changed)), "of a topic in both"


# First batches


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_x2_the_end_of_the_first_batch_tells_its_start(isolation: Isolation) -> None:
    initial = partial(first_batch.initial, isolation=isolation)
    ending = partial(first_batch.ending, isolation=isolation)
    between = partial(first_batch.between, isolation=isolation)
    first, second, third = (snapshot({"a": {"0000-ffff-0": at(n)}}, revision=n) for n in (4, 5, 6))
    start = json.loads(json.dumps(initial(first)))
    end = json.loads(json.dumps(ending(start, second)))
    assert between(start, end) == (first, second)
    assert between(initial(third), end) == (first, second)
    assert between(initial(None), end) == (first, second)
    assert between(start, start) is None  # nothing yet: where it began, and no more
    assert between(start, initial(third)) is None
    later = ending(end, third)
    assert later == encode_offset(third, isolation)
    assert between(end, later) == (second, third)
    everything = ending(initial(None), third)
    assert between(initial(second), everything) == (None, third)
    untold = first_batch.untold("it was split", isolation)
    assert between(untold, end) == (first, second)
    with pytest.raises(InvalidArgument, match="the start of the query is not known: it was split"):
        between(untold, later)


# Parting large segments


@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from([0, 0, 0, 0, 2, 3])), max_size=40),
    st.integers(1, 12),
    st.integers(1, 7),
)
def test_coarse_heads_keep_sizes_and_the_pieces_of_large_values(
    entries: list[tuple[int, int]], most: int, page: int
) -> None:
    heads: list[EntryHead] = []
    for chunk, (size, pieces) in enumerate(entries):
        for number in range(max(1, pieces)):
            piece = PieceHead("p", 1, chunk, number, pieces) if pieces else None
            heads.append(EntryHead(Position(1, len(heads)), None, 0, 1, size, 0, False, piece))
    found = coarse([heads[at : at + page] for at in range(0, len(heads), page)], most)
    assert [head for head in found if head.piece] == [head for head in heads if head.piece]
    ends = {head.position: total for head, total in zip(heads, accumulate(h.size_bytes for h in heads), strict=True)}
    assert [ends[head.position] for head in found] == list(accumulate(head.size_bytes for head in found))
    assert found[-1:] == heads[-1:] or found[-1].position == heads[-1].position
    if not any(pieces for _, pieces in entries):
        assert len(found) <= most


def test_what_is_aborted_weighs_nothing_where_a_segment_is_parted() -> None:
    """A large value that was given up with its transaction, too: nothing could be parted behind its first piece."""
    piece = PieceHead("p", 1, 0, 0, 2)
    heads = [EntryHead(Position(1, n), None, 0, 1, 10, 0, n == 1, piece if n == 1 else None) for n in range(4)]
    assert [head.position.entry_id for head in coarse([heads], 10)] == [0, 2, 3]
