"""S8: what a segment, or one subscription in it, has left is erased; whoever stops halfway is followed by another."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from segments.layout.topology import create_record
from segments.ledger.file_ledger import FileLedgerStore
from segments.log import erasing
from segments.log.erasing import anything_left, erase_segment, erase_subscription, find_topic
from segments.log.ledgers.segment_log import SegmentLog
from segments.log.settings import BrokerSettings
from tests.segments.brokering import Cluster
from tests.segments.stopping import Steps, StoppingLedgers, StoppingStore
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import CursorMark, Header, Op, OwnerRecord
from txnstore.store import Commit, Delete, MetadataStore, Put, absent
from txnstore.writes.deletion_transitions import plan_mark_topic
from txnstore.writes.op_transitions import aborted_rewrite, plan_ack_op, plan_write_op, watermark_rewrite
from txnwire.errors import NotOwner, TopicNotFound, TxnError
from txnwire.ids import Position, TxnId
from txnwire.names import TopicName

TOPIC = TopicName("public", "nyc", "flights")
SEGMENT = "public/nyc/flights/0000-ffff-0"
NEIGHBOUR = "public/nyc/flights/0000-ffff-1"


async def own(store: MemoryStore, segment: str = SEGMENT) -> int:
    key = keys.owner(segment)
    await store.commit(Commit(deletes=(Delete(key),)))
    result = await store.commit(Commit(puts=(Put(key, records.encode(OwnerRecord(broker="b", address="a"))),)))
    return result.revision


async def furnish(store: MemoryStore, ledger_store: FileLedgerStore, segment: str = SEGMENT, *, txns: int = 3) -> None:
    """Everything a segment can have: ledgers, the older ones listed in pages, one open and one never created; ops of
    transactions, decided and open, aborted records, a watermark, cursors of two subscriptions."""
    epoch = await own(store, segment)
    ledgers = SegmentLog(store, ledger_store, segment, epoch=epoch, incarnation="i", page_ledgers=1)
    await ledgers.take_over()
    for _ in range(3):
        assert ledgers.writer is not None
        ledgers.writer.append(b"entry")
        await ledgers.writer.sync()
        await ledgers.roll(b"footer")
    assert (await store.get(keys.ledger_page(segment, 1))) is not None
    await ledger_store.write_sidecar(segment, 1, b"sidecar")
    puts = []
    for number in range(1, txns + 1):
        txn_id = TxnId(1, number)
        header = Header(state=records.OPEN, timeout_ms=1, created_ms=1)
        header_key = keys.txn(txn_id)
        await store.commit(Commit((absent(header_key),), (Put(header_key, records.encode(header)),)))
        op = Op(v=1, kind="write", segment=segment)
        assert (await store.commit(plan_write_op(txn_id, segment, epoch, number, op, first_in_segment=True))).succeeded
        for name in ("s", "t"):
            ack = plan_ack_op(txn_id, segment, name, epoch, number, op, first_in_subscription=True)
            assert (await store.commit(ack)).succeeded
        aborted = aborted_rewrite(segment, TxnId(2, number), None, Position(1, 0))
        puts.append(Put(aborted.key, aborted.value))
    watermark = watermark_rewrite(segment, Position(1, 0), 0)
    puts.append(Put(watermark.key, watermark.value))
    for name in ("s", "t"):
        mark = records.encode(CursorMark(position=(1, 0)))
        puts.append(Put(keys.cursor_block(segment, name, "mark"), mark))
    for put in puts:
        await store.commit(Commit(puts=(put,)))


async def names(store: MemoryStore, text: str = SEGMENT) -> list[str]:
    found = await store.range(b"\0", b"\xff", keys_only=True)
    return [key for record in found.records if text in (key := record.key.decode())]


def files(data_dir: Path, segment: str = SEGMENT) -> list[str]:
    return sorted(path.name for path in (data_dir / "ledgers" / segment).glob("*"))


async def test_s8_everything_of_a_segment_goes_and_nothing_of_its_neighbour(
    memory_etcd: MemoryEtcd, memory_store: MemoryStore, tmp_path: Path
) -> None:
    ledgers = FileLedgerStore(tmp_path)
    await furnish(memory_store, ledgers, txns=120)
    await furnish(memory_store, ledgers, NEIGHBOUR)
    kept = await names(memory_store, NEIGHBOUR), files(tmp_path, NEIGHBOUR)
    steps = Steps()
    store = StoppingStore(memory_etcd, steps)
    await erase_segment(store, ledgers, SEGMENT, await own(memory_store))
    await store.close()
    assert steps.taken < 20, "hundreds of records go in a few commits"
    assert await names(memory_store) == []
    assert not await anything_left(memory_store, SEGMENT)
    assert not (tmp_path / "ledgers" / SEGMENT).exists()
    assert (await names(memory_store, NEIGHBOUR), files(tmp_path, NEIGHBOUR)) == kept
    assert await memory_store.get(keys.txn(TxnId(1, 1))) is not None, "transactions go on"
    await ledgers.close()


@pytest.mark.parametrize(
    "unreadable",
    [
        keys.writes_by_segment(SEGMENT) + b"0001-1",
        keys.acks_by_segment(SEGMENT) + b"s/0001-1",
        keys.acks_by_segment(SEGMENT) + b"0001",
        keys.acks_by_segment(SEGMENT) + b"s/\xff",
    ],
)
async def test_s8_a_key_that_cannot_be_read_goes_with_its_segment(
    memory_store: MemoryStore, tmp_path: Path, unreadable: bytes
) -> None:
    """▲ Its topic would be "being deleted" for ever, and its name taken."""
    ledgers = FileLedgerStore(tmp_path)
    await furnish(memory_store, ledgers)
    await memory_store.commit(Commit(puts=(Put(unreadable, b""),)))
    await erase_segment(memory_store, ledgers, SEGMENT, await own(memory_store))
    assert await memory_store.get(unreadable) is None
    assert await names(memory_store) == []
    await ledgers.close()


@pytest.mark.parametrize("silent", [False, True], ids=["lost", "landed"])
async def test_s8_a_successor_erases_what_one_that_stopped_behind_any_step_has_left(
    memory_etcd: MemoryEtcd, memory_store: MemoryStore, tmp_path: Path, silent: bool
) -> None:
    stops = 0
    while True:
        data_dir = tmp_path / str(stops)
        ledgers = FileLedgerStore(data_dir)
        await furnish(memory_store, ledgers)
        steps = Steps(stops, silent)
        store, stopping = StoppingStore(memory_etcd, steps), StoppingLedgers(data_dir, steps)
        epoch = await own(memory_store)
        try:
            await erase_segment(store, stopping, SEGMENT, epoch)
            done = True
        except TxnError:
            done = False
        if await anything_left(memory_store, SEGMENT):
            await erase_segment(memory_store, ledgers, SEGMENT, await own(memory_store))
        assert await names(memory_store) == [], f"stopped behind step {stops}"
        assert files(data_dir) == [], f"stopped behind step {stops}"
        for one in (ledgers, stopping):
            await one.close()
        await store.close()
        if done:
            break
        stops += 1
    assert stops >= 7


async def test_s8_what_does_not_fit_into_one_page_goes_as_well(
    memory_store: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would look at the rest again: its segment is forgotten."""
    monkeypatch.setattr(erasing, "KEYS_AT_ONCE", 2)
    ledgers = FileLedgerStore(tmp_path)
    await furnish(memory_store, ledgers, txns=5)
    epoch = await own(memory_store)
    await erase_segment(memory_store, ledgers, SEGMENT, epoch)
    assert await names(memory_store) == []
    await ledgers.close()


