"""The streaming source where topics come and go, retention takes what is unread, and tasks read parts of segments."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import threading
from collections.abc import Callable, Iterable
from typing import Any

import pytest

import txnclient.sync
from pyspark_txnstore import DefaultSource
from pyspark_txnstore.shared.offsets import decode_offset
from pyspark_txnstore.shared.options import SourceOptions
from pyspark_txnstore.source.columns import SCHEMA
from pyspark_txnstore.source.source import BatchReader
from tests.spark.micro_batches import Start, commit, numbered, send, values
from tests.spark.service import Service
from tests.waiting import wait_until
from txnclient import Snapshot
from txnwire.errors import DataTrimmed, InvalidArgument, TopicNotFound
from txnwire.ids import EARLIEST, Position

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


def test_available_now_ends_where_its_pattern_matches_nothing(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """Also if something comes that it matches: what there was when it began was nothing."""
    query = start(topicsPattern=f"{topic}-.*")
    query.reader.prepareForTriggerAvailableNow()
    sync_client.create_topic(f"{topic}-a")
    send(sync_client, f"{topic}-a", [b"later"])
    assert query.next() is None
    query.restart()
    assert [values(batch) for batch in query.available_now()] == [[b"later"]]


def test_a_checkpoint_of_another_topic_is_a_loss(
    start: Start, sync_client: txnclient.sync.Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Copied for a query of another one; also the batch that runs again first."""
    other = f"{topic}-other"
    for name in (topic, other):
        sync_client.create_topic(name)
        send(sync_client, name, [name.encode()])
    query = start()
    query.next()
    query.restart(topic=other)
    with pytest.raises(DataTrimmed, match=f"{topic}: in the checkpoint's last batch, and not asked for any more"):
        query.replay(0)
    with pytest.raises(DataTrimmed, match=f"{topic}: read so far, and now deleted or not asked for"):
        query.next()
    query.restart(topic=other, failOnDataLoss="false")
    assert values(query.next()) == [other.encode()]
    assert f"{topic}: read so far" in caplog.text


