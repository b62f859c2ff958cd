"""Retention at work: aborted records move into sidecars, ledgers are trimmed, and whoever stops halfway is followed."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from segments.ledger.file_ledger import FileLedgerStore
from segments.log.housekeeping import Housekeeping
from segments.log.retention import Retention
from segments.log.settings import BrokerSettings
from tests.segments.brokering import TOPIC, Client, Cluster
from tests.segments.changing import controlling
from tests.segments.owner.test_sealing import begin
from tests.segments.stopping import Steps, StoppingLedgers, StoppingStore
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import LedgerInfo, LedgerRecord, SubscriptionRecord, TopicRecord
from txnstore.store import Commit, MetadataStore, Put
from txnwire.clock import SystemClock
from txnwire.errors import DataCorrupt, InvalidArgument, TxnError
from txnwire.ids import EARLIEST, Position
from txnwire.proto import txn_pb2 as pb

ONE_ENTRY_EACH = BrokerSettings(
    lease_ttl_s=60.0,
    claim_retry_s=0.05,
    ledger_roll_bytes=1,
    housekeeping_s=0.02,
    roll_least_age_ms=1,
    cursor_flush_s=0.01,
)

QUIET = replace(ONE_ENTRY_EACH, ledger_roll_bytes=1 << 30, housekeeping_s=3600.0)


async def set_policies(cluster: Cluster, **policies: Any) -> None:
    found = await cluster.store.get(keys.topic(TOPIC.path))
    assert found is not None
    record = records.decode(TopicRecord, found.value, key=found.key)
    changed = msgspec.structs.replace(record, policies=policies)
    await cluster.store.commit(Commit(puts=(Put(found.key, records.encode(changed)),)))


async def ledger_list(cluster: Cluster, segment: str) -> LedgerRecord:
    found = await cluster.store.get(keys.ledger(segment))
    assert found is not None
    return records.decode(LedgerRecord, found.value, key=found.key)


async def aborted_in_store(cluster: Cluster, segment: str) -> int:
    prefix = keys.aborted_records(segment)
    return len((await cluster.store.range(prefix, keys.prefix_end(prefix))).records)


def files(cluster: Cluster, segment: str, suffix: str = "ledger") -> list[int]:
    return sorted(int(path.stem) for path in (cluster.data_dir / "ledgers" / segment).glob(f"*.{suffix}"))


async def settle(turns: int = 3) -> None:
    """Let a few rounds of housekeeping pass."""
    for _ in range(turns):
        await asyncio.sleep(0.002)


async def write(cluster: Cluster, client: Client, segment: str, rounds: int) -> None:
    """Per round one aborted, one committed and one plain message, each in a ledger of its own."""
    producer = await client.producer(segment, f"p{len(cluster.clients)}")
    for number in range(rounds):
        for kind in ("aborted", "committed"):
            txn = await cluster.begin()
            await producer.send(f"{kind}-{number}", txn=txn)
            await (cluster.abort(txn) if kind == "aborted" else cluster.commit(txn))
            await cluster.wait_no_ops(txn)
        await producer.send(f"plain-{number}")


def expected(rounds: int) -> list[str]:
    return [f"{kind}-{number}" for number in range(rounds) for kind in ("committed", "plain")]


async def read_to_sentinel(client: Client, segment: str, name: str) -> list[str]:
    reader = await client.reader(segment)
    await (await client.producer(segment, name)).send(f"sentinel {name}")
    await until(lambda: f"sentinel {name}" in reader.values, what="the sentinel")
    return [value for value in reader.values if not value.startswith("sentinel")]


async def test_r3_aborted_records_leave_etcd_for_sidecars_and_are_aborted_all_the_same(
    memory_cluster: Cluster,
) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=ONE_ENTRY_EACH)
    client = await cluster.connect(node)
    await write(cluster, client, segment, 4)

    async def moved() -> bool:
        return await aborted_in_store(cluster, segment) == 0

    await until(moved, what="every aborted record in a sidecar")
    assert files(cluster, segment, "sidecar")
    listed = {info.ledger_id: info.aborted for info in (await ledger_list(cluster, segment)).ledgers}
    assert [ledger_id for ledger_id, aborted in listed.items() if aborted] == files(cluster, segment, "sidecar")
    assert sum(listed.values()) == 4
    assert node.broker.segments[segment].statistics().keeping.records_moved == 4
    assert await read_to_sentinel(client, segment, "s1") == expected(4)
    await node.crash()
    node = await cluster.start(settings=ONE_ENTRY_EACH)
    client = await cluster.connect(node)
    assert await read_to_sentinel(client, segment, "s2") == expected(4)
    assert await aborted_in_store(cluster, segment) == 0


async def test_r3_each_loser_of_a_transaction_leaves_etcd_for_the_sidecar_and_goes_with_its_ledger(
    memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where their records do not go in one commit: one that is left behind would be nobody's to delete."""
    monkeypatch.setattr("segments.log.housekeeping.RECORDS_AT_ONCE", 1)
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=QUIET)
    client = await cluster.connect(node)
    producer, txn = await client.producer(segment), await cluster.begin()
    for writer in (1, 2, 3):
        await producer.send(f"of {writer}", txn=txn, writer=writer)
    await cluster.commit(txn, writers=["1"])
    await cluster.wait_no_ops(txn)
    assert await aborted_in_store(cluster, segment) == 2
    served = node.broker.segments[segment]
    await served.roll()
    await served.keep(Retention())
    assert await aborted_in_store(cluster, segment) == 0
    assert served.statistics().keeping.records_moved == 2
    assert await read_to_sentinel(client, segment, "s1") == ["of 1"]
    await node.crash()
    node = await cluster.start(settings=QUIET)
    client = await cluster.connect(node)
    assert await read_to_sentinel(client, segment, "s2") == ["of 1"]
    served = node.broker.segments[segment]
    await served.keep(Retention(ms=1))
    assert served.buffer.aborted_records() == {}


