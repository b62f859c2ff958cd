"""Ownership changes hands: SCENARIOS "Recovery", and what a paused or dead owner leaves behind."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from segments.broker.broker import Broker
from segments.ledger.ledger import LedgerFailed
from segments.ledger.sidecars import decode_sidecar
from segments.log.ledgers.retention import Retention
from segments.log.sends.dedup import Dedup
from segments.log.sends.sending import SendReply
from segments.owner.take_over import _apply_decisions, _scan
from tests.segments.brokering import Cluster
from tests.segments.gates import GatedLedgers, GatedStore, gate_stores, is_clean_up
from tests.segments.owner.owner_clients import connected
from tests.waiting import until
from txnstore import keys, records
from txnstore.records import AbortedRecord, LedgerRecord
from txnstore.store import Commit, Delete
from txnwire.entry import OutgoingMessage, encode_entry
from txnwire.errors import DataCorrupt, NotOwner
from txnwire.ids import EARLIEST, Position, TxnId
from watchers.outcomes import Decision
from watchers.recovery import SegmentState
from watchers.visibility import AbortedKey, TransactionBuffer


async def test_r1_after_restarts_committed_is_seen_aborted_is_not_and_open_holds_at_its_first_entry(
    cluster: Cluster,
) -> None:
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    producer = await client.producer(segment)
    committed, aborted, still_open = [await cluster.begin() for _ in range(3)]
    for name, txn in [("c", committed), ("a", aborted), ("c2", committed)]:
        await producer.send(name, txn=txn)
    await producer.send("plain")
    await producer.send("o", txn=still_open)
    await producer.send("o2", txn=still_open)
    await producer.send("behind")
    await cluster.commit(committed)
    await cluster.abort(aborted)
    await cluster.collect(committed)
    await cluster.collect(aborted)

    for crash in (True, False, True):
        await (node.crash() if crash else node.close())
        node, client = await connected(cluster)
        reader = await client.reader(segment)
        await reader.wait("c", "c2", "plain")
        [(txn, position)] = (await node.broker.segment(segment)).statistics().pinning
        assert (txn, position) == (still_open, Position(1, 4))
    producer = await client.producer(segment)
    await producer.send("o3", txn=still_open)
    await cluster.commit(still_open)
    await reader.wait("c", "c2", "plain", "o", "o2", "behind", "o3")


@pytest.mark.parametrize("decided", ["COMMITTED", "ABORTED"])
async def test_a_decision_made_while_nobody_owns_the_segment_is_finished_by_the_next_owner(
    cluster: Cluster, decided: str
) -> None:
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    producer = await client.producer(segment)
    txn = await cluster.begin()
    await producer.send("m", txn=txn)
    await producer.send("plain")
    await node.crash()
    await cluster.end(txn, decided)
    node, client = await connected(cluster)
    await (await client.reader(segment)).wait(*(["m"] if decided == "COMMITTED" else []), "plain")
    await cluster.collect(txn)
    await node.close()
    node, client = await connected(cluster)
    await (await client.reader(segment)).wait(*(["m"] if decided == "COMMITTED" else []), "plain")


async def test_r2_aborted_is_filtered_while_its_durable_record_hangs(cluster: Cluster) -> None:
    gate_stores(cluster)
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    store: GatedStore = node.store  # type: ignore[assignment]
    producer, reader = await client.producer(segment), await client.reader(segment)
    store.hold(is_clean_up)
    txn = await cluster.begin()
    await producer.send("aborted", txn=txn)
    await cluster.abort(txn)
    await producer.send("sentinel")
    await reader.wait("sentinel")
    await until(lambda: store.waiting)
    await node.crash()

    node = await cluster.start()
    store = node.store  # type: ignore[assignment]
    store.hold(is_clean_up)
    client = await cluster.connect(node)
    await (await client.reader(segment)).wait("sentinel")
    store.open()
    await cluster.wait_no_ops(txn)


async def test_r3_an_aborted_record_stays_as_long_as_its_data(cluster: Cluster) -> None:
    """Of a transaction, and of a writer of a named one that did not count, over several owners, headers collected."""
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    producer, (aborted, named) = await client.producer(segment), [await cluster.begin() for _ in range(2)]
    await producer.send("aborted", txn=aborted)
    await producer.send("of another writer", txn=named, writer=2)
    await producer.send("committed", txn=named, writer=1)
    await cluster.abort(aborted)
    await cluster.commit(named, writers=["1"])
    for txn in (aborted, named):
        await cluster.collect(txn)
    served = node.broker.segments[segment]
    await served.keep(Retention())
    expected: dict[AbortedKey, Position] = {(aborted, None): Position(1, 0), (named, 2): Position(1, 1)}
    assert await aborted_in_etcd(cluster, segment) == expected
    await served.roll()
    await served.keep(Retention())
    assert await aborted_in_etcd(cluster, segment) == {}
    await (await client.reader(segment)).wait("committed")
    for number in range(3):
        await node.close()
        node, client = await connected(cluster)
        await (await node.broker.segment(segment)).keep(Retention())
        sidecar = await node.ledgers.read_sidecar(segment, 1)
        assert sidecar is not None
        assert decode_sidecar(sidecar, 1, "the sidecar") == expected
        reader = await client.reader(segment)
        await (await client.producer(segment, f"sentinel-{number}")).send("sentinel")
        await reader.wait("committed", *["sentinel"] * (number + 1))


async def aborted_in_etcd(cluster: Cluster, segment: str) -> dict[AbortedKey, Position | None]:
    prefix = keys.aborted_records(segment)
    found = (await cluster.store.range(prefix, keys.prefix_end(prefix))).records
    decoded = {record.key: records.decode(AbortedRecord, record.value, key=record.key) for record in found}
    return {
        keys.aborted_parts(key): None if one.max_position is None else Position(*one.max_position)
        for key, one in decoded.items()
    }


Held = Callable[[Commit], bool]


def lists_ledger(segment: str, *, made: bool) -> Held:
    """Before the new owner's ledger is made, or (`made`) once its file is there."""

    def held(commit: Commit) -> bool:
        lists = [
            records.decode(LedgerRecord, put.value, key=put.key)
            for put in commit.puts
            if put.key == keys.ledger(segment)
        ]
        return any((one.made == one.ledgers[-1].ledger_id) is made for one in lists)

    return held


