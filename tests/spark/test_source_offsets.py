"""The streaming source and a real cluster, batch by batch: cuts, limits, layouts, losses (SCENARIOS X2, DESIGN §10)."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import txnclient.sync
from pyspark_txnstore import DefaultSource
from pyspark_txnstore.offsets import decode_offset
from pyspark_txnstore.options import SourceOptions
from pyspark_txnstore.stream import IDLE_S, StreamReader
from tests.spark.micro_batches import MicroBatches, Row, values
from tests.spark.service import Service
from txnclient import Snapshot
from txnwire.errors import DataTrimmed, InvalidArgument, TopicNotFound
from txnwire.ids import EARLIEST, Position

Start = Callable[..., MicroBatches]


@pytest.fixture
def start(service: Service, topic: str) -> Start:
    """Of a query that reads the test's topic, unless its options name others."""

    def started(**options: str) -> MicroBatches:
        if not {"topics", "topicsPattern"} & options.keys():
            options.setdefault("topic", topic)
        return MicroBatches(service.url, options)

    return started


def send(
    client: txnclient.sync.Client, topic: str, some: Iterable[bytes], txn: txnclient.sync.Transaction | None = None
) -> None:
    """Each in an entry of its own, with itself as the key."""
    with client.producer(topic) as producer:
        for value in some:
            producer.send(value, key=value, txn=txn)


def commit(client: txnclient.sync.Client, topics: Iterable[str], some: Iterable[bytes]) -> None:
    """All of them to each of the topics, in one transaction."""
    some = list(some)
    with client.transaction() as txn:
        for topic in topics:
            send(client, topic, some, txn)


def numbered(prefix: str, count: int) -> list[bytes]:
    return [f"{prefix}{number:03d}".encode() for number in range(count)]


def split_all(client: txnclient.sync.Client, topic: str) -> None:
    for segment in client.describe_topic(topic).active:
        client.split(segment.name)


def merge_all(client: txnclient.sync.Client, topic: str) -> None:
    active = client.describe_topic(topic).active
    client.merge(active[0].name, active[1].name)


def by_transaction(batches: Iterable[list[Row]]) -> Counter[str]:
    """In how many batches each transaction is."""
    return Counter(chain(*({row["txn_id"] for row in batch if row["txn_id"]} for batch in batches)))


# Batches


def test_a_batch_is_what_was_committed_since_the_one_before(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic, segments=2)
    send(sync_client, topic, numbered("a", 5))
    query = start()
    assert values(query.next()) == numbered("a", 5)
    assert query.next() is None
    commit(sync_client, [topic], numbered("b", 5))
    assert values(query.next()) == numbered("b", 5)
    assert query.next() is None


def test_an_idle_topic_makes_no_batches(start: Start, sync_client: txnclient.sync.Client, topic: str) -> None:
    sync_client.create_topic(topic)
    query = start()
    assert query.next() is None
    other = f"{topic}-other"
    sync_client.create_topic(other)
    commit(sync_client, [other], [b"elsewhere"])  # the store's revision goes up
    assert query.next() is None
    assert len(query.offsets) == 1