async def test_no_sidecar_beside_a_ledger_that_is_not_decided(memory_cluster: Cluster) -> None:
    """▲ It is immutable: what is aborted later would find no room in it, and stay in etcd."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=QUIET)
    served_by = await cluster.connect(node)
    producer = await served_by.producer(segment)
    still_open, aborted = await cluster.begin(), await cluster.begin()
    await producer.send("open", txn=still_open)
    await producer.send("aborted", txn=aborted)
    await cluster.abort(aborted)
    await cluster.wait_no_ops(aborted)
    served = node.broker.segments[segment]
    await served.roll()
    await served.keep(Retention())
    assert files(cluster, segment, "sidecar") == []
    assert await aborted_in_store(cluster, segment) == 1
    await cluster.abort(still_open)
    await cluster.wait_no_ops(still_open)

    async def moved() -> bool:
        await served.keep(Retention())
        return await aborted_in_store(cluster, segment) == 0

    await until(moved, what="both records in the sidecar")
    assert len(files(cluster, segment, "sidecar")) == 1
    await node.crash()
    again = await cluster.connect(await cluster.start(settings=QUIET))
    assert await read_to_sentinel(again, segment, "s") == []


@pytest.mark.parametrize("damage", ["gone", "flipped"])
async def test_a_sidecar_that_is_listed_and_missing_or_damaged_is_corruption(
    memory_cluster: Cluster, damage: str
) -> None:
    """▲ Its records are gone from etcd: served without it, what was aborted would be read as committed."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=ONE_ENTRY_EACH)
    client = await cluster.connect(node)
    await write(cluster, client, segment, 1)

    async def moved() -> bool:
        return await aborted_in_store(cluster, segment) == 0

    await until(moved, what="the aborted record in a sidecar")
    await node.crash()
    [path] = (cluster.data_dir / "ledgers" / segment).glob("*.sidecar")
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-6] + b"000000")
    client = await cluster.connect(await cluster.start(settings=ONE_ENTRY_EACH))
    with pytest.raises(DataCorrupt, match="sidecar"):
        await client.reader(segment)