@pytest.mark.parametrize("lost", ["before its ledger is made", "as its ledger is listed", "before its state is read"])
async def test_r4_losing_ownership_during_recovery_fails_the_waiters_and_leaks_no_watch(
    memory_cluster: Cluster, lost: str
) -> None:
    """Nor a file: counted while the broker goes on, and before it tries again."""
    cluster = memory_cluster
    gate_stores(cluster)
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=replace(cluster.settings, recover_wait_s=30.0))
    store: GatedStore = node.store  # type: ignore[assignment]
    broker: Broker = node.broker
    await broker.segment(segment)
    assert (loading(broker), open_for_writing(cluster.data_dir)) == (0, 1)
    if lost == "before its state is read":
        store.hold_reads(lambda read: keys.watermark(segment) in read)
    else:
        store.hold(lists_ledger(segment, made=lost == "as its ledger is listed"))
    await cluster.store.commit(Commit(deletes=(Delete(keys.owner(segment)),)))  # lost, then taken over anew
    await until(lambda: store.waiting)
    kept_for = int(lost == "before its state is read")
    assert (loading(broker), open_for_writing(cluster.data_dir)) == (kept_for, int(lost != "before its ledger is made"))
    waiting = [asyncio.ensure_future(broker.segment(segment)) for _ in range(3)]
    await asyncio.sleep(0)
    await cluster.store.commit(Commit(deletes=(Delete(keys.owner(segment)),)))
    store.open()
    store.hold(lambda commit: any(put.key == keys.owner(segment) for put in commit.puts))  # the next try
    for future in waiting:
        with pytest.raises(NotOwner):
            await future
    assert (loading(broker), open_for_writing(cluster.data_dir)) == (0, 0)
    store.open()
    await broker.segment(segment)
    assert (loading(broker), open_for_writing(cluster.data_dir)) == (0, 1)


def loading(broker: Broker) -> int:
    """Segments that the decision watch keeps decisions for until they have loaded."""
    early = broker._shared.decisions.early
    return len(early._reading) + len(early._expecting)


