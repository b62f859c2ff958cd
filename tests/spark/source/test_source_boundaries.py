"""Reads that begin and end at times and at positions, against a real cluster (`test_boundaries.py` has a model)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

import txnclient.sync
from pyspark_txnstore import DefaultSource
from tests.spark.micro_batches import Row, Start, commit, numbered, send, values
from tests.spark.service import Service
from txnwire.errors import DataTrimmed, InvalidArgument


class Reads:
    """Batch reads of the test's topic, unless they name others."""

    def __init__(self, url: str, topic: str) -> None:
        self._options = {"service.url": url, "topic": topic}

    def rows(self, **options: str) -> list[Row]:
        if "topics" in options:
            options = {"service.url": self._options["service.url"], **options}
        source = DefaultSource(options={**({} if "topics" in options else self._options), **options})
        reader = source.reader(source.schema())
        return [row for one in reader.partitions() for batch in reader.read(one) for row in batch.to_pylist()]

    def values(self, **options: str) -> list[bytes]:
        return values(self.rows(**options))


@pytest.fixture
def reads(service: Service, topic: str) -> Reads:
    return Reads(service.url, topic)


def moment() -> str:
    """A time behind all that was sent, and before or at what is sent from now on."""
    begun = time.time_ns() // 1_000_000
    while (now := time.time_ns() // 1_000_000) <= begun:
        pass
    return str(now)


def place(rows: Iterable[Row], value: bytes) -> dict[str, dict[str, str]]:
    """The position of a value, as options name one."""
    (row,) = (row for row in rows if row["value"] == value)
    return {row["topic"]: {row["segment"].rpartition("/")[2]: row["position"]}}


def test_a_time_parts_what_was_published_before_from_what_came_later(
    reads: Reads, start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic, segments=2)
    send(sync_client, topic, numbered("a", 9))
    first = moment()
    send(sync_client, topic, numbered("b", 9))
    commit(sync_client, [topic], numbered("c", 9))
    second = moment()
    send(sync_client, topic, numbered("d", 9))
    assert reads.values(endingTimestamp=first) == numbered("a", 9)
    assert reads.values(startingTimestamp=first, endingTimestamp=second) == [*numbered("b", 9), *numbered("c", 9)]
    assert reads.values(startingTimestamp=second) == numbered("d", 9)
    assert reads.values(startingTimestamp=first, endingTimestamp=first) == []
    iso = datetime.fromtimestamp(int(second) / 1000, UTC).isoformat()
    assert values(start(startingTimestamp=iso).next()) == numbered("d", 9)
    by_topic = json.dumps({topic: int(second)})
    assert values(start(startingOffsetsByTimestamp=by_topic).next()) == numbered("d", 9)
    later = start(startingTimestamp=str(int(moment()) + 3_600_000))
    assert later.next() is None
    send(sync_client, topic, [b"new"])
    assert values(later.next()) == [b"new"], "a time to come is the latest"


def test_a_transaction_that_straddles_a_time_is_whole_on_the_side_where_it_ends(
    reads: Reads, start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """Over two topics; so with one that aborts, and with one that is open for longer than the read."""
    other = f"{topic}-other"
    both = f"{topic},{other}"
    for one in (topic, other):
        sync_client.create_topic(one, segments=2)
    straddling, doomed, left_open = (sync_client.begin() for _ in range(3))
    for txn, name in ((straddling, "s"), (doomed, "x"), (left_open, "o")):
        send(sync_client, topic, numbered(f"{name}-before", 5), txn)
    commit(sync_client, [topic, other], [b"whole before"])
    now = moment()
    for txn, name in ((straddling, "s"), (doomed, "x")):
        send(sync_client, other, numbered(f"{name}-behind", 5), txn)
    commit(sync_client, [topic, other], [b"whole behind"])
    straddling.commit()
    doomed.abort()
    behind = sorted([b"whole behind"] * 2 + numbered("s-before", 5) + numbered("s-behind", 5))
    assert reads.values(topics=both, endingTimestamp=now) == [b"whole before"] * 2
    assert reads.values(topics=both, startingTimestamp=now) == behind
    query = start(topics=both, startingTimestamp=now, maxEntriesPerTrigger="1000")
    assert values(query.next()) == behind
    left_open.commit()
    assert values(query.next()) == numbered("o-before", 5), "nobody has had it yet"
    assert reads.values(topics=both, endingTimestamp=now) == sorted([b"whole before"] * 2 + numbered("o-before", 5))


def test_a_start_by_time_is_resolved_once_and_the_first_batch_runs_again_the_same(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    send(sync_client, topic, [b"before"])
    now = moment()
    query = start(startingTimestamp=now)
    initial = query.reader.initialOffset()
    send(sync_client, topic, [b"first"])
    (parent,) = sync_client.describe_topic(topic).active
    sync_client.split(parent.name)
    send(sync_client, topic, numbered("child", 4))
    assert query.reader.initialOffset() == initial
    assert values(query.next()) == [*numbered("child", 4), b"first"]
    query.restart()
    assert values(query.replay(0)) == [*numbered("child", 4), b"first"]


def test_the_first_batch_runs_again_though_segments_are_there_that_its_start_does_not_name(
    start: Start, reads: Reads, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    send(sync_client, topic, numbered("a", 3))
    options = {"startingOffsets": json.dumps(place(reads.rows(), b"a001"))}
    query = start(**options)
    assert values(query.next()) == [b"a001", b"a002"]
    (parent,) = sync_client.describe_topic(topic).active
    sync_client.split(parent.name)
    send(sync_client, topic, numbered("child", 4))
    query.restart()
    assert values(query.replay(0)) == [b"a001", b"a002"]
    assert values(query.next()) == numbered("child", 4)
    with pytest.raises(InvalidArgument, match="no position is named for segment"):
        start(**options).next()


def test_uncommitted_a_time_parts_entry_by_entry(reads: Reads, sync_client: txnclient.sync.Client, topic: str) -> None:
    sync_client.create_topic(topic)
    txn = sync_client.begin()
    send(sync_client, topic, [b"before"], txn)
    now = moment()
    send(sync_client, topic, [b"behind"], txn)
    options = {"isolationLevel": "read_uncommitted"}
    assert reads.values(endingTimestamp=now, **options) == [b"before"]
    assert reads.values(startingTimestamp=now, **options) == [b"behind"]
    txn.abort()


def test_positions_begin_at_themselves_and_end_before_themselves(
    reads: Reads, start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    send(sync_client, topic, numbered("a", 8))
    third, fifth = (json.dumps(place(reads.rows(), value)) for value in (b"a003", b"a005"))
    assert reads.values(startingOffsets=third, endingOffsets=fifth) == [b"a003", b"a004"]
    assert reads.values(startingOffsets=third, endingOffsets=third) == []
    assert values(start(startingOffsets=fifth).next()) == [b"a005", b"a006", b"a007"]
    assert reads.values(endingOffsets=json.dumps(place(reads.rows(), b"a000"))) == []
    (segment,) = place(reads.rows(), b"a000")[topic]
    for name, found in (("earliest", numbered("a", 8)), ("latest", [])):
        assert reads.values(startingOffsets=json.dumps({topic: {segment: name}})) == found
    with pytest.raises(InvalidArgument, match=r"begins after .* and is to end at"):
        reads.values(startingOffsets=fifth, endingOffsets=third)


def test_positions_of_several_ledgers_and_segments(
    service: Service, reads: Reads, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ Before the first entry of a ledger stands nothing of that one."""
    sync_client.create_topic(topic)
    send(sync_client, topic, [b"first"])
    service.kill("broker-1", "broker-2")
    send(sync_client, topic, [b"second"])
    (segment,) = sync_client.describe_topic(topic).active
    sync_client.split(segment.name)
    send(sync_client, topic, numbered("child", 6))
    rows = reads.rows()
    second = place(rows, b"second")[topic]
    assert next(iter(second.values())).endswith(":0")
    latest = {row["segment"].rpartition("/")[2]: "latest" for row in rows}
    children = [row for row in rows if row["value"].startswith(b"child")]
    firsts = {row["segment"].rpartition("/")[2]: row["position"] for row in reversed(children)}

    def at(**places: str) -> str:
        return json.dumps({topic: {**latest, **firsts, **places}})

    assert reads.values(endingOffsets=at()) == [b"first", b"second"]
    assert reads.values(startingOffsets=at()) == numbered("child", 6)
    assert reads.values(endingOffsets=at(**second)) == [b"first"]
    assert reads.values(startingOffsets=at(**second)) == [*numbered("child", 6), b"second"]
    assert reads.values(startingOffsets=at(**second), endingOffsets=at()) == [b"second"]
    with pytest.raises(InvalidArgument, match="no position is named for segment"):
        reads.values(startingOffsets=json.dumps({topic: firsts}))
    with pytest.raises(InvalidArgument, match="is no segment of"):
        reads.values(startingOffsets=at(**{"0000-ffff-99": "1:0"}))


def test_a_straddling_transaction_is_whole_also_by_positions(
    reads: Reads, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    txn = sync_client.begin()
    send(sync_client, topic, [b"t1"], txn)
    send(sync_client, topic, [b"plain 1", b"plain 2"])
    send(sync_client, topic, [b"t2"], txn)
    txn.commit()
    second = json.dumps(place(reads.rows(), b"plain 2"))
    assert reads.values(endingOffsets=second) == [b"plain 1"]
    assert reads.values(startingOffsets=second) == [b"plain 2", b"t1", b"t2"]


def test_what_is_not_kept_any_more_is_refused_by_position_and_passed_over_by_time(
    reads: Reads, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    send(sync_client, topic, [b"kept"])
    (segment,) = place(reads.rows(), b"kept")[topic]
    lost = json.dumps({topic: {segment: "0:0"}})
    with pytest.raises(DataTrimmed, match="is not kept any more"):
        reads.values(startingOffsets=lost)
    assert reads.values(startingOffsets=lost, failOnDataLoss="false") == [b"kept"]
    assert reads.values(startingTimestamp="1000") == [b"kept"]


def test_a_snapshot_and_a_time_that_lies_before_it_are_refused(
    reads: Reads, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """▲ And not taken for data that was lost, which `failOnDataLoss=false` would read from the beginning."""
    sync_client.create_topic(topic)
    now = moment()
    send(sync_client, topic, [b"a"])
    cut = sync_client.snapshot(topic).to_json()
    with pytest.raises(InvalidArgument, match=r"begins after .* and is to end at"):
        reads.values(startingOffsets=cut, endingTimestamp=now, failOnDataLoss="false")
    send(sync_client, topic, [b"b"])
    assert reads.values(startingOffsets=cut, endingTimestamp=moment()) == [b"b"]
    assert reads.values(startingTimestamp=now, endingOffsets=cut) == [b"a"]


def test_spark_reads_from_a_time_to_a_time(
    spark: SparkSession, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    send(sync_client, topic, [b"a"])
    first = moment()
    send(sync_client, topic, [b"b"])
    second = moment()
    send(sync_client, topic, [b"c"])
    options = {"service.url": service.url, "topic": topic, "startingTimestamp": first, "endingTimestamp": second}
    found = spark.read.format("txnstore").options(**options).load().collect()
    assert [bytes(row.value) for row in found] == [b"b"]