async def test_a_creator_that_comes_late_finds_the_fence_of_an_erased_segment(
    memory_store: MemoryStore, tmp_path: Path
) -> None:
    """▲ Its ledger was listed, and not created yet, when the segment was erased."""
    ledgers = FileLedgerStore(tmp_path)
    await furnish(memory_store, ledgers)
    found = await memory_store.get(keys.ledger(SEGMENT))
    assert found is not None
    record = records.decode(records.LedgerRecord, found.value, key=found.key)
    coming = records.LedgerRecord(ledgers=[*record.ledgers, records.LedgerInfo(ledger_id=9)])
    await memory_store.commit(Commit(puts=(Put(found.key, records.encode(coming)),)))
    await erase_segment(memory_store, ledgers, SEGMENT, await own(memory_store))
    assert files(tmp_path) == ["9.fence"]
    with pytest.raises(TxnError, match="another owner has taken the ledger over"):
        await ledgers.create(SEGMENT, 9, incarnation="i")
    assert list(await ledgers.list()) == []
    await ledgers.close()


async def test_a_former_owner_erases_nothing(memory_store: MemoryStore, tmp_path: Path) -> None:
    ledgers = FileLedgerStore(tmp_path)
    await furnish(memory_store, ledgers)
    former = await own(memory_store)
    await own(memory_store)
    before = await names(memory_store)
    with pytest.raises(NotOwner):
        await erase_subscription(memory_store, SEGMENT, former, "s")
    assert await names(memory_store) == before
    await ledgers.close()


@pytest.mark.parametrize("damaged", ["a closed ledger", "the open ledger", "the ledger list"])
async def test_damage_does_not_keep_a_segment(memory_store: MemoryStore, tmp_path: Path, damaged: str) -> None:
    ledgers = FileLedgerStore(tmp_path)
    await furnish(memory_store, ledgers)
    if damaged == "the ledger list":
        await memory_store.commit(Commit(puts=(Put(keys.ledger(SEGMENT), b"?"),)))
    else:
        path = tmp_path / "ledgers" / SEGMENT / ("2.ledger" if damaged == "a closed ledger" else "4.ledger")
        path.write_bytes(b"nothing of a ledger" + path.read_bytes()[:40])
    await memory_store.commit(Commit(puts=(Put(keys.watermark(SEGMENT), b"?"),)))
    await erase_segment(memory_store, ledgers, SEGMENT, await own(memory_store))
    assert await names(memory_store) == []
    assert files(tmp_path) == []
    await ledgers.close()


