"""E8: two repairs of one store. Only one of them may come to its end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from segments.ledger.file_ledger import FileLedgerStore
from segments.log.ledgers.segment_log import SegmentLog
from txnctl.checking.everything import check_everything
from txnctl.checking.picture import take_picture
from txnctl.checking.repair import Repair
from txnctl.checking.rewound import EPOCH_STEP, IDS_STEP
from txnctl.commands.check import show_checked
from txnctl.commands.shared.output import Format
from txnctl.process.settings import ServerSettings
from txnctl.process.store_mark import StoreMark
from txnstore import keys
from txnstore.etcd.etcd_store import EtcdStore
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import (
    AssignmentRecord,
    CursorMark,
    Incarnation,
    OwnerRecord,
    SegmentEntry,
    SegmentIds,
    TopicRecord,
    TransactionKey,
    TxnSeq,
    decode,
    encode,
)
from txnstore.store import Commit, Delete, KeyValue, Put
from txnwire.clock import SystemClock
from txnwire.entry import OutgoingMessage, encode_entry
from txnwire.errors import InternalError
from txnwire.ids import TxnId


class Held(FileLedgerStore):
    """Does not say what there is before it is let go on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def list(self) -> Sequence[tuple[str, int]]:
        self.asked.set()
        await self.go_on.wait()
        return await super().list()


class Repairing:
    """A repair in a process of its own."""

    def __init__(self, etcd: MemoryEtcd, folder: Path, seed: int) -> None:
        chance, clock = random.Random(seed), SystemClock()
        self.store = MemoryStore(etcd, clock, chance)
        self.ledgers = Held(folder)
        mark = StoreMark(folder)
        self.repair = Repair(self.store, self.ledgers, mark, clock, chance, tcids=1, on_progress=lambda _: None)

    async def close(self) -> None:
        await self.ledgers.close()
        await self.store.close()


@pytest.mark.parametrize("ended", [False, True])
async def test_e8_of_two_repairs_the_one_that_began_first_writes_nothing_more(tmp_path: Path, ended: bool) -> None:
    """▲ Its writes would fall into the work of the other one, or of processes that were started when that had ended."""
    etcd = MemoryEtcd(SystemClock())
    first, second = Repairing(etcd, tmp_path, 1), Repairing(etcd, tmp_path, 2)
    StoreMark(tmp_path).write(await first.store.identity(), 1)
    began = asyncio.create_task(first.repair.run("restored"))
    await first.ledgers.asked.wait()
    other = asyncio.create_task(second.repair.run("restored"))
    await second.ledgers.asked.wait()
    if ended:
        second.ledgers.go_on.set()
        await other
        at_work = TxnSeq(next=5 << 40)
        await second.store.commit(Commit(puts=(Put(keys.txn_seq(0), encode(at_work)),)))
    first.ledgers.go_on.set()
    with pytest.raises(InternalError, match="another repair"):
        await began
    second.ledgers.go_on.set()
    await other
    _, (found, seq) = await second.store.get_many([keys.INCARNATION, keys.txn_seq(0)])
    mark = StoreMark(tmp_path).read()
    assert found is not None
    assert seq is not None
    assert mark is not None
    identity = decode(Incarnation, found.value, key=found.key)
    assert (identity.repair, identity.generation, identity.id) == ("", 2, mark.incarnation)
    assert not ended or decode(TxnSeq, seq.value, key=seq.key) == at_work
    for one in (first, second):
        await one.close()


TOPIC, SEGMENT = "public/nyc/flights", "public/nyc/flights/0000-ffff-0"


def entry(n: int, txn_id: TxnId | None = None) -> bytes:
    message = OutgoingMessage(value=f"{n}".encode())
    return encode_entry([message], producer="p", incarnation=1, sequence_id=n, publish_time_ms=0, txn_id=txn_id)


async def make_ledgers(store: MemoryStore, files: FileLedgerStore, count: int) -> tuple[SegmentLog, list[KeyValue]]:
    """Of one entry each, their list in pages of two; the records of it as they stood after a half of them."""
    owned = await store.commit(Commit(puts=(Put(keys.owner(SEGMENT), encode(OwnerRecord(broker="b", address="a"))),)))
    ledgers = SegmentLog(store, files, SEGMENT, epoch=owned.revision, incarnation="i", page_ledgers=2)
    await ledgers.take_over()
    half: list[KeyValue] = []
    for n in range(count):
        assert ledgers.writer is not None
        ledgers.writer.append(entry(n))
        await ledgers.writer.sync()
        await ledgers.roll(ledgers.footer(ledgers.writer.ledger_id, 1, b""))
        if n == count // 2:
            half = list((await store.range(keys.LEDGER_PAGE, keys.prefix_end(keys.LEDGER))).records)
    ledgers.abandon()
    return ledgers, half


async def test_e8_ledgers_that_etcd_forgot_join_a_list_in_pages_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnctl.checking.repair.ADOPTED_AT_ONCE", 3)
    etcd = MemoryEtcd(SystemClock())
    one = Repairing(etcd, tmp_path, 1)
    one.ledgers.go_on.set()
    StoreMark(tmp_path).write(await one.store.identity(), 1)
    whole = SegmentEntry(id=0, lo=0, hi=0xFFFF, state="ACTIVE", parents=[], children=[])
    topic = TopicRecord(epoch=1, next_segment_id=1, segments=[whole])
    await one.store.commit(Commit(puts=(Put(keys.topic(TOPIC), encode(topic)),)))
    ledgers, half = await make_ledgers(one.store, one.ledgers, 12)
    everything = Delete(keys.LEDGER_PAGE, keys.prefix_end(keys.LEDGER))
    await one.store.commit(Commit(deletes=(everything,)))
    await one.store.commit(Commit(puts=tuple(Put(record.key, record.value) for record in half)))
    await one.repair.run("restored")
    picture = await take_picture(one.store)
    found = [(info.ledger_id, info.closed_length) for info in picture.ledgers[SEGMENT].ledgers]
    assert (picture.unreadable, found[:12]) == ([], [(n, 1) for n in range(1, 13)])
    assert len(picture.ledger_pages[SEGMENT]) >= 2
    assert ledgers.record.ledgers[0] == picture.ledgers[SEGMENT].ledgers[0]
    await one.close()


