"""C12: a data folder that lacks entries of several ledgers in several segments, and the repair that drops them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.segments.brokering import Cluster
from tests.txnctl.checking.short_folders import Ledger, ShortFolder, Written
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import (
    ABORTED,
    COMMITTED,
    OPEN,
    REASON_ADMIN,
    REASON_LOST,
    AbortedRecord,
    CursorBlock,
    CursorMark,
    Drained,
    SegmentEntry,
    SubscriptionRecord,
    TopicRecord,
    Watermark,
)
from txnstore.store import MetadataStore
from txnwire.clock import SystemClock
from txnwire.ids import Position, TxnId

TOPIC, OTHER = "public/nyc/flights", "public/nyc/other"
SEALED, WIDE, LEFT, RIGHT = (f"{TOPIC}/{name}" for name in ("0000-7fff-0", "8000-ffff-1", "0000-3fff-2", "4000-7fff-3"))
ELSEWHERE = f"{OTHER}/0000-7fff-0"

OVER, ONE_HALF, WHOLE, UNDECIDED, GONE, ACKS, LATE, SIDE, EARLIER = (TxnId(1, n) for n in range(1, 10))
"""OVER lost parts in two segments, ONE_HALF in the second one, WHOLE none; UNDECIDED is open; of LATE nothing is
missing, and it was committed behind the mark. GONE and EARLIER are aborted, as sidecars tell, SIDE by a record."""


@pytest.fixture
async def folder(memory_etcd: MemoryEtcd, tmp_path: Path) -> AsyncIterator[ShortFolder]:
    made = ShortFolder(memory_etcd, tmp_path / "data")
    yield made
    await made.close()


def split_in_two(path: str) -> TopicRecord:
    """Segment 0 is sealed, and split into 2 and 3; 1 is active."""
    sealed = SegmentEntry(id=0, lo=0, hi=0x7FFF, state="SEALED", parents=[], children=[2, 3])
    active = [
        SegmentEntry(id=number, lo=lo, hi=hi, state="ACTIVE", parents=parents, children=[])
        for number, lo, hi, parents in ((1, 0x8000, 0xFFFF, []), (2, 0, 0x3FFF, [0]), (3, 0x4000, 0x7FFF, [0]))
    ]
    return TopicRecord(epoch=1, next_segment_id=4, segments=[sealed, *active], created_segments=2, first_segment_id=0)


async def fill(folder: ShortFolder) -> None:
    """SEALED and WIDE lack entries of several ledgers, RIGHT of one, LEFT and the other topic none."""
    for topic in (TOPIC, OTHER):
        await folder.record(keys.topic(topic), split_in_two(topic))
        for name in ("job", "more"):
            await folder.record(
                keys.subscription(topic, name), SubscriptionRecord(type="stream", start={"kind": "earliest"})
            )
    for txn_id, state in (
        (OVER, COMMITTED),
        (ONE_HALF, COMMITTED),
        (WHOLE, COMMITTED),
        (ACKS, COMMITTED),
        (SIDE, ABORTED),
    ):
        await folder.header(txn_id, state, ["1"] if txn_id == OVER else None)
    await folder.mark()
    await folder.header(LATE, COMMITTED)
    await folder.header(UNDECIDED, OPEN)
    for txn_id in (GONE, EARLIER):
        await folder.header(txn_id, ABORTED)
    await folder.segment(
        SEALED,
        Ledger(1, [Written("plain"), Written("over", OVER, 1), Written("whole", WHOLE), Written("half", ONE_HALF)], 4),
        Ledger(2, [Written("a"), Written("over", OVER, 1), Written("over", OVER, 1)], 2),
        Ledger(3, [Written("b")], None),
        sealed=(3, 0),
    )
    wide_3 = [Written("whole", WHOLE), Written("acks", ACKS), Written("gone", GONE), Written("half", ONE_HALF)]
    wide_3.append(Written("gone", GONE))
    await folder.segment(
        WIDE,
        Ledger(
            1, [Written("wide"), Written("half", ONE_HALF), Written("earlier", EARLIER), Written("over", OVER, 1)], 3
        ),
        Ledger(2, [Written("c"), Written("over", OVER, 1)], None, aborted={EARLIER: Position(1, 2)}),
        Ledger(3, wide_3, 3, aborted={GONE: Position(3, 4)}),
        Ledger(4, [Written("d"), Written("late", LATE), Written("e"), Written("side", SIDE)], 2, open=True),
    )
    await folder.segment(LEFT, Ledger(1, [Written(str(n), LATE) for n in range(6)], 6))
    await folder.segment(
        RIGHT,
        Ledger(1, [Written("right", WHOLE), Written("right", WHOLE)], 2),
        Ledger(2, [Written("gone", GONE), Written("f")], 2, aborted={GONE: Position(2, 0)}),
        Ledger(3, [Written("g"), Written("h")], 1),
    )
    await folder.segment(ELSEWHERE, Ledger(1, [Written(str(n)) for n in range(4)], 4), sealed=(1, 3))
    await folder.ops(OVER, SEALED, 3)
    await folder.ops(OVER, WIDE, 2)
    await folder.ops(ONE_HALF, SEALED, 1)
    await folder.ops(ONE_HALF, WIDE, 2)
    await folder.ops(WHOLE, SEALED, 1)
    await folder.ops(WHOLE, WIDE, 1)
    await folder.ops(WHOLE, RIGHT, 2)
    await folder.ops(WHOLE, LEFT, 1)  # refused behind its operation
    await folder.ops(ACKS, WIDE, 2, "job")
    await folder.record(keys.watermark(SEALED), Watermark(position=(3, 0)))
    await folder.record(keys.watermark(WIDE), Watermark(position=(4, 2)))
    await folder.record(keys.watermark(LEFT), Watermark(position=(1, 5)))
    await folder.record(keys.aborted(WIDE, SIDE, None), AbortedRecord(max_position=(4, 3)))
    await folder.record(keys.aborted(WIDE, WHOLE, 7), AbortedRecord(max_position=None))
    await folder.record(keys.aborted(LEFT, SIDE, None), AbortedRecord(max_position=(1, 5)))
    for segment, name, position in (
        (SEALED, "job", (3, 0)),
        (SEALED, "more", (2, 0)),
        (WIDE, "job", (2, 1)),
        (WIDE, "more", (4, 3)),
        (LEFT, "job", (1, 4)),
    ):
        await folder.record(keys.cursor_block(segment, name, "mark"), CursorMark(position=position))
    for segment, name, ledger_id, acked in (
        (WIDE, "job", 3, "0f"),
        (WIDE, "job", 4, "0d"),
        (WIDE, "more", 2, "03"),
        (SEALED, "more", 2, "06"),
        (LEFT, "job", 1, "20"),
        (RIGHT, "job", 2, "01"),
    ):
        block = CursorBlock(ledger_id=ledger_id, first_entry=0, acked=acked)
        await folder.record(keys.cursor_block(segment, name, f"{ledger_id}-0"), block)
    for topic, name, end in ((TOPIC, "job", (3, 0)), (OTHER, "job", (1, 3))):
        await folder.record(keys.drained(topic, name, 0), Drained(end=end))


async def test_c12_several_ledgers_of_several_segments_are_shortened_each_to_what_is_left(folder: ShortFolder) -> None:
    await fill(folder)
    found = await folder.repair()
    assert [text.partition(" had ")[0] for rule, text in found if rule == "missing"] == [
        f"{SEALED}: ledger 2",
        f"{SEALED}: ledger 3",
        f"{WIDE}: ledger 1",
        f"{WIDE}: ledger 2",
        f"{WIDE}: ledger 3",
        f"{WIDE}: ledger 4",
        f"{RIGHT}: ledger 3",
    ]
    assert [text[:38] for rule, text in found if rule == "torn" and "entries or more" in text] == [
        "10 entries or more are missing, in 3 s"
    ]
    assert await folder.findings() == []
    picture = await folder.picture()
    lengths = {path: [one.closed_length for one in picture.ledgers[path].ledgers] for path in (SEALED, WIDE, LEFT)}
    assert lengths == {SEALED: [4, 2, 0], WIDE: [3, 0, 3, 2], LEFT: [6]}
    assert picture.ledgers[SEALED].sealed == (2, 1)
    assert {place: one.end for place, one in picture.drained.items()} == {
        (TOPIC, "job", 0): (2, 1),
        (OTHER, "job", 0): (1, 3),
    }
    assert {path: one.position for path, one in picture.watermarks.items()} == {
        SEALED: (2, 1),
        WIDE: (4, 1),
        LEFT: (1, 5),
    }
    assert {place: one.position for place, one in picture.marks.items()} == {
        (SEALED, "job"): (2, 1),
        (SEALED, "more"): (2, 0),
        (WIDE, "job"): (1, 2),
        (WIDE, "more"): (4, 1),
        (LEFT, "job"): (1, 4),
    }
    assert {(place, name): one.acked for place, some in picture.blocks.items() for name, one in some.items()} == {
        ((WIDE, "job"), "3-0"): "07",
        ((WIDE, "job"), "4-0"): "01",
        ((SEALED, "more"), "2-0"): "02",
        ((LEFT, "job"), "1-0"): "20",
        ((RIGHT, "job"), "2-0"): "01",
    }


async def test_c12_transactions_over_several_damaged_segments_are_dropped_in_all_and_others_in_none(
    folder: ShortFolder,
) -> None:
    await fill(folder)
    found = await folder.repair()
    headers = (await folder.picture()).headers
    assert {txn_id: (one.state, one.reason) for txn_id, one in headers.items()} == {
        OVER: (ABORTED, REASON_LOST),
        ONE_HALF: (ABORTED, REASON_LOST),
        LATE: (ABORTED, REASON_LOST),
        WHOLE: (COMMITTED, None),
        ACKS: (COMMITTED, None),
        UNDECIDED: (ABORTED, REASON_ADMIN),
        GONE: (ABORTED, None),
        EARLIER: (ABORTED, None),
        SIDE: (ABORTED, None),
    }
    assert headers[OVER].writers is None
    named = [text.split()[0] for rule, text in found if rule == "torn" and "is aborted everywhere" in text]
    assert named == [str(txn_id) for txn_id in (LATE, OVER, ONE_HALF)]


async def test_c12_what_sidecars_of_short_ledgers_listed_stands_in_etcd_again_at_what_is_left(
    folder: ShortFolder,
) -> None:
    """▲ A sidecar goes with its ledger, and may list entries of older ones. One of a whole ledger stays as it is."""
    await fill(folder)
    await folder.repair()
    left = {place[:2]: position for place, position in (await folder.aborted()).items()}
    assert {place: position for place, position in left.items() if place[1] in (GONE, EARLIER, SIDE)} == {
        (WIDE, GONE): (3, 2),
        (WIDE, EARLIER): (1, 2),
        (WIDE, SIDE): (4, 1),
        (LEFT, SIDE): (1, 5),
    }
    infos = (await folder.picture()).ledgers
    assert [one.aborted for one in infos[WIDE].ledgers[:3]] == [1, 0, 0], "the first has what was dropped"
    assert [one.aborted for one in infos[RIGHT].ledgers[:3]] == [0, 1, 0]


async def test_c12_all_that_the_sidecar_of_a_short_ledger_listed_stands_in_etcd_again(folder: ShortFolder) -> None:
    """▲ Entries of the others would be read as committed."""
    await folder.record(keys.topic(TOPIC), split_in_two(TOPIC))
    for txn_id in (GONE, EARLIER):
        await folder.header(txn_id, ABORTED)
    await folder.mark()
    entries = [Written("a"), Written("gone", GONE), Written("earlier", EARLIER), Written("b")]
    await folder.segment(WIDE, Ledger(1, entries, 3, aborted={GONE: Position(1, 1), EARLIER: Position(1, 2)}))
    await folder.repair()
    assert await folder.aborted() == {(WIDE, GONE, None): (1, 1), (WIDE, EARLIER, None): (1, 2)}


async def test_c12_every_subscription_that_has_drained_a_shortened_segment_has_drained_what_is_left(
    folder: ShortFolder,
) -> None:
    await fill(folder)
    await folder.record(keys.drained(TOPIC, "more", 0), Drained(end=(3, 0)))
    await folder.repair()
    assert {place: one.end for place, one in (await folder.picture()).drained.items() if place[0] == TOPIC} == {
        (TOPIC, "job", 0): (2, 1),
        (TOPIC, "more", 0): (2, 1),
    }
    assert await folder.findings() == []


async def test_c12_an_interrupted_repair_ends_like_one_that_was_not_whatever_the_step(
    folder: ShortFolder, tmp_path: Path
) -> None:
    """▲ Records in etcd tell what an open ledger had: shortened first, they would hide from the repetition what is to
    be shortened with them."""
    await fill(folder)
    expected = folder.copy(tmp_path / "expected")
    await expected.repair()
    wanted, last = await expected.state(), expected.steps.done
    await expected.close()
    assert last > 40
    for dies_at in range(1, last + 1):
        one = folder.copy(tmp_path / f"dies at {dies_at}")
        assert await one.repair_again_and_again(dies_at=dies_at)
        found = await one.state()
        differing = {what: (found.get(what), was) for what, was in wanted.items() if found.get(what) != was}
        assert differing == {}, f"{dies_at}: {differing}"
        assert sorted(found) == sorted(wanted), dies_at
        assert await one.findings() == [], dies_at
        await one.close()


def file(folder: ShortFolder, segment: str, name: str) -> Path:
    return folder.data / "ledgers" / segment / name


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


async def test_c12_a_damaged_ledger_hides_nothing_of_what_is_left_behind_it(folder: ShortFolder) -> None:
    """▲ Transactions that lost nothing would be dropped with it. `check` names it, and its readers get an error."""
    await folder.record(keys.topic(TOPIC), split_in_two(TOPIC))
    for txn_id in (WHOLE, OVER):
        await folder.header(txn_id, COMMITTED)
    await folder.mark()
    await folder.segment(
        WIDE,
        Ledger(1, [Written("a"), Written("b"), Written("c")], 3),
        Ledger(2, [Written("whole", WHOLE), Written("over", OVER)], 2),
        Ledger(3, [Written("over", OVER)], 0),
    )
    await folder.ops(WHOLE, WIDE, 1)
    await folder.ops(OVER, WIDE, 2)
    damage(file(folder, WIDE, "1.ledger"))
    found = await folder.repair()
    assert [text for rule, text in found if "ledger 1 is damaged" in text and text.startswith(WIDE)]
    headers = (await folder.picture()).headers
    assert {txn_id: one.state for txn_id, one in headers.items()} == {WHOLE: COMMITTED, OVER: ABORTED}
    assert [rule for rule, _ in await folder.findings()] == ["closed_ledgers_are_whole"]


async def test_c12_every_dropped_transaction_is_aborted_in_a_damaged_ledger_too(folder: ShortFolder) -> None:
    """▲ It may hold an entry of each, and its file may be put back."""
    await folder.record(keys.topic(TOPIC), split_in_two(TOPIC))
    for txn_id in (OVER, ONE_HALF):
        await folder.header(txn_id, COMMITTED)
    await folder.mark()
    both = [Written("over", OVER), Written("half", ONE_HALF)]
    await folder.segment(
        WIDE, Ledger(1, both, 2), Ledger(2, [Written(f"{n}") for n in range(3)], 3), Ledger(3, both, 0)
    )
    for txn_id in (OVER, ONE_HALF):
        await folder.ops(txn_id, WIDE, 4)
    await folder.record(keys.watermark(WIDE), Watermark(position=(3, 1)))
    damage(file(folder, WIDE, "2.ledger"))
    await folder.repair()
    assert [one.aborted for one in (await folder.picture()).ledgers[WIDE].ledgers] == [0, 2, 0]


async def test_c12_of_each_closed_ledger_only_the_entries_that_count_are_left(folder: ShortFolder) -> None:
    """▲ A file may hold more than its ledger was closed with: nobody reads that, so a transaction has lost it."""
    await folder.record(keys.topic(TOPIC), split_in_two(TOPIC))
    await folder.header(OVER, COMMITTED)
    await folder.mark()
    over = [Written("b"), Written("over", OVER), Written("over", OVER)]
    await folder.segment(WIDE, Ledger(1, [Written("a")], 1), Ledger(2, over, 3), Ledger(3, [Written("d")], 0))
    await folder.ops(OVER, WIDE, 2)
    stored = (await folder.picture()).ledgers[WIDE]
    first, second, third = stored.ledgers
    closed = [first, replace(second, closed_length=2), third]
    await folder.record(keys.ledger(WIDE), replace(stored, ledgers=closed))
    await folder.repair()
    picture = await folder.picture()
    assert picture.headers[OVER].state == ABORTED
    assert [one.closed_length for one in picture.ledgers[WIDE].ledgers] == [1, 2, 0]


async def test_c12_acks_in_an_open_ledger_that_is_damaged_stay(folder: ShortFolder) -> None:
    """▲ They count once it is mended: what was acked would come again."""
    await folder.record(keys.topic(TOPIC), split_in_two(TOPIC))
    await folder.record(keys.subscription(TOPIC, "job"), SubscriptionRecord(type="stream", start={"kind": "earliest"}))
    await folder.header(LATE, COMMITTED)
    await folder.mark()
    await folder.segment(
        WIDE,
        Ledger(1, [Written("a"), Written("b")], 1),
        Ledger(2, [Written("c"), Written("d"), Written("e")], 3, open=True),
    )
    blocks = {f"{ledger_id}-0": CursorBlock(ledger_id=ledger_id, first_entry=0, acked="06") for ledger_id in (1, 2)}
    for name, block in blocks.items():
        await folder.record(keys.cursor_block(WIDE, "job", name), block)
    await folder.record(keys.cursor_block(WIDE, "job", "mark"), CursorMark(position=(2, 0)))
    damage(file(folder, WIDE, "2.ledger"))
    await folder.repair()
    picture = await folder.picture()
    assert picture.ledgers[WIDE].ledgers[1].closed_length is None, "nobody serves it"
    assert picture.blocks == {(WIDE, "job"): {"2-0": blocks["2-0"]}}
    assert picture.marks[WIDE, "job"].position == (2, 0)


async def test_c12_of_many_dropped_transactions_all_are_counted_and_the_first_are_named(folder: ShortFolder) -> None:
    many = [TxnId(1, n) for n in range(1, 24)]
    await folder.record(keys.topic(TOPIC), split_in_two(TOPIC))
    await folder.mark()
    for txn_id in many:
        await folder.header(txn_id, COMMITTED)
    await folder.segment(WIDE, Ledger(1, [Written("a")], 0))
    found = [text for rule, text in await folder.repair() if rule == "torn"]
    assert [text.split()[0] for text in found[:-1]] == [str(txn_id) for txn_id in many[:20]]
    assert found[-1].startswith("1 entries or more are missing, in 1 segments. 23 committed transactions that lost")
    [listed] = folder.data.glob("dropped-*.jsonl")
    assert len(listed.read_text().splitlines()) == 23
    assert {one.state for one in (await folder.picture()).headers.values()} == {ABORTED}


async def test_c12_a_folder_with_entries_begun_behind_etcd_was_not_copied_before_it_and_loses_nothing(
    folder: ShortFolder,
) -> None:
    """▲ In whichever order they stand: what was committed in the last moment would be aborted, though it is whole."""
    await folder.record(keys.topic(TOPIC), split_in_two(TOPIC))
    await folder.mark()
    await folder.header(LATE, COMMITTED)
    await folder.segment(WIDE, Ledger(1, [Written("late", LATE), Written("begun later", TxnId(1, 2000))], 2))
    await folder.repair()
    assert (await folder.picture()).headers[LATE].state == COMMITTED


async def test_c12_a_repaired_folder_is_served_and_shows_whole_transactions_alone(folder: ShortFolder) -> None:
    """With a real broker; in each segment what is left, and nothing of what was dropped or aborted."""
    await fill(folder)
    await folder.repair()

    async def make_store() -> MetadataStore:
        return MemoryStore(folder.etcd, SystemClock(), random.Random(1))

    cluster = Cluster(make_store, folder.store, folder.data)
    try:
        client = await cluster.connect(await cluster.start())
        for segment, expected in (
            (SEALED, ["plain", "whole", "a"]),
            (WIDE, ["wide", "whole", "acks", "d"]),
            (LEFT, []),
            (RIGHT, ["right", "right", "f", "g"]),
        ):
            reader = await client.reader(segment)
            if segment == SEALED:
                await reader.wait(*expected)
                continue
            await (await client.producer(segment, name="last")).send("the end")
            await reader.wait(*expected, "the end")
    finally:
        await cluster.close()


async def one_sidecar_lost(folder: ShortFolder, *, short: bool, damaged: bool = False) -> list[tuple[str, str]]:
    """Of EARLIER nothing tells but the sidecar of ledger 1, which is short; of GONE etcd, too. The sidecar of 2 is lost
    or `damaged`, or with `short` that of 1."""
    await folder.record(keys.topic(TOPIC), split_in_two(TOPIC))
    await folder.header(GONE, ABORTED)
    await folder.mark()
    await folder.segment(
        WIDE,
        Ledger(
            1,
            [Written("e", EARLIER), Written("b"), Written("c")],
            2,
            aborted={EARLIER: Position(1, 0)},
            sidecar=not short,
        ),
        Ledger(2, [Written("g", GONE), Written("d")], 2, aborted={GONE: Position(2, 0)}, sidecar=short),
    )
    await folder.record(keys.watermark(WIDE), Watermark(position=(2, 1)))
    if damaged:
        file(folder, WIDE, "1.sidecar" if short else "2.sidecar").write_bytes(b"half")
    return await folder.repair()


@pytest.mark.parametrize("damaged", [False, True], ids=["lost", "damaged"])
async def test_c12_what_the_sidecar_of_a_short_ledger_listed_is_known_where_another_is_lost(
    folder: ShortFolder, damaged: bool
) -> None:
    """▲ Taken for unknown, nobody would serve the segment; and a damaged one would end every repair."""
    found = await one_sidecar_lost(folder, short=False, damaged=damaged)
    [told] = [text for rule, text in found if rule == "sidecars"]
    assert told == f"{WIDE}: those of ledgers 2 are lost; etcd still has their records"
    assert {place[1]: position for place, position in (await folder.aborted()).items()} == {
        EARLIER: (1, 0),
        GONE: (2, 0),
    }
    assert [one.aborted for one in (await folder.picture()).ledgers[WIDE].ledgers] == [0, 0]
    assert not file(folder, WIDE, "2.sidecar").exists()
    assert await folder.findings() == []


@pytest.mark.parametrize("damaged", [False, True], ids=["lost", "damaged"])
async def test_c12_where_the_sidecar_of_a_short_ledger_is_lost_itself_nobody_serves(
    folder: ShortFolder, damaged: bool
) -> None:
    """▲ Off the list, what it had listed as aborted would be read."""
    found = await one_sidecar_lost(folder, short=True, damaged=damaged)
    told = [text for rule, text in found if "and no broker serves the segment" in text]
    begin = f"{WIDE}: the sidecars of ledgers 1 are lost, so it is not known whether {EARLIER} "
    assert [text[: len(begin)] for text in told] == [begin]
    assert [one.aborted for one in (await folder.picture()).ledgers[WIDE].ledgers] == [1, 1]