async def test_p9_one_subscription_goes_and_the_other_stays(memory_store: MemoryStore, tmp_path: Path) -> None:
    ledgers = FileLedgerStore(tmp_path)
    await furnish(memory_store, ledgers, txns=120)
    before = await names(memory_store)
    for _ in range(2):
        await erase_subscription(memory_store, SEGMENT, await own(memory_store), "s")
    left = await names(memory_store)
    assert left == [key for key in before if "/s/" not in key]
    assert len(before) - len(left) == 2 * 120 + 1
    await ledgers.close()


async def test_only_a_segment_of_its_topic_s_record_is_found(memory_store: MemoryStore) -> None:
    with pytest.raises(TopicNotFound, match="does not exist"):
        await find_topic(memory_store, SEGMENT)
    record = create_record(1, policies={}, created_ms=1, first_segment_id=5)
    await memory_store.commit(Commit(puts=(Put(keys.topic(TOPIC.path), records.encode(record)),)))
    with pytest.raises(TopicNotFound, match="no segment"):
        await find_topic(memory_store, SEGMENT)
    assert not (await find_topic(memory_store, "public/nyc/flights/0000-ffff-5")).deleting


@pytest.mark.parametrize("stop_behind", range(7))
async def test_s8_a_broker_that_dies_while_it_erases_is_followed(
    memory_etcd: MemoryEtcd, memory_store: MemoryStore, tmp_path: Path, stop_behind: int
) -> None:
    """From the mark on: the segment is given up, claimed anew, erased; producers and consumers hear that it is gone."""
    steps = Steps()

    async def make_store() -> MetadataStore:
        return StoppingStore(memory_etcd, steps, counts=lambda commit: bool(commit.deletes) and not commit.puts)

    cluster = Cluster(make_store, memory_store, tmp_path, BrokerSettings(lease_ttl_s=60.0, claim_retry_s=0.02))
    cluster.make_ledgers = lambda data_dir: StoppingLedgers(data_dir, steps)
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    client = await cluster.connect(node)
    producer, reader = await client.producer(segment), await client.reader(segment)
    consumer = await cluster.subscribe(client, segment)
    txn = await cluster.begin()
    await producer.send("open", txn=txn)
    await producer.send("behind")
    steps.left = steps.taken + stop_behind
    await mark(cluster)
    await until(lambda: producer.closed and reader.closed and consumer.closed)
    for closed in (producer.closed, reader.closed, consumer.closed):
        assert isinstance(closed, TopicNotFound)
    with pytest.raises(TopicNotFound):
        await client.reader(segment)
    await until(
        lambda: steps.taken > steps.left or memory_etcd.mvcc.get(keys.ledger(segment), 0) is None,
        what="it has come to where it dies, or to the end",
    )
    await node.crash()
    steps.left = 1 << 30
    await cluster.start()
    await until(lambda: memory_etcd.mvcc.get(keys.ledger(segment), 0) is None, what="erased by the next one")
    await until(lambda: memory_etcd.mvcc.get(keys.owner(segment), 0) is None)
    assert [key for key in await names(memory_store, segment) if "/cursor/" not in key] == []
    assert files(tmp_path, segment) == []
    await cluster.commit(txn)
    await cluster.close()


async def test_a_segment_is_erased_under_an_epoch_of_its_own(
    memory_etcd: MemoryEtcd, memory_store: MemoryStore, tmp_path: Path
) -> None:
    """▲ An op that is in flight under the epoch it was served with could land behind the eraser's back."""

    async def make_store() -> MetadataStore:
        return StoppingStore(memory_etcd, Steps())

    cluster = Cluster(make_store, memory_store, tmp_path, BrokerSettings(lease_ttl_s=60.0, claim_retry_s=0.02))
    [segment] = await cluster.create_topic()
    node = await cluster.start()
    await (await (await cluster.connect(node)).producer(segment)).send("m")
    served_with = node.broker.segments[segment].epoch
    with capture_logs() as logs:
        await mark(cluster)
        await until(lambda: memory_etcd.mvcc.get(keys.ledger(segment), 0) is None)
        await until(lambda: any(log["event"] == "segment_erased" for log in logs))
    [erased] = [log for log in logs if log["event"] == "segment_erased"]
    assert erased["epoch"] > served_with
    await cluster.close()


async def mark(cluster: Cluster) -> None:
    found = await cluster.store.get(keys.topic(TOPIC.path))
    assert found is not None
    commit = plan_mark_topic(found, still_held=absent(b"/leader/controller"), now_ms=1)
    assert commit is not None
    assert (await cluster.store.commit(commit)).succeeded