def test_a_loss_is_told_once_to_an_idle_query(
    start: Start, sync_client: txnclient.sync.Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    other = f"{topic}-other"
    for name in (topic, other):
        sync_client.create_topic(name)
        send(sync_client, name, [b"read"])
    query = start(topics=f"{topic},{other}", failOnDataLoss="false")
    assert len(query.next() or ()) == 2
    sync_client.delete_topic(other)
    assert [query.next() for _ in range(3)] == [None] * 3
    assert [other in record.getMessage() for record in caplog.records] == [True]


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
    monkeypatch.setattr("pyspark_txnstore.source.cuts.client_of", lambda url, timeout_s: client)
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


def test_the_last_topic_of_a_pattern_is_a_loss_like_the_others(
    start: Start, service: Service, sync_client: txnclient.sync.Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """▲ There is no cut of no topic: a query would wait, and `availableNow` end well, with rows that nobody has
    read."""
    a = f"{topic}-a"
    sync_client.create_topic(a)
    send(sync_client, a, [b"read"])
    query = start(topicsPattern=f"{topic}-.*")
    assert values(query.next()) == [b"read"]
    send(sync_client, a, [b"unread"])
    sync_client.delete_topic(a)
    for ask in (query.next, query.available_now):
        with pytest.raises(DataTrimmed, match=f"{a}: read so far, and now deleted or not asked for"):
            ask()
        query.restart()
    begins = {"service.url": service.url, "topicsPattern": f"{topic}-.*", "startingOffsets": query.offsets[-1]}
    with pytest.raises(DataTrimmed, match=f"{a}: read so far"):
        BatchReader(SourceOptions.parse(begins, use="read"), SCHEMA).partitions()
    query.restart(failOnDataLoss="false")
    assert [query.next(), query.next(), query.available_now()] == [None, None, []]
    assert [a in record.getMessage() for record in caplog.records] == [True]
    query.restart()
    sync_client.create_topic(a)
    send(sync_client, a, [b"new"])
    assert values(query.next()) == [b"new"]


@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_query_gets_over_a_planned_batch_of_a_topic_that_is_deleted(
    start: Start,
    sync_client: txnclient.sync.Client,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    is_made_again: bool,
) -> None:
    """▲ Each restart begins with that batch. The layout of the former topic is never reached by the one made again."""
    a, b = (f"{topic}-{letter}" for letter in "ab")
    for one in (a, b):
        sync_client.create_topic(one)
    sync_client.split(sync_client.describe_topic(b).active[0].name)
    query = start(topics=f"{a},{b}")
    for some in ([b"first"], [b"second"]):
        send(sync_client, a, some)
        send(sync_client, b, some)
        assert values(query.next()) == some * 2
    sync_client.delete_topic(b)
    if is_made_again:
        sync_client.create_topic(b)
        send(sync_client, b, [b"third"])
    query.restart()
    with pytest.raises(DataTrimmed, match=f"{b}: in the checkpoint's last batch, but deleted since"):
        query.replay(1)
    query.restart(failOnDataLoss="false")
    assert values(query.replay(1)) == [b"second"]
    assert f"{b}: in the checkpoint's last batch" in caplog.text
    assert (values(query.next()) == [b"third"]) if is_made_again else (query.next() is None)


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


@pytest.mark.parametrize("limit", [{}, {"maxEntriesPerTrigger": "1000"}])
def test_a_topic_that_joins_is_read_as_far_as_it_is_kept(
    start: Start, sync_client: txnclient.sync.Client, topic: str, limit: dict[str, str]
) -> None:
    a, b = f"{topic}-a", f"{topic}-b"
    sync_client.create_topic(a)
    send(sync_client, a, [b"read"])
    query = start(topicsPattern=f"{topic}-[ab]", **limit)
    assert values(query.next()) == [b"read"]
    query.reader.stop()  # so it is not read before retention has taken some
    sync_client.create_topic(b)
    send(sync_client, b, [b"trimmed"])
    outgrow(sync_client, b, behind=sync_client.snapshot(b).segments[sync_client.describe_topic(b).active[0].path].end)
    query.restart()
    found = []
    while (batch := query.next()) is not None:
        found += values(batch)
    assert found
    assert b"trimmed" not in found


@pytest.mark.parametrize("limit", [{}, {"maxEntriesPerTrigger": "100"}])
def test_what_only_an_aborted_transaction_held_back_is_no_loss(
    start: Start, sync_client: txnclient.sync.Client, topic: str, limit: dict[str, str]
) -> None:
    """It was open at a batch's end and aborted later; retention took what had been read, then something new came."""
    sync_client.create_topic(topic)
    (parent,) = sync_client.describe_topic(topic).active
    doomed = sync_client.begin()
    send(sync_client, topic, [b"doomed"], doomed)
    send(sync_client, topic, [b"read"])
    sync_client.split(parent.name)
    query = start(**limit)
    assert values(query.next()) == [b"read"]
    doomed.abort()
    end = sync_client.snapshot(topic).segments[parent.path].end
    sync_client.update_topic(topic, retention_ms=1)

    def is_gone() -> bool:
        return not list(sync_client.scan_entries(parent.path, after=EARLIEST, end=end, trimmed="skip"))

    wait_until(is_gone, "retention to take the parent", within_s=120.0)
    send(sync_client, topic, [b"new"])
    assert values(query.next()) == [b"new"]
    query.restart()
    assert values(query.replay(1)) == [b"new"]
    assert query.next() is None


def test_a_transaction_that_stays_open_makes_no_batch_read_everything_again(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """Another one is open at each batch's end, and commits before the next."""
    sync_client.create_topic(topic)
    long = sync_client.begin(timeout=300)
    send(sync_client, topic, [b"long"], long)
    query = start()
    read: list[int] = []
    waiting: txnclient.sync.Transaction | None = None
    for step in range(5):
        following = sync_client.begin()
        send(sync_client, topic, [b"short"], following)
        send(sync_client, topic, numbered(f"plain{step}-", 50))
        if waiting is not None:
            waiting.commit()
        waiting = following
        batch = values(query.next())
        assert batch.count(b"short") == (step > 0)
        assert len(batch) == 50 + (step > 0)
        read.append(entries_in(sync_client, query.partitions(step)))
    assert read == [52, *[51 + 1] * 4]
    long.abort()


def entries_in(client: txnclient.sync.Client, parts: Iterable[Any]) -> int:
    """That the tasks of these partitions read."""
    ranges = [(one.segment, Position.parse(one.after), Position.parse(one.through)) for one in parts]
    return sum(
        len(page) for segment, after, end in ranges for page in client.scan_entries(segment, after=after, end=end)
    )


def test_min_partitions_parts_large_segments_and_loses_nothing(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    sync_client.create_topic(topic)
    send(sync_client, topic, numbered("a", 40))
    query = start(minPartitions="4")
    assert values(query.next()) == numbered("a", 40)
    assert len(query.partitions(0)) == 4
    assert len(query.replay(0)) == 40


def test_min_partitions_part_what_is_read_again_too(
    start: Start, sync_client: txnclient.sync.Client, topic: str
) -> None:
    """What a transaction wrote before the batch in which it is shown, and what has come since, are of one segment."""
    sync_client.create_topic(topic)
    query = start(minPartitions="4")
    with sync_client.transaction() as txn:
        send(sync_client, topic, numbered("a", 40), txn)
        send(sync_client, topic, [b"between"])
        assert values(query.next()) == [b"between"]
    send(sync_client, topic, [b"since"])
    assert values(query.next()) == [*numbered("a", 40), b"since"]
    assert len(query.partitions(1)) == 4


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


@pytest.mark.parametrize("columns", ["value", "ledger_id"])
@pytest.mark.parametrize("splits", [0, 1])
def test_a_snapshot_of_which_nothing_is_kept_is_refused(
    service: Service, sync_client: txnclient.sync.Client, topic: str, columns: str, splits: int
) -> None:
    """▲ A topic was deleted and made again: its snapshot would look empty."""
    sync_client.create_topic(topic)
    with sync_client.producer(topic) as producer:
        producer.send_many([b"a", b"b"])
    if splits:
        sync_client.split(next(iter(sync_client.describe_topic(topic).active)).path)
    cut = sync_client.snapshot(topic)
    sync_client.delete_topic(topic, force=True)
    sync_client.create_topic(topic)
    options = {"service.url": service.url, "topic": topic, "snapshot": cut.to_json(), "columns": columns}
    source = DefaultSource(options=options)
    reader = source.reader(source.schema())
    with pytest.raises(DataTrimmed, match=f"{topic}: nothing in the snapshot is kept any more"):
        reader.partitions()
    loose = DefaultSource(options={**options, "failOnDataLoss": "false"}).reader(source.schema())
    assert [rows for part in loose.partitions() for rows in loose.read(part)] == []