async def test_many_aborts_close_the_open_ledger_early(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    settings = replace(ONE_ENTRY_EACH, ledger_roll_bytes=1 << 30, aborted_in_store=5)
    client = await cluster.connect(await cluster.start(settings=settings))
    await write(cluster, client, segment, 8)

    async def bounded() -> bool:
        return await aborted_in_store(cluster, segment) <= 5

    await until(bounded, what="few aborted records in etcd")
    assert len((await ledger_list(cluster, segment)).ledgers) > 1
    assert await read_to_sentinel(client, segment, "s") == expected(8)


async def test_time_trims_what_is_closed_and_readers_go_on_behind(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=ONE_ENTRY_EACH)
    client = await cluster.connect(node)
    await write(cluster, client, segment, 3)
    slow = await client.reader(segment, permits=1)
    await until(lambda: len(slow.all) == 1)
    await set_policies(cluster, retention_ms=1)
    await until(
        lambda: (
            len(files(cluster, segment)) == 1
            and files(cluster, segment, "footer") == files(cluster, segment)
            and files(cluster, segment, "sidecar") == []
        ),
        what="the open ledger alone is left, with its checkpoint",
    )
    assert await aborted_in_store(cluster, segment) == 0
    served = node.broker.segments[segment]
    await until(lambda: served.statistics().keeping.trimmed_ledgers == 9)
    await set_policies(cluster)
    producer = await client.producer(segment, "after")
    kept = await producer.send("after")
    slow.flow(100)
    await until(lambda: slow.values[-1] == "after", what="the reader jumps to the first that is kept")
    assert slow.values == [slow.values[0], "after"]
    statistics = served.statistics()
    assert statistics.keeping.skipped_entries > 0
    assert statistics.trimmed_below is not None
    assert statistics.trimmed_below <= kept
    # A consumer of a subscription made before, at a position that is gone, and after a restart.
    await node.crash()
    client = await cluster.connect(await cluster.start(settings=ONE_ENTRY_EACH))
    consumer = await cluster.subscribe(client, segment)
    await consumer.wait("after")
    assert (await client.reader(segment)).closed is None


async def test_size_keeps_as_much_as_it_says(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=ONE_ENTRY_EACH)
    client = await cluster.connect(node)
    producer = await client.producer(segment)
    for number in range(10):
        await producer.send(f"{number}" * 500)
    size = next(info.bytes for info in (await ledger_list(cluster, segment)).ledgers if info.bytes)
    await set_policies(cluster, retention_bytes=4 * size)
    await until(lambda: len(files(cluster, segment)) == 5, what="four full ledgers and the open one")
    assert await read_to_sentinel(client, segment, "s") == [f"{number}" * 500 for number in range(6, 10)]


async def test_generations_of_a_range_share_what_is_kept_of_it(memory_cluster: Cluster) -> None:
    """▲ A split does not give a topic its retention once more: the newest keep theirs, the sealed what is left."""
    cluster = memory_cluster
    [parent] = await cluster.create_topic()
    node = await cluster.start(settings=replace(ONE_ENTRY_EACH, producer_idle_s=0.0))
    client = await cluster.connect(node)
    producer = await client.producer(parent)
    for number in range(6):
        await producer.send(f"old {number}")
    size = (await ledger_list(cluster, parent)).ledgers[0].bytes
    await set_policies(cluster, retention_bytes=6 * size)
    await settle()
    assert len(files(cluster, parent)) >= 6
    async with controlling(cluster) as controller:
        children = await controller.split(parent)
    await until(lambda: all(child in node.broker.segments for child in children))
    for child in children:
        below = await client.producer(child)
        for number in range(2):
            await below.send(f"new {number}")
    sealed = node.broker.segments[parent]
    await until(lambda: sealed.ledgers.entries == 2)
    await settle()
    assert sealed.ledgers.entries == 2
    for child in children:
        below = await client.producer(child, "more")
        for number in range(2):
            await below.send(f"new {number}")
    await until(lambda: sealed.ledgers.entries == 0)


async def test_what_is_left_of_a_share_is_asked_of_those_that_came_after_in_the_range(
    memory_store: MemoryStore,
) -> None:
    """Each of thousands of sealed segments would read and parse the lists of all the others, every half minute."""
    topic = "public/default/t"
    kept = LedgerInfo(ledger_id=1, store="file", opened_ms=1, closed_length=5, bytes=300, closed_ms=2)
    lists = {f"{topic}/0000-3fff-7": records.encode(LedgerRecord(ledgers=[kept]))}
    lists |= {f"{topic}/{name}": b"not to be read" for name in ("0000-ffff-0", "8000-ffff-9", "0000-7fff-4")}
    await memory_store.commit(Commit(puts=tuple(Put(keys.ledger(path), value) for path, value in lists.items())))
    segment: Any = SimpleNamespace(path=f"{topic}/0000-7fff-5", ledgers=SimpleNamespace(ended=True), buffer=None)
    keeping = Housekeeping(memory_store, SystemClock(), BrokerSettings(), segment)
    assert (await keeping._with_share_left(Retention(bytes_kept=1000))).bytes_kept == 700


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("stop_behind", [None, 0, 1, 2, 3])
async def test_all_of_a_sealed_segment_is_trimmed_and_its_producers_are_known(
    memory_etcd: MemoryEtcd, memory_store: MemoryStore, tmp_path: Path, stop_behind: int | None, silent: bool
) -> None:
    """▲ L7: they may still ask what of theirs is stored, whoever owns it by then. Steps: the footer, the list, the
    trim, the file."""
    armed = Armed()

    async def make_store() -> MetadataStore:
        return StoppingStore(memory_etcd, armed.steps, counts=armed.counts)

    cluster = Cluster(make_store, memory_store, tmp_path, QUIET)
    cluster.make_ledgers = lambda data_dir: StoppingLedgers(data_dir, armed.steps)
    [parent] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer = await client.producer(parent, "p", 4)
    for number in range(3):
        await producer.send(f"old {number}")
    async with controlling(cluster) as controller:
        await controller.split(parent)
    served = node.broker.segments[parent]
    await until(lambda: served.ledgers.ended and served.buffer.watermark == served.last_confirmed)
    if stop_behind is not None:
        armed.steps.left, armed.steps.silent = armed.steps.taken + stop_behind, silent
    with suppress(TxnError):
        await served.keep(Retention(ms=-1))
    await node.crash()
    armed.steps = Steps()
    node = await cluster.start()
    await until(lambda: parent in node.broker.segments)
    served = node.broker.segments[parent]
    await until(lambda: served.ledgers.ended)
    assert served.last_sequence_id("p", 4) == 2
    await served.keep(Retention(ms=-1))
    assert served.ledgers.entries == 0
    assert files(cluster, parent) == []
    record = await ledger_list(cluster, parent)
    assert [info.closed_length for info in record.ledgers] == [0]
    await served.keep(Retention(ms=-1))
    await node.close()
    node = await cluster.start()
    await until(lambda: parent in node.broker.segments)
    assert node.broker.segments[parent].last_sequence_id("p", 4) == 2
    reader = await (await cluster.connect(node)).reader(parent)
    await until(lambda: reader.ended == "sealed")
    assert reader.values == []
    await cluster.close()


class LaterClock(SystemClock):
    later_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.later_ms


async def test_l7_what_is_sealed_and_may_yet_be_opened_again_keeps_its_footer(memory_cluster: Cluster) -> None:
    """▲ Of a seal that the layout does not have yet nothing is trimmed, whatever the wall clock says: its footer is the
    only one, and a producer that was told "nothing" would store what is stored once more."""
    cluster = memory_cluster
    clock = cluster.clock = LaterClock()
    [parent] = await cluster.create_topic()
    node = await cluster.start(settings=QUIET)
    await (await (await cluster.connect(node)).producer(parent, "p", 4)).send("stored")
    served = node.broker.segments[parent]
    await served.sealing.seal(await begin(cluster, parent))
    await until(lambda: served.buffer.watermark == served.last_confirmed)
    clock.later_ms = int(QUIET.producer_idle_s * 2000)
    await served.keep(Retention(ms=1))
    await node.crash()
    node = await cluster.start(settings=QUIET)
    await until(lambda: parent in node.broker.segments)
    assert node.broker.segments[parent].last_sequence_id("p", 4) == 0


async def test_what_a_subscription_has_not_drained_stays_unless_the_policy_says_so(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=ONE_ENTRY_EACH)
    client = await cluster.connect(node)
    await write(cluster, client, segment, 2)
    consumer = await cluster.subscribe(client, segment)
    await consumer.wait(*expected(2))
    await cluster.create_subscription("never-attached")
    await cluster.create_subscription(
        "behind", record=SubscriptionRecord(type="stream", start={"kind": "latest"}, positions={segment: (99, 0)})
    )
    await set_policies(cluster, retention_ms=1)
    await consumer.ack(*consumer.messages)
    await settle(20)
    await until(lambda: len(files(cluster, segment)) == 7, what="all stay, for whom nobody attached to yet")
    await cluster.store.commit(Commit(puts=(Put(keys.subscription(TOPIC.path, "never-attached"), MARKED),)))
    await until(lambda: len(files(cluster, segment)) <= 1, what="drained by all")
    await write(cluster, client, segment, 1)
    await settle(20)
    await until(lambda: len(files(cluster, segment)) >= 3, what="it has not consumed these")
    await set_policies(cluster, retention_ms=1, trim_undrained=True)
    await until(lambda: len(files(cluster, segment)) <= 1, what="gone over the subscription's head")
    found = node.broker.segments[segment].statistics().subscriptions
    assert [one.backlog for one in found if one.name == "sub"] == [0], "cursors follow"


MARKED = records.encode(SubscriptionRecord(type="stream", start={"kind": "earliest"}, deleting_ms=1))


async def test_an_open_transaction_holds_what_it_wrote(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(await cluster.start(settings=ONE_ENTRY_EACH))
    producer = await client.producer(segment)
    await producer.send("before")
    txn = await cluster.begin()
    held = await producer.send("held", txn=txn)
    for number in range(3):
        await producer.send(f"behind-{number}")
    await set_policies(cluster, retention_ms=1)
    await until(lambda: files(cluster, segment)[0] == held.ledger_id, what="what is before it has gone")
    await cluster.commit(txn)
    await until(lambda: files(cluster, segment)[0] > held.ledger_id, what="and then what it held")


async def test_a_quiet_topic_s_open_ledger_is_closed_by_age(memory_cluster: Cluster) -> None:
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    settings = replace(ONE_ENTRY_EACH, ledger_roll_bytes=1 << 30)
    client = await cluster.connect(await cluster.start(settings=settings))
    await set_policies(cluster, retention_ms=4)
    sent = await (await client.producer(segment)).send("last for long")
    await until(lambda: files(cluster, segment) and files(cluster, segment)[0] > sent.ledger_id)


async def test_l7_a_resend_is_known_after_everything_before_it_was_trimmed_and_two_crashes(
    memory_cluster: Cluster,
) -> None:
    """▲ The newest footer never goes without another: what is known of producers outlives their messages."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    settings = replace(ONE_ENTRY_EACH, housekeeping_s=0.01)
    node = await cluster.start(settings=settings)
    client = await cluster.connect(node)
    producer = await client.producer(segment, "p", 7)
    sent = await producer.send("once")
    await set_policies(cluster, retention_ms=1)
    await until(lambda: files(cluster, segment) and files(cluster, segment)[0] > sent.ledger_id)
    for _ in range(3):
        await node.crash()
        node = await cluster.start(settings=settings)
        client = await cluster.connect(node)
        again = await client.producer(segment, "p", 7)
        assert again.last == 0
        assert await again.send("once", sequence_id=0, previous=-1) == sent


class Armed:
    """Counts the writes of housekeeping, once it is told to begin."""

    def __init__(self) -> None:
        self.steps = Steps()

    def counts(self, commit: Commit) -> bool:
        return any(put.key.startswith(keys.LEDGER) for put in commit.puts) or any(
            b"/aborted/" in delete.key for delete in commit.deletes
        )


@pytest.mark.parametrize("silent", [False, True], ids=["lost", "landed"])
@pytest.mark.parametrize("trimming", [False, True], ids=["sidecars", "trim"])
@pytest.mark.parametrize("stop_behind", range(11))
async def test_a_successor_goes_on_behind_any_step(
    memory_etcd: MemoryEtcd, memory_store: MemoryStore, tmp_path: Path, stop_behind: int, trimming: bool, silent: bool
) -> None:
    """Steps: the roll, the sidecar, its listing, the records' deletion; the checkpoint, the trim, each file's deletion,
    the end of the trim."""
    armed = Armed()

    async def make_store() -> MetadataStore:
        return StoppingStore(memory_etcd, armed.steps, counts=armed.counts)

    cluster = Cluster(make_store, memory_store, tmp_path, QUIET)
    cluster.make_ledgers = lambda data_dir: StoppingLedgers(data_dir, armed.steps)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    await write(cluster, client, segment, 2)
    armed.steps.left, armed.steps.silent = armed.steps.taken + stop_behind, silent
    served = node.broker.segments[segment]
    with suppress(TxnError):
        await served.roll()
        await served.keep(Retention(ms=-1) if trimming else Retention())
    await node.crash()
    armed.steps = Steps()
    client = await cluster.connect(await cluster.start())
    values = await read_to_sentinel(client, segment, "s")
    assert values in ((expected(2), []) if trimming else (expected(2),))

    async def finished() -> bool:
        listed = {info.ledger_id: info.closed_length for info in (await ledger_list(cluster, segment)).ledgers}
        missing = [ledger_id for ledger_id in listed if ledger_id not in files(cluster, segment)]
        if any(listed[ledger_id] != 0 for ledger_id in missing):  # an empty one may never have been created
            return False
        return (
            all(ledger_id in listed for ledger_id in files(cluster, segment))
            and await aborted_in_store(cluster, segment) == 0
        )

    await until(finished, what=f"what was stopped behind step {stop_behind} is finished")
    await cluster.close()


async def snapshot_reader(client: Client, segment: str, *, after: Position | None, end: Position, permits: int) -> Any:
    """As a client reads from one snapshot to another: behind a whole entry, or from the earliest."""
    start = pb.Start(earliest=True)
    if after is not None:
        start = pb.Start(segment=segment, ledger_id=after[0], entry_id=after[1], index=0xFFFF_FFFF, after=True)
    return await client.reader(segment, start=start, end=end, isolation=pb.ISOLATION_SNAPSHOT, permits=permits)


async def test_a_read_between_snapshots_says_what_it_has_missed_and_nothing_else_is_refused(
    memory_cluster: Cluster,
) -> None:
    """Never a part of it: neither at the beginning nor in mid-read, and also after a restart."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    client = await cluster.connect(node := await cluster.start(settings=ONE_ENTRY_EACH))
    producer = await client.producer(segment)
    places = [await producer.send(f"{number}") for number in range(6)]
    slow = await snapshot_reader(client, segment, after=places[0], end=places[5], permits=1)
    await slow.wait("1")
    await set_policies(cluster, retention_ms=1)
    served = node.broker.segments[segment]
    await until(lambda: served.ledgers.trimmed_through == places[5], what="all is trimmed")
    await set_policies(cluster)
    places += [await producer.send(f"{number}") for number in range(6, 8)]
    slow.flow(100)
    await until(lambda: slow.closed is not None)
    assert "trimmed" in str(slow.closed)
    assert slow.values == ["1"]
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="trimmed"):
            await snapshot_reader(client, segment, after=places[4], end=places[7], permits=100)
        whole = await snapshot_reader(client, segment, after=places[5], end=places[7], permits=100)
        await whole.wait("6", "7")
        kept = await snapshot_reader(client, segment, after=None, end=places[7], permits=100)
        await kept.wait("6", "7")
        with pytest.raises(InvalidArgument, match="trimmed"):  # the older snapshot found nothing in it yet
            await snapshot_reader(client, segment, after=EARLIEST, end=places[7], permits=100)
        await node.close()
        client = await cluster.connect(node := await cluster.start(settings=ONE_ENTRY_EACH))


class SlowSidecars(FileLedgerStore):
    """Whose sidecars wait for `go_on`."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.waiting = 0
        self.go_on = asyncio.Event()

    async def write_sidecar(self, segment: str, ledger_id: int, sidecar: bytes) -> bytes:
        self.waiting += 1
        await self.go_on.wait()
        return await super().write_sidecar(segment, ledger_id, sidecar)


async def test_s8_a_round_that_is_under_way_as_its_segment_goes_leaves_no_sidecar_behind(
    memory_cluster: Cluster,
) -> None:
    """▲ What erases waits for it: files know no epochs (simulation, over many layout changes)."""
    cluster = memory_cluster
    made: list[SlowSidecars] = []

    def make(data_dir: Path) -> SlowSidecars:
        made.append(SlowSidecars(data_dir))
        return made[-1]

    cluster.make_ledgers = make
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=QUIET)
    await write(cluster, await cluster.connect(node), segment, 1)
    served = node.broker.segments[segment]
    await served.roll()
    await until(lambda: served.buffer.watermark == served.last_confirmed)
    keeping = asyncio.ensure_future(served.keep(Retention()))
    await until(lambda: sum(one.waiting for one in made))
    found = await cluster.store.get(keys.topic(TOPIC.path))
    assert found is not None
    marked = msgspec.structs.replace(records.decode(TopicRecord, found.value, key=found.key), deleting_ms=5)
    await cluster.store.commit(Commit(puts=(Put(found.key, records.encode(marked)),)))
    await until(lambda: segment not in node.broker.segments)
    await settle(40)  # time enough to erase all
    for one in made:
        one.go_on.set()
    with suppress(TxnError):
        await keeping

    async def erased() -> bool:
        return await cluster.store.get(keys.ledger(segment)) is None

    await until(erased, what="it is erased")
    assert not (cluster.data_dir / "ledgers" / segment).exists()
