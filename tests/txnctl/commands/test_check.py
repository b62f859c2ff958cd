"""Every rule of `txnctl check` catches its planted violation, and a sound picture has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from segments.layout.topology import Topology
from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.sidecars import encode_sidecar
from segments.log.ledgers.ledger_pages import cut
from txnctl.checking.invariants import RULES, broken_invariants
from txnctl.checking.ledgers import Now, broken_ledgers
from txnctl.checking.picture import READERS, Picture, gaps, take_picture
from txnstore import keys
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import (
    AbortedRecord,
    AssignmentRecord,
    CursorBlock,
    CursorMark,
    Drained,
    Header,
    LayoutChange,
    LedgerInfo,
    LedgerRecord,
    LoadSample,
    Op,
    OwnerRecord,
    SegmentEntry,
    SubscriptionRecord,
    TopicRecord,
    TransactionKey,
    TxnName,
    TxnSeq,
    Watermark,
    encode,
)
from txnstore.store import Commit, Delete, KeyValue, Put, RangeResult
from txnstore.writes.collection_transitions import Collectable, OutcomeBitmap, read_outcomes
from txnwire.ids import Position, TxnId
from txnwire.names import TopicName

TOPIC = "public/nyc/flights"
LOW, HIGH = f"{TOPIC}/0000-7fff-0", f"{TOPIC}/8000-ffff-1"
TXN = TxnId(3, 17)
NOW_MS = 1_000_000


def sound() -> Picture:
    """Two segments, one open transaction that wrote and acked, one subscription, one closed and one open ledger."""
    entries = [
        SegmentEntry(id=0, lo=0, hi=0x7FFF, state="ACTIVE", parents=[], children=[]),
        SegmentEntry(id=1, lo=0x8000, hi=0xFFFF, state="ACTIVE", parents=[], children=[]),
    ]
    ledger_list = LedgerRecord(ledgers=[LedgerInfo(ledger_id=1, closed_length=10), LedgerInfo(ledger_id=2)])
    return Picture(
        revision=5,
        headers={TXN: Header(state="OPEN", timeout_ms=NOW_MS + 1000, created_ms=NOW_MS, name="a/1")},
        names={"a/1": TxnName(v=1, txn_id=str(TXN)), "a/0": TxnName(v=1, txn_id=str(TxnId(3, 9)), outcome="ABORTED")},
        marks={(HIGH, "job"): CursorMark(position=(1, 9))},
        blocks={(HIGH, "job"): {"2-0": CursorBlock(ledger_id=2, first_entry=0, acked="05", partial=[(3, 4, "01")])}},
        ops={(TXN, LOW, None): 2, (TXN, HIGH, "job"): 1},
        write_index={(TXN, LOW): None},
        ack_index={(TXN, HIGH, "job"): None},
        id_blocks={3: TxnSeq(next=101)},
        watermarks={LOW: Watermark(position=(1, 9))},
        aborted={(LOW, TxnId(3, 2), None): AbortedRecord(max_position=(1, 4))},
        topics={TOPIC: Topology(TopicName.from_path(TOPIC), TopicRecord(epoch=1, next_segment_id=2, segments=entries))},
        ledgers={LOW: ledger_list, HIGH: ledger_list},
        cursors={(HIGH, "job"): 2},
        subscriptions={(TOPIC, "job"): SubscriptionRecord(type="stream", start={"kind": "earliest"})},
        assignments={(TOPIC, "job"): AssignmentRecord(epoch=2, consumers={"a@1": [LOW], "b@2": [HIGH]})},
        owners={LOW: owner_record(lease=7), HIGH: owner_record(lease=7)},
    )


def owner_record(*, lease: int) -> KeyValue:
    value = encode(OwnerRecord(broker="broker-1", address="127.0.0.1:1"))
    return KeyValue(keys.owner(LOW), value, 1, 4, 4, lease)


def marked(topology: Topology) -> Topology:
    return Topology(topology.topic, replace(topology.record, deleting_ms=1))


def test_a_sound_picture_breaks_nothing() -> None:
    assert broken_invariants(sound(), now_ms=NOW_MS) == []


def test_what_is_being_erased_has_positions_beyond_its_ledgers_which_are_listed_as_empty_first() -> None:
    picture = sound()
    picture.topics[TOPIC] = marked(picture.topics[TOPIC])
    picture.ledgers[LOW] = LedgerRecord(ledgers=[LedgerInfo(ledger_id=1, closed_length=0)])
    assert broken_invariants(picture, now_ms=0) == []
    picture.topics[TOPIC] = sound().topics[TOPIC]
    assert {rule for rule, _ in broken_invariants(picture, now_ms=0)} == {"positions_are_within_ledgers"}


def collected(picture: Picture) -> None:
    block = TXN.counter // keys.OUTCOMES_PER_BLOCK
    empty: OutcomeBitmap = read_outcomes(TXN.tcid, block, None)
    final = Collectable(TXN.counter, True, 4)
    picture.outcomes[TXN.tcid, block] = empty.with_finals([final], NOW_MS)


def changing(picture: Picture, *changes: LayoutChange) -> None:
    topology = picture.topics[TOPIC]
    picture.topics[TOPIC] = Topology(topology.topic, replace(topology.record, changes=list(changes)))


def split(picture: Picture, *, seal: tuple[int, int] | None) -> None:
    """Its lower segment is sealed, and its ledger list says so as `seal` has it."""
    picture.topics[TOPIC] = picture.topics[TOPIC].split(0)
    ledgers = [LedgerInfo(ledger_id=1, closed_length=10)]
    picture.ledgers[LOW] = LedgerRecord(ledgers=ledgers, sealed=seal)


def keyed(picture: Picture, record: TransactionKey | None) -> None:
    header = picture.headers[TXN]
    picture.headers[TXN] = replace(header, txn_key="etl", key_epoch=2)
    if record is not None:
        picture.txn_keys[keys.txn_key(header.owner, "etl")] = record


OLD_CHANGE = LayoutChange(id="c", kind="split", parents=[0], since_ms=1)
LOAD = LoadSample(messages_in_per_s=1.0, bytes_in_per_s=1.0, window_s=1.0, taken_ms=1)


VIOLATIONS: list[tuple[str, Callable[[Picture], object]]] = [
    ("unreadable_records", lambda p: p.unreadable.append("/txn/x: not a header")),
    ("ops_have_headers", lambda p: p.headers.clear()),
    ("ops_and_indexes_agree", lambda p: p.write_index.clear()),
    ("ops_and_indexes_agree", lambda p: p.ack_index.clear()),
    ("ops_and_indexes_agree", lambda p: p.ops.pop((TXN, LOW, None))),
    ("ops_and_indexes_agree", lambda p: p.ops.pop((TXN, HIGH, "job"))),
    ("collected_transactions_have_no_header", collected),
    ("ids_are_below_their_mark", lambda p: p.id_blocks.update({3: TxnSeq(next=17)})),
    ("ids_are_below_their_mark", lambda p: p.id_blocks.clear()),
    (
        "open_transactions_are_within_their_deadline",
        lambda p: p.headers.update({TXN: Header(state="OPEN", timeout_ms=NOW_MS - 60_000, created_ms=0)}),
    ),
    ("records_belong_to_segments", lambda p: p.watermarks.update({f"{TOPIC}/0000-ffff-9": Watermark(position=(1, 1))})),
    ("cursors_and_assignments_belong_to_subscriptions", lambda p: p.subscriptions.clear()),
    ("segments_are_assigned_once", lambda p: p.assignments[TOPIC, "job"].consumers["b@2"].append(LOW)),
    ("ledger_lists_are_in_order", lambda p: p.ledgers[LOW].ledgers.reverse()),
    ("positions_are_within_ledgers", lambda p: p.watermarks.update({LOW: Watermark(position=(1, 10))})),
    ("positions_are_within_ledgers", lambda p: p.marks.update({(LOW, "job"): CursorMark(position=(1, 10))})),
    (
        "positions_are_within_ledgers",
        lambda p: p.blocks.update({(LOW, "job"): {"1-0": CursorBlock(ledger_id=1, first_entry=0, acked="0004")}}),
    ),
    (
        "positions_are_within_ledgers",
        lambda p: p.blocks.update(
            {(LOW, "job"): {"1-0-1": CursorBlock(ledger_id=1, first_entry=0, acked="", partial=[(10, 4, "01")])}}
        ),
    ),
    ("every_key_is_known", lambda p: p.unknown.append("/what/is/this")),
    ("records_belong_to_segments", lambda p: p.ops.update({(TXN, f"{TOPIC}/0000-ffff-9", None): 1})),
    ("records_belong_to_segments", lambda p: p.ack_index.update({(TXN, f"{TOPIC}/0000-ffff-9", "job"): None})),
    ("deletions_come_to_an_end", lambda p: p.topics.update({TOPIC: marked(p.topics[TOPIC])})),
    (
        "deletions_come_to_an_end",
        lambda p: p.subscriptions.update({(TOPIC, "job"): SubscriptionRecord(type="queue", start={}, deleting_ms=1)}),
    ),
    ("names_lead_to_their_transactions", lambda p: p.names.clear()),
    ("names_lead_to_their_transactions", lambda p: p.names.update({"a/1": TxnName(v=1, txn_id=str(TxnId(3, 18)))})),
    ("names_lead_to_their_transactions", lambda p: p.names.update({"a/2": TxnName(v=1, txn_id=str(TxnId(3, 18)))})),
    (
        "trims_are_in_order",
        lambda p: p.ledgers.update({LOW: LedgerRecord(ledgers=p.ledgers[LOW].ledgers, trimmed_below=(2, 1))}),
    ),
    (
        "trims_are_in_order",
        lambda p: p.ledgers.update({LOW: LedgerRecord(ledgers=p.ledgers[LOW].ledgers, trimmed_below=(9, 0))}),
    ),
    ("records_belong_to_segments", lambda p: p.loads.update({f"{TOPIC}/0000-ffff-9": LOAD})),
    (
        "layout_changes_come_to_an_end",
        lambda p: changing(p, LayoutChange(id="c", kind="split", parents=[0], since_ms=1)),
    ),
    ("layout_changes_come_to_an_end", lambda p: changing(p, LayoutChange(id="c", kind="split", parents=[7]))),
    (
        "layout_changes_come_to_an_end",
        lambda p: changing(p, *[LayoutChange(id=one, kind="split", parents=[0]) for one in "cd"]),
    ),
    ("sealed_segments_have_seals", lambda p: split(p, seal=None)),
    ("sealed_segments_have_seals", lambda p: split(p, seal=(1, 4))),
    ("drained_keys_say_so_of_sealed_segments", lambda p: p.drained.update({(TOPIC, "job", 0): Drained(end=(1, 9))})),
    ("drained_keys_say_so_of_sealed_segments", lambda p: p.drained.update({(TOPIC, "job", 9): Drained(end=(1, 9))})),
    ("drained_keys_say_so_of_sealed_segments", lambda p: p.drained.update({(TOPIC, "gone", 0): Drained(end=(1, 9))})),
    (
        "drained_keys_say_so_of_sealed_segments",
        lambda p: (split(p, seal=(1, 9)), p.drained.update({(TOPIC, "job", 0): Drained(end=(1, 3))})),
    ),
    ("keyed_transactions_belong_to_their_holder", lambda p: keyed(p, None)),
    ("keyed_transactions_belong_to_their_holder", lambda p: keyed(p, TransactionKey(epoch=3, txn_id=str(TXN)))),
    ("keyed_transactions_belong_to_their_holder", lambda p: keyed(p, TransactionKey(epoch=2, txn_id="other"))),
    ("owners_are_on_leases", lambda p: p.owners.update({LOW: owner_record(lease=0)})),
]


@pytest.mark.parametrize(("rule", "break_it"), VIOLATIONS)
def test_a_planted_violation_is_named(rule: str, break_it: Callable[[Picture], object]) -> None:
    picture = sound()
    break_it(picture)
    assert rule in {name for name, _ in broken_invariants(picture, now_ms=NOW_MS)}


def test_layouts_drained_keys_and_holders_that_are_in_order_break_nothing() -> None:
    picture = sound()
    split(picture, seal=(1, 9))
    changing(picture, LayoutChange(id="c", kind="split", parents=[1], since_ms=NOW_MS))
    picture.drained[TOPIC, "job", 0] = Drained(end=(1, 9))
    picture.loads[LOW] = LOAD
    keyed(picture, TransactionKey(epoch=2, txn_id=str(TXN)))
    assert broken_invariants(picture, now_ms=NOW_MS) == []


def test_every_rule_has_a_violation() -> None:
    assert {rule.__name__ for rule in RULES} == {name for name, _ in VIOLATIONS}


@pytest.mark.parametrize(
    ("key", "record"),
    [
        (keys.txn(TXN), Header(state="OPEN", timeout_ms=1, created_ms=0)),
        (keys.op(keys.write_ops(TXN, LOW), 4, 1), Op(v=1, kind="write", segment=LOW)),
        (keys.op(keys.ack_ops(TXN, HIGH, "job"), 4, 1), Op(v=1, kind="ack", segment=HIGH, subscription="job")),
        (keys.watermark(LOW), Watermark(position=(1, 2))),
        (keys.aborted(LOW, TXN), AbortedRecord(max_position=None)),
        (keys.aborted(LOW, TXN, 12), AbortedRecord(max_position=(1, 1))),
        (keys.ledger(LOW), LedgerRecord(ledgers=[])),
        (keys.owner(LOW), OwnerRecord(broker="b", address="a:1")),
        (keys.subscription(TOPIC, "job"), SubscriptionRecord(type="stream", start={})),
        (keys.assignment(TOPIC, "job"), AssignmentRecord(epoch=1, consumers={})),
        (keys.txn_seq(3), TxnSeq(next=1)),
        (keys.write_index(LOW, TXN), None),
        (keys.ack_index(HIGH, "job", TXN), None),
        (keys.deadline(123, TXN), None),
        (keys.cursor_block(HIGH, "job", "mark"), CursorMark(position=(1, 2))),
        (keys.cursor_block(HIGH, "job", "1-0"), CursorBlock(ledger_id=1, first_entry=0, acked="01")),
        (keys.txn_name("job-7/42"), TxnName(v=1, txn_id=str(TXN))),
        (keys.txn_key("me", "etl"), TransactionKey(epoch=1)),
        (keys.drained(TOPIC, "job", 0), Drained(end=(1, 9))),
        (keys.load(LOW), LOAD),
    ],
)
def test_every_record_is_read_into_its_place(key: bytes, record: object) -> None:
    value = b"" if record is None else encode(record)  # type: ignore[arg-type]
    picture = Picture()
    prefix = next(prefix for prefix in READERS if key.startswith(prefix))
    READERS[prefix](picture, KeyValue(key, value, 1, 1, 1))
    assert picture != Picture() or prefix == keys.TXN_BY_DEADLINE


async def test_keys_between_ours_are_found_and_ours_are_not(memory_store: MemoryStore) -> None:
    ours = [keys.SEGMENT_IDS, keys.INCARNATION, keys.COMPACTION, keys.GC_HORIZON, keys.DATA_FOLDER, keys.CLOCK]
    ours.append(keys.TXN_NAME_COUNTS)
    ours.append(keys.txn_key("me", "k"))
    strange = [b"/a", b"/segment-ids2", b"/topics/x", b"/zzz"]
    for key in (*ours, *strange):
        await memory_store.commit(Commit(puts=(Put(key, b"{}"),)))
    assert (await take_picture(memory_store)).unknown == [key.decode() for key in strange]
    assert not any(start <= prefix < end for prefix in READERS for start, end in gaps())


async def put_list(store: MemoryStore, segment: str, record: LedgerRecord) -> list[bytes]:
    """Cut into pages of two; their keys."""
    now = cut(segment, record, [], page_ledgers=2)
    await store.commit(Commit(puts=(Put(keys.ledger(segment), encode(now.head)), *now.puts)))
    return [put.key for put in now.puts]


async def test_a_ledger_list_in_pages_is_one_list_in_the_picture_and_in_what_is_asked_again(
    memory_store: MemoryStore,
) -> None:
    whole = LedgerRecord(ledgers=[LedgerInfo(ledger_id=n, closed_length=n) for n in range(1, 12)])
    pages = await put_list(memory_store, LOW, whole)
    assert len(pages) == 4
    picture = await take_picture(memory_store)
    assert (picture.ledgers, picture.unreadable, picture.unknown) == ({LOW: whole}, [], [])
    topology = sound().topics[TOPIC]
    await memory_store.commit(Commit(puts=(Put(keys.topic(TOPIC), encode(topology.record)),)))
    now = Now(memory_store)
    assert await now.is_kept(LOW, 1)
    assert await now.is_listed(LOW, 2)
    await memory_store.commit(Commit(deletes=(Delete(pages[1]),)))
    [finding] = (await take_picture(memory_store)).unreadable
    assert "8 ledgers are in pages, found 6" in finding
    await memory_store.commit(Commit(puts=(Put(keys.topic(TOPIC), encode(marked(topology).record)),)))
    assert (await take_picture(memory_store)).unreadable == [], "of what is being erased pages go before the head"


async def test_a_ledger_is_listed_still_unless_its_topic_is_deleted_meanwhile(memory_store: MemoryStore) -> None:
    info = LedgerInfo(ledger_id=1, closed_length=9)
    topology = sound().topics[TOPIC]
    listed = Put(keys.ledger(LOW), encode(LedgerRecord(ledgers=[info])))
    await memory_store.commit(Commit(puts=(listed, Put(keys.topic(TOPIC), encode(topology.record)))))
    assert await Now(memory_store).is_kept(LOW, 1)
    await memory_store.commit(Commit(puts=(Put(keys.topic(TOPIC), encode(marked(topology).record)),)))
    assert not await Now(memory_store).is_kept(LOW, 1)


async def test_a_file_of_a_segment_that_was_born_behind_the_picture_is_no_finding(
    memory_store: MemoryStore, tmp_path: Path
) -> None:
    ledgers = FileLedgerStore(tmp_path)
    await ledgers.create(LOW, 1, incarnation="i")
    now = Now(memory_store)

    async def findings() -> list[tuple[str, str]]:
        return [finding async for finding in broken_ledgers(Picture(), ledgers, lambda _: None, now=now)]

    [(rule, _)] = await findings()
    assert rule == "ledger_files_are_listed"
    record = encode(LedgerRecord(ledgers=[LedgerInfo(ledger_id=1)]))
    await memory_store.commit(Commit(puts=(Put(keys.ledger(LOW), record),)))
    assert await findings() == []
    await ledgers.close()


async def test_sidecars_are_read_and_held_against_their_ledgers(tmp_path: Path) -> None:
    ledgers = FileLedgerStore(tmp_path)
    writer = await ledgers.create(LOW, 1, incarnation="i")
    writer.append(b"entry")
    await writer.close(b"")
    picture = sound()
    picture.ledgers = {LOW: LedgerRecord(ledgers=[LedgerInfo(ledger_id=1, closed_length=1, aborted=1)])}

    async def findings() -> list[tuple[str, str]]:
        return [finding async for finding in broken_ledgers(picture, ledgers, lambda _: None)]

    [(rule, what)] = await findings()
    assert rule == "sidecars_are_whole"
    assert "missing: 1 aborted records" in what
    await ledgers.write_sidecar(LOW, 1, encode_sidecar(1, {(TXN, None): Position(1, 0)}))
    assert await findings() == []
    picture.ledgers[LOW] = LedgerRecord(ledgers=[LedgerInfo(ledger_id=1, closed_length=1, aborted=2)])
    [(_, what)] = await findings()
    assert "1 aborted records of 2" in what
    picture.ledgers[LOW] = LedgerRecord(ledgers=picture.ledgers[LOW].ledgers, trimmed_below=(2, 0))
    assert await findings() == [], "trimmed, and about to be deleted"
    picture.ledgers[LOW] = LedgerRecord(ledgers=[], trimmed_below=(2, 0), sealed=(1, 0))
    assert await findings() == [], "a picture older than the files tells nothing of ledgers above it"
    picture.ledgers[LOW] = LedgerRecord(ledgers=[LedgerInfo(ledger_id=1, closed_length=9)])
    assert [rule for rule, _ in await findings()] == ["closed_ledgers_are_whole"]
    picture.topics[TOPIC] = marked(picture.topics[TOPIC])
    assert await findings() == [], "its files go before its records do"
    await ledgers.close()


async def test_a_picture_is_of_one_revision_that_stays_pinned_and_read_in_pages(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = [b"/strange%d" % number for number in range(7)]
    pages = await put_list(memory_store, LOW, LedgerRecord(ledgers=[LedgerInfo(ledger_id=1, closed_length=1)]))
    await memory_store.commit(Commit(puts=tuple(Put(key, b"") for key in strange)))
    before, asked = await take_picture(memory_store), memory_store.range
    read: list[int] = []
    pinned: dict[int | None, None] = {}

    async def watched(*args: bytes, **options: Any) -> RangeResult:
        await memory_store.commit(Commit(puts=(Put(b"/later%d" % len(read), b""),)))
        pinned[memory_store.oldest_pin()] = None
        found = await asked(*args, **options)
        read.append(len(found.records))
        return found

    monkeypatch.setattr(memory_store, "range", watched)
    monkeypatch.setattr("txnctl.checking.picture.RECORDS_AT_ONCE", 2)
    picture = await take_picture(memory_store)
    assert picture == before
    assert (picture.unknown, pages) == ([key.decode() for key in strange], [])
    assert list(pinned) == [picture.revision]
    assert max(read) == 2