def open_for_writing(folder: Path) -> int:
    """Files below `folder` that this process could write to."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith(f"{folder}/"):
                found += fcntl.fcntl(int(fd), fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    return found


async def test_r5_a_corrupt_tail_ends_recovery_with_a_typed_error(cluster: Cluster) -> None:
    one, two = await cluster.create_topic(segments=2)
    node, client = await connected(cluster)
    producer = await client.producer(one)
    for number in range(20):
        await producer.send(f"{number}" + "x" * 100)
    await node.crash()
    [file] = [path for path in sorted(cluster.data_dir.rglob("*")) if _is_ledger_of(path, one)]
    damaged = bytearray(file.read_bytes())
    damaged[len(damaged) // 2] ^= 0xFF
    file.write_bytes(damaged)

    node, client = await connected(cluster)
    with pytest.raises(DataCorrupt) as error:
        await client.producer(one)
    assert str(file.name) in str(error.value)
    assert one in node.broker.statistics().failed
    await (await client.producer(two)).send("the others go on")


def _is_ledger_of(path: Path, segment: str) -> bool:
    descriptor = segment.rpartition("/")[2]
    return path.is_file() and descriptor in str(path) and path.stat().st_size > 1_000


async def test_l4_an_op_without_an_entry_does_not_keep_its_transaction(cluster: Cluster) -> None:
    cluster.make_ledgers = GatedLedgers  # type: ignore[assignment]
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    ledgers: GatedLedgers = node.ledgers  # type: ignore[assignment]
    producer = await client.producer(segment)
    txn = await cluster.begin()
    ledgers.hold()
    producer.send_nowait("never stored", txn=txn)
    await until(lambda: ledgers.waiting)
    assert len(await cluster.ops(txn)) == 1
    await node.crash()

    node, client = await connected(cluster)
    reader = await client.reader(segment)
    await cluster.commit(txn)
    await cluster.wait_no_ops(txn)
    await (await client.producer(segment, "p2")).send("sentinel")
    assert reader.values in ([], ["sentinel"])
    await reader.wait("sentinel")


async def test_a_graceful_restart_leaves_nothing_to_recover_and_serves_at_once(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    producer = await client.producer(segment)
    for number in range(50):
        await producer.send(str(number))
    await node.close()
    assert await cluster.store.get(keys.owner(segment)) is None
    assert await cluster.store.get(keys.broker("b1")) is None
    node, client = await connected(cluster)
    reader = await client.reader(segment)
    await reader.wait(*map(str, range(50)))
    assert (await client.producer(segment)).last == 49


async def test_a_restarted_broker_does_not_wait_for_its_old_lease(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    settings = replace(cluster.settings, lease_ttl_s=60.0)
    node = await cluster.start(settings=settings)
    client = await cluster.connect(node)
    await (await client.producer(segment)).send("m")
    await node.crash()
    async with asyncio.timeout(30.0):
        node = await cluster.start(settings=settings)
        client = await cluster.connect(node)
        await (await client.reader(segment)).wait("m")


async def test_another_broker_claims_what_a_dead_one_leaves(cluster: Cluster) -> None:
    segments = await cluster.create_topic(segments=4)
    one = await cluster.start("b1")
    await until(lambda: len(one.broker.segments) == 4)
    two = await cluster.start("b2")
    clients = await cluster.connect(one)
    for segment in segments:
        await (await clients.producer(segment)).send("m")
    await one.crash()
    await until(lambda: len(two.broker.segments) == 4, within_s=15)
    client = await cluster.connect(two)
    for segment in segments:
        await (await client.reader(segment)).wait("m")


async def test_a_lost_lease_ends_everything_and_the_broker_comes_back_under_new_epochs(cluster: Cluster) -> None:
    segments = await cluster.create_topic(segments=2)
    node, client = await connected(cluster)
    producers = [await client.producer(segment) for segment in segments]
    for producer in producers:
        await producer.send("before")
    epochs = {path: one.epoch for path, one in node.broker.segments.items()}
    registration = await cluster.store.get(keys.broker("b1"))
    assert registration is not None
    await cluster.store.revoke_lease(registration.lease)
    await until(lambda: all(producer.closed for producer in producers))
    await until(lambda: len(node.broker.segments) == 2)
    for segment in segments:
        assert (await node.broker.segment(segment)).epoch > epochs[segment]
        await (await client.producer(segment)).send("after", sequence_id=1, previous=0)
        await (await client.reader(segment)).wait("before", "after")


async def test_segments_move_to_a_broker_that_joins_and_stay_readable(cluster: Cluster) -> None:
    settings = replace(cluster.settings, settle_s=0.1)
    segments = await cluster.create_topic(segments=16)
    one = await cluster.start("b1", settings=settings)
    await until(lambda: len(one.broker.segments) == 16)
    client = await cluster.connect(one)
    for segment in segments:
        await (await client.producer(segment)).send("m")
    two = await cluster.start("b2", settings=settings)
    await until(lambda: [len(node.broker.segments) for node in (one, two)] == [8, 8], "the last of the moves")
    for segment in segments:
        node = one if segment in one.broker.segments else two
        await (await (await cluster.connect(node)).reader(segment)).wait("m")


async def test_an_owner_key_taken_away_ends_the_segment_at_once(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    node, client = await connected(cluster)
    producer, reader = await client.producer(segment), await client.reader(segment)
    epoch = (await node.broker.segment(segment)).epoch
    await cluster.store.commit(Commit(deletes=(Delete(keys.owner(segment)),)))
    await until(lambda: producer.closed and reader.closed)
    assert isinstance(producer.closed, NotOwner)
    with pytest.raises(NotOwner):
        await producer.send("too late")
    again = await client.producer(segment)
    await again.send("under a new epoch")
    assert (await node.broker.segment(segment)).epoch > epoch


async def test_rolling_under_load_loses_and_repeats_nothing(cluster: Cluster) -> None:
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=replace(cluster.settings, ledger_roll_bytes=5_000, checkpoint_entries=7))
    client = await cluster.connect(node)
    producers = [await client.producer(segment, f"p{number}") for number in range(3)]
    consumer = await cluster.subscribe(client, segment, permits=100_000)
    reader = await client.reader(segment)
    txns = [await cluster.begin() for _ in range(4)]
    waiting = [
        producer.send_nowait(f"{producer.name}-{number}", txn=([*txns, None])[number % 5])
        for number in range(60)
        for producer in producers
    ]
    await asyncio.gather(*waiting)
    for number, txn in enumerate(txns):
        await (cluster.abort(txn) if number == 1 else cluster.commit(txn))
    expected = {f"p{p}-{number}" for number in range(60) for p in range(3) if number % 5 != 1}
    await until(lambda: len(reader.values) == len(expected))
    assert set(reader.values) == expected
    assert reader.values == consumer.values
    await consumer.ack(consumer.messages[-1], cumulative=True)
    await node.close()
    node, client = await connected(cluster)
    producer = await client.producer(segment, "p1")
    assert producer.last == 59
    await (await client.reader(segment)).wait(*reader.values)
    consumer = await cluster.subscribe(client, segment, epoch=2)
    await producer.send("behind what was acked")
    await consumer.wait("behind what was acked")


async def test_a_segment_that_is_lost_again_and_again_gives_its_cache_back_each_time(memory_cluster: Cluster) -> None:
    """Or the share of every other one shrinks with it, until nothing is cached any more."""
    [segment] = await memory_cluster.create_topic()
    broker = (await memory_cluster.start()).broker
    caches = broker._shared.caches
    for _ in range(3):
        await until(lambda: segment in broker.segments)
        served = broker.segments[segment]
        assert len(caches) == 1
        served.lost(LedgerFailed("the disk has failed"))
        assert len(caches) == 0


async def test_producers_are_forgotten_by_a_segment_that_never_rolls(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    settings = replace(cluster.settings, housekeeping_s=0.02, producer_idle_s=0.01)
    node = await cluster.start(settings=settings)
    client = await cluster.connect(node)
    for number in range(5):
        await (await client.producer(segment, f"p{number}")).send("x")
    await client.close()
    served = node.broker.segments[segment]
    await until(lambda: served.statistics().producers == 0)
    assert [info.ledger_id for info in served.ledgers.record.ledgers] == [1]


async def turns_of(work: Coroutine[None, None, object]) -> int:
    """How many turns of the event loop others have while `work` goes on."""
    task, turns = asyncio.ensure_future(work), 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    await task
    return turns


async def test_others_have_their_turns_while_many_decisions_are_applied() -> None:
    """A broker that was away for long finds every transaction it knew decided."""
    decisions = [Decision(TxnId(1, number), False, number) for number in range(1, 10_001)]
    state = SegmentState(
        segment="public/default/t/0000-ffff-0",
        owner_epoch=1,
        revision=1,
        watermark=EARLIEST,
        watermark_record=None,
        aborted={},
        written=[decision.txn_id for decision in decisions],
        ack_ops={},
        cursor_blocks={},
        decisions=decisions,
        open_transactions=[],
        absent_headers=[],
    )
    assert await turns_of(state.transaction_buffer(last_confirmed=EARLIEST, fenced_below=EARLIEST)) >= 10
    applied: list[Decision] = []
    segment: Any = SimpleNamespace(decide=applied.append)
    assert await turns_of(_apply_decisions(segment, state)) >= 10
    assert applied == decisions


async def test_others_have_their_turns_while_small_entries_are_scanned() -> None:
    """One read of the tail holds tens of thousands of them."""
    entry = encode_entry([OutgoingMessage(b"v")], producer="p", incarnation=1, sequence_id=1, publish_time_ms=1)
    tail = [(Position(1, number), entry) for number in range(20_000)]

    async def last_footer() -> tuple[Position, None]:
        return EARLIEST, None

    async def read(first: Position, last: Position, *, max_bytes: int) -> list[tuple[Position, bytes]]:
        return tail

    async def write_closed_footer(footer: bytes) -> None:
        assert footer

    ledgers: Any = SimpleNamespace(
        last_confirmed=tail[-1][0],
        next_after=lambda position: Position(1, position.entry_id + 1),
        last_footer=last_footer,
        read=read,
        write_closed_footer=write_closed_footer,
    )
    buffer, dedup = TransactionBuffer("s"), Dedup[SendReply](idle_s=60.0)
    assert await turns_of(_scan(ledgers, EARLIEST, buffer, dedup, now_s=0.0)) >= 20