async def repairing(tmp_path: Path, *, generation: int = 0) -> Repairing:
    """Whose folder has seen so many repairs that etcd does not know of."""
    one = Repairing(MemoryEtcd(SystemClock()), tmp_path, 1)
    one.ledgers.go_on.set()
    identity = await one.store.identity()
    seen = Incarnation(id="seen", created_ms=1, former=[identity.id], generation=generation)
    StoreMark(tmp_path).write(seen if generation else identity, 1)
    return one


TAKEN = (keys.OWNER, keys.BROKER, keys.TC, keys.TC_MEMBER, keys.LEADER, keys.PIN, keys.SENDER)


@pytest.mark.parametrize("prefix", TAKEN, ids=lambda prefix: prefix.decode())
async def test_e8_a_repair_takes_whatever_says_who_may_write(tmp_path: Path, prefix: bytes) -> None:
    one = await repairing(tmp_path)
    await one.store.commit(Commit(puts=(Put(prefix + b"of-before", b"{}"),)))
    await one.repair.run("restored")
    assert await one.store.get(prefix + b"of-before") is None
    await one.close()


async def test_e8_epochs_rise_above_those_of_all_repairs_that_the_backup_does_not_know_of(tmp_path: Path) -> None:
    """▲ Whoever was told one of those would be taken for the newer holder."""
    one = await repairing(tmp_path, generation=2)
    key, mark = keys.txn_key("anonymous", "etl"), keys.cursor_block(SEGMENT, "job", "mark")
    before = (
        Put(key, encode(TransactionKey(epoch=7, attempt="a1"))),
        Put(keys.assignment(TOPIC, "job"), encode(AssignmentRecord(epoch=5, consumers={}))),
        Put(mark, encode(CursorMark(position=(1, 0), seeks=2))),
    )
    await one.store.commit(Commit(puts=before))
    await one.repair.run("restored")
    _, (found, assigned, marked) = await one.store.get_many([put.key for put in before])
    assert found is not None
    assert assigned is not None
    assert marked is not None
    raised = decode(TransactionKey, found.value, key=key)
    assert (raised.epoch, raised.attempt) == (7 + 3 * EPOCH_STEP, ""), "a connect that is repeated is a new one"
    assert decode(AssignmentRecord, assigned.value, key=assigned.key).epoch == 5 + 3 * EPOCH_STEP
    assert decode(CursorMark, marked.value, key=mark).seeks == 2 + 3 * EPOCH_STEP
    await one.close()


async def test_e8_ids_of_a_coordinator_that_the_backup_does_not_know_of_are_raised_too(tmp_path: Path) -> None:
    """▲ A cluster had more of them by then: what they have begun stands in the ledgers."""
    one = await repairing(tmp_path)
    whole = SegmentEntry(id=0, lo=0, hi=0xFFFF, state="ACTIVE", parents=[], children=[])
    topic = TopicRecord(epoch=1, next_segment_id=1, segments=[whole])
    await one.store.commit(Commit(puts=(Put(keys.topic(TOPIC), encode(topic)),)))
    await make_ledgers(one.store, one.ledgers, 1)
    writer = await one.ledgers.create(SEGMENT, 99, incarnation="i")
    writer.append(entry(1, txn_id=TxnId(4, 9)))
    await writer.sync()
    writer.abandon()
    await one.repair.run("restored")
    found = await one.store.get(keys.txn_seq(4))
    assert found is not None
    assert decode(TxnSeq, found.value, key=found.key).next == IDS_STEP
    await one.close()


async def test_e8_segment_ids_stay_above_those_that_an_earlier_repair_has_set_aside(tmp_path: Path) -> None:
    """▲ Their files are out of sight by then, and the backup does not know of them: only the folder's mark does."""
    one = await repairing(tmp_path)
    StoreMark(tmp_path).write(await one.store.identity(), 1, segment_floor=7)
    await one.repair.run("restored")
    found = await one.store.get(keys.SEGMENT_IDS)
    assert found is not None
    assert decode(SegmentIds, found.value, key=found.key).floor == 7
    await one.close()


class CutOff(Exception):
    pass


async def test_where_a_repair_was_cut_off_behind_its_end_its_report_is_named(
    tmp_path: Path, etcd: str, store: EtcdStore, key_prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The check of a large cluster takes long, and what was repaired is printed behind it."""
    settings = ServerSettings(etcd=etcd, etcd_prefix=key_prefix, data_dir=tmp_path, allow_development_etcd=True)
    StoreMark(tmp_path).write(await store.identity(), 1 << 40)
    seen: list[str] = []

    def cut_off(what: str) -> None:
        seen.append(what)
        if seen.count("etcd") == 2:  # the first is the repair's
            raise CutOff

    with pytest.raises(CutOff):
        await check_everything(settings, cut_off, repair=True)
    again = await check_everything(settings, lambda _: None, repair=True)
    assert again.repaired == []
    show_checked(again, Format.TABLE, repair=True)
    assert f"{tmp_path / 'repairs.log'} has what earlier repairs did" in capsys.readouterr().out
