"""The streaming source and a real cluster, batch by batch: cuts, limits, layouts, losses (SCENARIOS X2, DESIGN §10)."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pytest

import txnclient.sync
from pyspark_txnstore.shared.options import SourceOptions
from tests.spark.micro_batches import Row, Start, commit, numbered, send, values
from txnclient import EntryHead
from txnwire.errors import InvalidArgument


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


@pytest.mark.parametrize(
    ("before", "then"), [("read_committed", "read_uncommitted"), ("read_uncommitted", "read_committed")]
)
def test_a_checkpoint_is_refused_at_the_other_isolation(
    start: Start, sync_client: txnclient.sync.Client, topic: str, before: str, then: str
) -> None:
    """▲ Or what is open there would come by half, or twice. So is its offset where another query begins or ends."""
    sync_client.create_topic(topic)
    txn = sync_client.begin()
    send(sync_client, topic, [b"open"], txn)
    send(sync_client, topic, [b"plain"])
    query = start(isolationLevel=before)
    query.next()
    send(sync_client, topic, [b"rest"], txn)
    txn.commit()
    query.restart(isolationLevel=then)
    refused = f"with isolationLevel {before}, and this one has {then}"
    with pytest.raises(InvalidArgument, match=refused):
        query.next()
    with pytest.raises(InvalidArgument, match=refused):
        query.replay(0)
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(InvalidArgument, match=refused):
            SourceOptions.parse(
                {"service.url": "txn://a:1", "topic": topic, "isolationLevel": then, option: query.offsets[-1]},
                use="read",
            )
    query.restart(isolationLevel=before)
    assert b"rest" in values(query.next())


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


@pytest.mark.parametrize(
    "limit", [{"maxEntriesPerTrigger": "7"}, {"maxBytesPerTrigger": "1k"}, {"maxRowsPerTrigger": "7"}]
)
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
    if "maxBytesPerTrigger" not in limit:
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


@pytest.mark.parametrize("begin", [{}, {"startingTimestamp": "1"}])
def test_where_a_query_begins_is_found_by_a_head_of_each_segment(
    start: Start,
    sync_client: txnclient.sync.Client,
    topic: str,
    begin: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """▲ Brokers read whole entries for heads: of a page of thousands that would be much."""
    sync_client.create_topic(topic, segments=2, autoscale="off")
    send(sync_client, topic, numbered("a", 40))
    told: list[int] = []
    scan = txnclient.sync.Client.scan_entries

    def counted(*args: Any, **options: Any) -> Iterator[list[EntryHead]]:
        for page in scan(*args, **options):
            told.append(len(page))
            yield page

    monkeypatch.setattr(txnclient.sync.Client, "scan_entries", counted)
    start(**begin).reader.initialOffset()
    assert told == [1, 1]