def test_a_query_rests_where_nothing_is_new_and_nowhere_else(
    service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    options = SourceOptions.parse({"service.url": service.url, "topic": topic}, use="stream read")
    rests: list[float] = []
    reader = StreamReader(options, DefaultSource(options={}).schema(), rest=rests.append)
    begin = reader.initialOffset()
    assert reader.latestOffset(begin, ReadAllAvailable()) == begin
    assert rests == [IDLE_S]
    commit(sync_client, [topic], [b"new"])
    end = reader.latestOffset(begin, ReadAllAvailable())
    assert end != begin
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(end, ReadAllAvailable()) == end  # the query ends with that
    assert rests == [IDLE_S]


def test_latest_begins_behind_what_is_there_and_shows_what_was_open(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    send(sync_client, topic, [b"before"])
    txn = sync_client.begin()
    send(sync_client, topic, [b"open"], txn)
    query = start(startingOffsets="latest")
    assert query.next() is None
    send(sync_client, topic, [b"after"])
    txn.commit()
    assert values(query.next()) == [b"after", b"open"]


def test_a_stream_begins_at_a_snapshot_or_at_an_offset_of_another(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    other = f"{topic}-other"
    sync_client.create_topic(other)
    send(sync_client, topic, [b"before"])
    cut = sync_client.snapshot([topic, other])
    first = start()
    first.next()
    send(sync_client, topic, [b"after"])
    assert values(start(startingOffsets=cut.to_json()).next()) == [b"after"]
    assert values(start(startingOffsets=first.offsets[-1]).next()) == [b"after"]


def test_what_is_held_back_by_an_open_transaction_comes_once_it_commits(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic, segments=2)
    txn = sync_client.begin()
    send(sync_client, topic, numbered("open", 10), txn)
    send(sync_client, topic, numbered("plain", 10))
    query = start()
    # Unlike to a reader, what stands behind an open transaction is shown: the cut names what to leave out.
    assert values(query.next()) == numbered("plain", 10)
    assert query.next() is None
    query.restart()
    txn.commit()
    assert values(query.next()) == numbered("open", 10)
    assert query.next() is None


def test_uncommitted_shows_everything_at_once_and_once(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic, segments=2)
    txn, doomed = sync_client.begin(), sync_client.begin()
    send(sync_client, topic, numbered("open", 5), txn)
    send(sync_client, topic, numbered("doomed", 5), doomed)
    doomed.abort()
    query = start(isolationLevel="read_uncommitted", maxEntriesPerTrigger="4")
    batches = query.available_now()
    assert [len(batch) for batch in batches] == [4, 4, 2]
    rows = list(chain(*batches))
    assert values(rows) == [*numbered("doomed", 5), *numbered("open", 5)]
    assert {row["txn_id"] for row in rows} == {str(txn.id), str(doomed.id)}
    txn.commit()
    assert query.next() is None


# X2


def test_x2_the_first_batch_runs_again_from_where_it_began(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """Though whoever asks for the beginning by then is told another."""
    sync_client.create_topic(topic)
    send(sync_client, topic, [b"before"])
    query = start(startingOffsets="latest")
    initial = query.reader.initialOffset()
    send(sync_client, topic, [b"first"])
    end = query.reader.latestOffset(initial, query.reader.getDefaultReadLimit())
    query.offsets = [json.dumps(initial), json.dumps(end)]
    send(sync_client, topic, [b"second"])
    query.restart()
    assert query.reader.initialOffset() != initial
    assert values(query.replay(0)) == [b"first"]
    assert values(query.next()) == [b"second"]


def test_x2_each_transaction_is_in_one_batch_whole_and_replays_are_identical(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """Two topics that split and merge between batches and inside of them; gaps of aborted transactions, tails held back
    by open ones, writers that do not count; then every batch again, by other readers, after all of it has changed."""
    other = f"{topic}-other"
    both = [topic, other]
    for one in both:
        sync_client.create_topic(one)
    query = start(topics=",".join(both))
    batches: list[list[Row]] = []
    committed: list[bytes] = []
    open_ones = []
    for step in range(6):
        doomed = sync_client.begin()
        held = sync_client.begin(timeout=300)
        for one in both:
            send(sync_client, one, numbered(f"doomed{step}-", 3), doomed)
            send(sync_client, one, numbered(f"held{step}-", 3), held)
        commit(sync_client, both, numbered(f"txn{step}-", 4))
        committed += numbered(f"txn{step}-", 4)
        (merge_all if step % 2 else split_all)(sync_client, both[step // 2 % 2])  # inside of what the batch reads
        for one in both:
            send(sync_client, one, numbered(f"held{step}+", 3), held)  # behind the split too
        winner, loser = (sync_client.begin(name=f"{topic}/{step}") for _ in range(2))
        for one in both:
            send(sync_client, one, numbered(f"winner{step}-", 2), winner)
            send(sync_client, one, numbered(f"loser{step}-", 2), loser)
        winner.commit(writers=[winner.writer_id])
        committed += numbered(f"winner{step}-", 2)
        doomed.abort()
        open_ones.append((step, held))
        if step % 3 == 2:  # those held back for some batches
            for number, txn in open_ones:
                txn.commit()
                committed += [*numbered(f"held{number}-", 3), *numbered(f"held{number}+", 3)]
            open_ones.clear()
        if step % 2:
            query.restart()
        batch = query.next()
        assert batch is not None
        batches.append(batch)
    assert query.next() is None
    assert values(chain(*batches)) == sorted(committed * 2)
    assert set(by_transaction(batches).values()) == {1}
    for one in both:
        split_all(sync_client, one)
        send(sync_client, one, [b"later"])
    for number, batch in enumerate(batches):
        assert query.replay(number) == batch


@pytest.mark.parametrize("limit", [{"maxEntriesPerTrigger": "7"}, {"maxBytesPerTrigger": "1k"}])
def test_x2_limits_part_the_backlog_between_transactions(
    start: Start, sync_client: txnclient.sync.Client, topic: str, limit: dict[str, str]
) -> None:
    """Transactions that overlap each other over two topics and a split, one of them larger than the limit."""
    other = f"{topic}-other"
    both = [topic, other]
    for one in both:
        sync_client.create_topic(one, segments=2)
    committed = []
    for step in range(4):
        txns = [sync_client.begin() for _ in range(3)]
        for part in range(3):
            for number, txn in enumerate(txns):
                some = numbered(f"{step}.{number}.{part}-", 1)
                for one in both:
                    send(sync_client, one, some, txn)
                committed += some * 2
            if part == 1 and step in (1, 2):
                split_all(sync_client, both[step - 1])
        for txn in txns:
            txn.commit()
    commit(sync_client, both, numbered("large-", 12))
    committed += numbered("large-", 12) * 2
    query = start(topics=",".join(both), **limit)
    query.reader.prepareForTriggerAvailableNow()
    send(sync_client, topic, [b"behind the target"])
    batches: list[list[Row]] = []
    while (batch := query.next()) is not None:
        batches.append(batch)
        if len(batches) % 3 == 0:
            query.restart()
            query.reader.prepareForTriggerAvailableNow()
    assert values(chain(*batches)) == sorted([*committed, b"behind the target"])
    assert set(by_transaction(batches).values()) == {1}
    assert len(batches) >= 5
    if "maxEntriesPerTrigger" in limit:
        assert all(len(batch) <= 7 or len({row["txn_id"] for row in batch}) == 1 for batch in batches)
    for number, batch in enumerate(batches):
        assert query.replay(number) == batch


def test_available_now_ends_at_what_there_was_when_it_began(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    send(sync_client, topic, numbered("a", 10))
    query = start(maxEntriesPerTrigger="4")
    query.reader.prepareForTriggerAvailableNow()
    send(sync_client, topic, numbered("b", 3))
    sizes = []
    while (batch := query.next()) is not None:
        sizes.append(len(batch))
    assert sizes == [4, 4, 2]
    query.restart()
    assert [values(batch) for batch in query.available_now()] == [numbered("b", 3)]


def test_both_limits_hold_and_a_trigger_for_everything_passes_them_over(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    send(sync_client, topic, [os.urandom(3000) for _ in range(8)])
    query = start(maxEntriesPerTrigger="3", maxBytesPerTrigger="7k")
    assert len(query.next() or ()) == 2
    query.restart(maxBytesPerTrigger="1m")
    assert len(query.next() or ()) == 3
    assert len(query.all_at_once() or ()) == 3


# Topics


def test_a_pattern_takes_up_new_topics_and_no_transaction_is_torn_by_it(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    query = start(topicsPattern=f"{topic}-[ab]")
    assert query.next() is None
    a, b, c = (f"{topic}-{letter}" for letter in "abc")
    sync_client.create_topic(a)
    sync_client.create_topic(c)
    commit(sync_client, [a, c], [b"first"])
    assert values(query.next()) == [b"first"]
    sync_client.create_topic(b)
    commit(sync_client, [a, b], [b"second"])
    batch = query.next()
    assert values(batch) == [b"second"] * 2
    assert {row["topic"] for row in batch or ()} == {a, b}


class Meanwhile:
    """The client, but something happens right before the next snapshot is taken."""

    def __init__(self, client: txnclient.sync.Client, happening: Callable[[], None]) -> None:
        self._client = client
        self._happenings = [happening]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def snapshot(self, topics: list[str]) -> Snapshot:
        if self._happenings:
            self._happenings.pop()()
        return self._client.snapshot(topics)


@pytest.mark.parametrize("by_pattern", [True, False])
def test_x2_a_topic_made_while_a_cut_is_taken_is_in_it(
    start: Start, sync_client: txnclient.sync.Client, topic: str, monkeypatch: pytest.MonkeyPatch, by_pattern: bool
) -> None:
    """What is committed to it and to another by the cut is in one batch; also where it is named, and may be missing."""
    a, b = (f"{topic}-{letter}" for letter in "ab")
    sync_client.create_topic(a)
    topics = {"topicsPattern": f"{topic}-.*"} if by_pattern else {"topics": f"{a},{b}", "failOnDataLoss": "false"}

    def happening() -> None:
        sync_client.create_topic(b)
        commit(sync_client, [a, b], [b"both"])

    query = start(**topics, startingOffsets="latest")
    query.next()
    client = Meanwhile(sync_client, happening)
    monkeypatch.setattr("pyspark_txnstore.cuts.client_of", lambda url, timeout_s: client)
    assert values(query.next()) == [b"both"] * 2
    assert query.next() is None


def test_a_deleted_topic_is_a_loss(start: Start, sync_client: txnclient.sync.Client, topic: str) -> None:
    a, b = (f"{topic}-{letter}" for letter in "ab")
    for one in (a, b):
        sync_client.create_topic(one)
        send(sync_client, one, [b"first"])
    strict, loose = start(topics=f"{a},{b}"), start(topics=f"{a},{b}", failOnDataLoss="false")
    assert values(strict.next()) == values(loose.next()) == [b"first"] * 2
    sync_client.delete_topic(b)
    send(sync_client, a, [b"second"])
    with pytest.raises(TopicNotFound, match=f"{topic}-b"):
        strict.next()
    assert values(loose.next()) == [b"second"]
    sync_client.create_topic(b)
    send(sync_client, b, [b"third"])
    with pytest.raises(DataTrimmed, match="failOnDataLoss"):
        strict.next()
    assert values(loose.next()) == [b"third"]


# Retention


def outgrow(client: txnclient.sync.Client, topic: str, *, behind: Position) -> None:
    """Send until retention has taken everything up to `behind` of the topic's only segment."""
    (segment,) = client.describe_topic(topic).active
    with client.producer(topic) as producer:
        for number in range(60):
            producer.send_many([os.urandom(256 * 1024) for _ in range(4)])
            client.update_topic(topic, retention_bytes=1024 * 1024 + number)  # it is looked after at every change
            end = client.snapshot(topic).segments[segment.path].end
            first = next(client.scan_entries(segment.path, after=EARLIEST, end=end, trimmed="skip"))[0].position
            if first > behind:
                return
    raise AssertionError(f"retention has taken nothing behind {first}")


def test_what_retention_takes_is_an_error_or_passed_over(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    (segment,) = sync_client.describe_topic(topic).active
    send(sync_client, topic, [b"read"])
    query = start()
    assert values(query.next()) == [b"read"]
    send(sync_client, topic, [b"lost"])
    lost = sync_client.snapshot(topic).segments[segment.path].end
    outgrow(sync_client, topic, behind=lost)
    with pytest.raises(DataTrimmed):
        query.next()
    assert len(query.offsets) == 3  # it was planned; running it again fails again
    with pytest.raises(DataTrimmed):
        query.replay(1)
    query.restart(failOnDataLoss="false")
    kept = values(query.replay(1))
    assert kept
    assert not {b"read", b"lost"} & set(kept)
    assert query.next() is None
    # Limits look at heads first, so they are told at once.
    del query.offsets[2:]
    query.restart(failOnDataLoss="true", maxEntriesPerTrigger="1000")
    with pytest.raises(DataTrimmed):
        query.next()
    query.restart(failOnDataLoss="false")
    assert values(query.next()) == kept
    fresh = start()
    assert values(fresh.next()) == kept


def test_min_partitions_parts_large_segments_and_loses_nothing(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    send(sync_client, topic, numbered("a", 40))
    query = start(minPartitions="4")
    assert values(query.next()) == numbered("a", 40)
    assert len(query.partitions(0)) == 4
    assert len(query.replay(0)) == 40


def test_a_large_value_is_one_row_whatever_parts_the_segment(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """Its pieces stand between others, on both sides of where a batch ends."""
    sync_client.create_topic(topic)
    large = os.urandom(1 << 20) * 11
    txn = sync_client.begin()
    with sync_client.producer(topic) as producer:
        query = start(minPartitions="6", maxEntriesPerTrigger="2")
        producer.send(b"before")
        sending = threading.Thread(target=producer.send, args=(large,), kwargs={"txn": txn, "chunk": True})
        sending.start()
        shown = []
        while sending.is_alive():
            shown += [row["value"] for batch in query.available_now() for row in batch]
        sending.join()
        producer.send(b"after")
        txn.commit()
    shown += [row["value"] for batch in query.available_now() for row in batch]
    assert sorted(map(len, shown)) == [len(b"after"), len(b"before"), len(large)]
    assert hashlib.sha256(max(shown, key=len)).digest() == hashlib.sha256(large).digest()


def test_a_task_reads_on_where_brokers_are_killed(
    start: Start, service: Service, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """More than is fetched ahead, so that it has to ask those that come next."""
    sync_client.create_topic(topic)
    sent = [os.urandom(256 * 1024) for _ in range(120)]
    with sync_client.producer(topic) as producer, sync_client.transaction() as txn:
        producer.send_many(sent, txn=txn)
    query = start(columns="value")
    initial = query.reader.initialOffset()
    end = query.reader.latestOffset(initial, query.reader.getDefaultReadLimit())
    (part,) = query.reader.partitions(initial, end)
    batches = query.reader.read(part)
    shown = next(batches).column("value").to_pylist()
    assert len(shown) < 60
    service.kill("broker-1", "broker-2")
    for batch in batches:
        shown += batch.column("value").to_pylist()
    assert [hashlib.sha256(value).digest() for value in shown] == [hashlib.sha256(value).digest() for value in sent]


def test_partitions_are_small(start: Start, sync_client: txnclient.sync.Client, topic: str) -> None:
    """They go to each task: what a cut of many segments says of others is not sent along."""
    sync_client.create_topic(topic, segments=32)
    send(sync_client, topic, numbered("a", 200))
    query = start()
    query.next()
    parts = query.partitions(0)
    assert len(parts) == 32
    assert max(len(pickle.dumps(one)) for one in parts) < 1500


def test_a_snapshot_of_other_topics_is_no_end(start: Start, sync_client: txnclient.sync.Client, topic: str) -> None:
    sync_client.create_topic(topic)
    query = start()
    query.next()
    cut = decode_offset(json.loads(query.offsets[0]))
    assert cut is not None
    assert list(cut.topics) == [topic]
    with pytest.raises(InvalidArgument, match="not an offset"):
        query.reader.latestOffset({"v": 99}, query.reader.getDefaultReadLimit())
