"""The cut's last step case by case, the order of its questions, and a segment's answers (DESIGN §10)."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from segments.controller.cut import Cut, Layouts, Resolved, StartOver, Tail, read_layouts, settled_in, topic_keys
from segments.controller.snapshots import Snapshots
from segments.layout.topology import Topology, create_record
from tests.segments.controller.cut_records import (
    LEFT,
    ONE,
    RIGHT,
    TOPIC,
    TOPOLOGY,
    TWO,
    R,
    found,
    owner_record,
    record,
    topic_record,
)
from tests.segments.virtual_time import LoopClock, virtual_time
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import GcHorizon, Header, OwnerRecord
from txnstore.store import Commit, Delete, KeyValue, Put
from txnwire.errors import MessageTooLarge, NotOwner, Overloaded, StoreUnavailable, Timeout, TopicNotFound
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.names import TopicName
from txnwire.snapshot import SegmentBounds, Snapshot, TopicBounds
from txnwire.turns import Steps, at_once, turns_divided_by

DELETING = Topology(TOPIC, msgspec.structs.replace(TOPOLOGY.record, deleting_ms=5))


def header_record(txn_id: TxnId, state: str, revision: int, writers: list[str] | None = None) -> KeyValue:
    header = Header(state=state, timeout_ms=1, created_ms=0, writers=writers)
    return record(keys.txn(txn_id), header, version=1 if state == "OPEN" else 2, modified=revision)


def cut(*undecided: TxnId, aborted: Sequence[tuple[TxnId, int | None]] = (), epochs: Sequence[int] = (20, 20)) -> Cut:
    """LEFT names `undecided` and `aborted`; RIGHT answered first and second under `epochs`."""
    resolved = {LEFT: Resolved(20, Position(1, 3)), RIGHT: Resolved(epochs[0], Position(1, 0))}
    tails = {
        LEFT: Tail(20, Position(1, 9), undecided, tuple(aborted)),
        RIGHT: Tail(epochs[1], Position(1, 0)),
    }
    return Cut(read_layouts([TOPIC], [topic_record()]), resolved, R, tails)


def conclude(asked: Cut, read: Sequence[KeyValue | None]) -> Snapshot | StartOver:
    at_once(asked.final_keys())
    return at_once(asked.conclude(read))


def concluded(asked: Cut, *headers: KeyValue | None) -> Snapshot:
    snapshot = conclude(asked, found(*headers))
    assert isinstance(snapshot, Snapshot)
    return snapshot


def test_the_last_read_names_everything_that_may_have_moved() -> None:
    assert at_once(cut(TWO, ONE).final_keys()) == [
        keys.topic(TOPIC.path),
        keys.owner(LEFT),
        keys.owner(RIGHT),
        keys.GC_HORIZON,
        keys.txn(ONE),
        keys.txn(TWO),
    ]


def test_a_snapshot_has_the_bounds_of_every_segment() -> None:
    snapshot = concluded(cut())
    assert snapshot.revision == R
    assert snapshot.topics[str(TOPIC)].epoch == TOPOLOGY.epoch
    assert snapshot.segments == {
        LEFT: SegmentBounds(Position(1, 3), Position(1, 9)),
        RIGHT: SegmentBounds(Position(1, 0), Position(1, 0)),
    }


@pytest.mark.parametrize(
    ("header", "pending", "aborted", "counted"),
    [
        (header_record(ONE, "OPEN", 50), (ONE,), (), {}),
        (header_record(ONE, "COMMITTED", R + 1), (ONE,), (), {}),
        (header_record(ONE, "ABORTED", R + 1), (ONE,), (), {}),
        (header_record(ONE, "COMMITTED", R), (), (), {}),
        (header_record(ONE, "ABORTED", R), (), (ONE,), {}),
        (header_record(ONE, "COMMITTED", R, ["0000000000000007"]), (), (), {ONE: (7,)}),
        (header_record(ONE, "COMMITTED", R, []), (), (), {ONE: ()}),
    ],
)
def test_what_an_owner_names_undecided_is_judged_by_its_header(
    header: KeyValue, pending: tuple[TxnId, ...], aborted: tuple[TxnId, ...], counted: dict[TxnId, tuple[int, ...]]
) -> None:
    """Whatever the owner's lag: decided at or before R counts as such, later it is pending."""
    snapshot = concluded(cut(ONE), header)
    assert (snapshot.pending, snapshot.aborted, snapshot.counted) == (pending, aborted, counted)


def test_aborted_transactions_and_writers_that_do_not_count_are_told_apart() -> None:
    """Writer 0 is a writer like any other."""
    snapshot = concluded(cut(aborted=[(TWO, 0), (ONE, None), (TWO, 5)]))
    assert snapshot.aborted == (ONE,)
    assert snapshot.losers == ((TWO, 0), (TWO, 5))
    assert not snapshot.counts(TWO, 0)
    assert snapshot.counts(TWO, 1)


@pytest.mark.parametrize(
    ("asked", "read", "reason"),
    [
        (cut(), found(topic=topic_record(created=60)), "was deleted"),
        (cut(), found(topic=topic_record(DELETING)), "being deleted"),
        (cut(), found(right=owner_record(RIGHT, 61)), "changed its owner"),
        (cut(epochs=(19, 20)), found(), "changed its owner"),
        (cut(epochs=(20, 19)), found(), "changed its owner"),
        (cut(epochs=(19, 19)), found(), "changed its owner"),
        (cut(ONE), found(None), "collected"),
        (cut(ONE), found(None, horizon=record(keys.GC_HORIZON, GcHorizon(revision=R + 5))), "horizon 105"),
    ],
)
def test_whatever_has_moved_has_the_cut_begun_again(asked: Cut, read: list[KeyValue | None], reason: str) -> None:
    outcome = conclude(asked, read)
    assert isinstance(outcome, StartOver)
    assert reason in outcome.reason


def test_an_owner_that_ends_before_what_it_had_resolved_has_the_cut_begun_again() -> None:
    """Under one epoch: the snapshot would leave out what its own bounds call decided."""
    resolved = {LEFT: Resolved(20, Position(1, 3)), RIGHT: Resolved(20, Position(1, 0))}
    tails = {LEFT: Tail(20, Position(1, 2)), RIGHT: Tail(20, Position(1, 0))}
    outcome = conclude(Cut(read_layouts([TOPIC], [topic_record()]), resolved, R, tails), found())
    assert isinstance(outcome, StartOver)
    assert "ended at 1:2, before what it had resolved" in outcome.reason


def test_a_topic_or_an_owner_that_is_gone_has_the_cut_begun_again() -> None:
    gone = found()
    gone[0] = None
    assert isinstance(conclude(cut(), gone), StartOver)
    ownerless = found()
    ownerless[1] = None
    assert isinstance(conclude(cut(), ownerless), StartOver)


def test_other_policies_move_nothing() -> None:
    changed = Topology(TOPIC, msgspec.structs.replace(TOPOLOGY.record, policies={"retention_ms": 5}))
    assert isinstance(conclude(cut(), found(topic=topic_record(changed))), Snapshot)


def test_a_topic_that_is_not_there_is_said_to_be_so() -> None:
    assert topic_keys([TOPIC]) == [keys.topic(TOPIC.path)]
    with pytest.raises(TopicNotFound, match="flights does not exist: create it first"):
        read_layouts([TOPIC], [None])
    with pytest.raises(TopicNotFound, match="being deleted"):
        read_layouts([TOPIC], [topic_record(DELETING)])
    assert read_layouts([TOPIC], [topic_record()]).segments == (LEFT, RIGHT)
    assert isinstance(read_layouts([], []), Layouts)


# ---- the order of the questions -------------------------------------------------------------------------------------


class Asked:
    """Owners that answer at once; `on_resolved` happens at the first question of LEFT."""

    def __init__(self, store: MemoryStore, on_resolved: Callable[[], None] = lambda: None) -> None:
        self.store = store
        self.epoch = 0
        self.on_resolved = on_resolved
        self.revisions: list[int] = []
        self.refused = 0

    async def own(self, paths: Sequence[str]) -> None:
        owner = records.encode(OwnerRecord(broker="b", address="b:1"))
        puts = tuple(Put(keys.owner(path), owner) for path in paths)
        puts += tuple(Put(keys.ledger(path), b"{}") for path in paths)
        self.epoch = (await self.store.commit(Commit(puts=puts))).revision

    async def resolved(self, segment: str) -> Resolved:
        if segment == LEFT:
            self.on_resolved()
        if self.refused:
            self.refused -= 1
            raise NotOwner(f"{segment} has no owner at the moment")
        return Resolved(self.epoch, Position(1, 0))

    async def tail(self, segment: str, revision: int, resolved: Position) -> Tail:
        self.revisions.append(revision)
        return Tail(self.epoch, Position(1, 0))


async def _asked(topology: Topology = TOPOLOGY) -> tuple[MemoryEtcd, Asked, Snapshots]:
    etcd = MemoryEtcd(LoopClock())
    store = MemoryStore(etcd, LoopClock(), random.Random(0))
    await store.commit(Commit(puts=(Put(keys.topic(TOPIC.path), records.encode(topology.record)),)))
    asked = Asked(store)
    await asked.own(list(topology.paths.values()))
    return etcd, asked, Snapshots(store, asked, LoopClock(), random.Random(0))


@virtual_time
async def test_r_is_read_behind_every_first_answer() -> None:
    """▲ Read before them, a transaction decided in between would be pending, with entries below a `resolved`."""
    etcd, asked, snapshots = await _asked()

    def decided_meanwhile() -> None:
        etcd.mvcc.commit([Commit(puts=(Put(keys.txn(ONE), b"{}"),))])

    asked.on_resolved = decided_meanwhile
    snapshot = await snapshots.take([TOPIC], timeout_s=5)
    assert snapshot.revision == etcd.mvcc.revision
    assert asked.revisions == [snapshot.revision] * 2
    await asked.store.close()


@virtual_time
async def test_a_cut_is_taken_once_the_store_has_come_to_the_revision_that_is_asked_for() -> None:
    """▲ Who was told of a commit by another client would miss its messages in one from before it."""
    etcd, asked, snapshots = await _asked()
    at_least = etcd.mvcc.revision + 3
    taking = asyncio.ensure_future(snapshots.take([TOPIC], at_least=at_least, timeout_s=60))
    while etcd.mvcc.revision < at_least:
        await asyncio.sleep(1)
        assert not taking.done()
        assert not asked.revisions
        etcd.mvcc.commit([Commit(puts=(Put(b"/elsewhere", b"{}"),))])
    assert (await taking).revision == at_least
    with pytest.raises(Timeout, match=f"at revision {at_least} and at_least asks for {at_least + 1}"):
        await snapshots.take([TOPIC], at_least=at_least + 1, timeout_s=5)
    await asked.store.close()


def steps_of(work: Steps[object]) -> int:
    return sum(1 for _ in work)


def test_the_last_step_yields_between_the_parts_of_what_is_open_of_aborted_ones_and_of_topics() -> None:
    """A quarter of a million transactions may be open."""
    many = [TxnId(number % 2, number // 2 + 1) for number in range(40)]
    aborted = [(TxnId(3, number + 1), 7 if number % 2 else None) for number in range(40)]
    with turns_divided_by(100):  # ten transactions at once
        asked = cut(*reversed(many), aborted=aborted)
        assert steps_of(asked.final_keys()) >= 4 + 4 + 2 + 4
        headers = [header_record(txn_id, "OPEN", 50) for txn_id in sorted(many)]
        assert steps_of(asked.conclude(found(*headers))) >= 1 + 1 + 4 + 4 + 4 + 1 + 4 + 1
        snapshot = concluded(asked, *headers)
    assert snapshot.pending == tuple(sorted(many))
    assert snapshot.aborted == tuple(txn_id for txn_id, writer in aborted if writer is None)
    assert snapshot.losers == tuple((txn_id, writer) for txn_id, writer in aborted if writer is not None)


def test_what_was_made_after_the_revision_is_left_out() -> None:
    """Nothing that was committed by then is in it."""
    snapshot = conclude(cut(), found(topic=topic_record(TOPOLOGY.split(1))))
    assert isinstance(snapshot, Snapshot)
    assert snapshot.topics[str(TOPIC)].epoch == 1
    assert list(snapshot.segments) == [LEFT, RIGHT]


@pytest.mark.parametrize("owned", [False, True])
@virtual_time
async def test_a_split_between_the_first_question_and_the_revision_costs_no_more_than_asking_its_children(
    owned: bool,
) -> None:
    """▲ They are in the layout at the revision, and may hold what was committed by then, unless nobody has owned them
    yet: then there is nothing in them, and nobody to be asked."""
    etcd, asked, snapshots = await _asked()
    layout = TOPOLOGY.split(1)
    children = [path for path in layout.paths.values() if path not in (LEFT, RIGHT)]
    splits = [layout.record]

    def split() -> None:
        for layout_record in splits:
            puts = [Put(keys.topic(TOPIC.path), records.encode(layout_record))]
            puts += [Put(keys.ledger(path), b"{}") for path in children if owned]
            etcd.mvcc.commit([Commit(puts=tuple(puts))])
        splits.clear()

    asked.on_resolved = split
    if owned:  # and then asked: their owners are none of ours, so it never comes to an end
        with pytest.raises(Timeout, match="changed its owner"):
            await snapshots.take([TOPIC], timeout_s=5)
        assert len(asked.revisions) >= 4
    else:
        snapshot = await snapshots.take([TOPIC], timeout_s=5)
        assert snapshot.topics[str(TOPIC)].epoch == 2
        assert [snapshot.segments[path] for path in children] == [SegmentBounds(EARLIEST, EARLIEST)] * 2
        assert asked.revisions == [snapshot.revision] * 2
        assert snapshots.statistics().started_over == 0
    await asked.store.close()
    await asked.store.close()


@virtual_time
async def test_a_segment_without_an_owner_is_waited_for_and_named_when_the_time_is_up() -> None:
    _, asked, snapshots = await _asked()
    clock = LoopClock()
    asked.refused = 3
    await snapshots.take([TOPIC], timeout_s=5)
    assert snapshots.statistics().taken == 1
    assert asked.refused == 0
    asked.refused = 1_000_000
    with pytest.raises(Timeout, match="no owner at the moment"):
        await snapshots.take([TOPIC], timeout_s=5)
    with pytest.raises(TopicNotFound):
        await snapshots.take([TopicName("public", "nyc", "trains")], timeout_s=5)
    assert snapshots.statistics().failed == 2
    begun_s, before_s = clock.monotonic(), snapshots.statistics().taken_s
    asked.refused = 30
    await snapshots.take([TOPIC], timeout_s=5)
    assert before_s > 0
    assert snapshots.statistics().taken_s == pytest.approx(before_s + clock.monotonic() - begun_s)
    await asked.store.close()


@virtual_time
async def test_more_transactions_than_an_answer_can_name_are_said_to_be_too_many() -> None:
    _, asked, snapshots = await _asked()

    def too_large() -> None:
        raise MessageTooLarge("a command of 9000000 bytes is over the 8388608 bytes a frame can carry")

    asked.on_resolved = too_large
    with pytest.raises(Overloaded, match="txnctl transactions hanging"):
        await snapshots.take([TOPIC], timeout_s=5)
    assert snapshots.statistics().failed == 1
    await asked.store.close()


# ---- a segment's answers --------------------------------------------------------------------------------------------


SPLIT = TOPOLOGY.split(0)


CHILDREN = (SPLIT.paths[2], SPLIT.paths[3])


def test_a_segment_that_is_sealed_and_decided_is_asked_once() -> None:
    """▲ Sealed by its topic's record, and only once nothing of it is pending."""
    layouts = read_layouts([TOPIC], [topic_record(SPLIT)])
    assert layouts.segments == (LEFT, RIGHT, *CHILDREN)
    empty = Resolved(20, Position(0, -1))
    resolved = {LEFT: Resolved(20, Position(1, 9)), RIGHT: Resolved(20, Position(1, 0))} | dict.fromkeys(
        CHILDREN, empty
    )
    tails = {path: Tail(20, at) for path, (_, at) in resolved.items()}
    owners = [owner_record(path) for path in layouts.segments]
    first = conclude(Cut(layouts, resolved, R, tails), [topic_record(SPLIT), *owners, None])
    assert isinstance(first, Snapshot)
    assert first.segments[LEFT] == SegmentBounds(Position(1, 9), Position(1, 9), sealed=True)
    assert settled_in(first) == {LEFT: Position(1, 9)}
    known = read_layouts([TOPIC], [topic_record(SPLIT)]).knowing(settled_in(first))
    assert known.segments == (RIGHT, *CHILDREN)
    later = Cut(known, resolved, R + 1, tails)
    assert keys.owner(LEFT) not in at_once(later.final_keys())
    again = conclude(later, [topic_record(SPLIT), *owners[1:], None])
    assert isinstance(again, Snapshot)
    assert again.topics == first.topics
    pending = Cut(layouts, resolved | {LEFT: Resolved(20, Position(1, 8))}, R, tails)
    snapshot = conclude(pending, [topic_record(SPLIT), *owners, None])
    assert isinstance(snapshot, Snapshot)
    assert settled_in(snapshot) == {}


OTHER = Topology(TopicName("public", "nyc", "trains"), create_record(2, policies={}, created_ms=0))


def other_record(topology: Topology = OTHER, *, created: int = 10) -> KeyValue:
    return record(keys.topic(OTHER.topic.path), topology.record, created=created)


@pytest.mark.parametrize("divisor", [1, 1000])  # all at once, one by one
def test_a_cut_over_two_topics_holds_both_unless_any_part_of_them_has_moved(divisor: int) -> None:
    """▲ What is not looked at may be erased, or owned by another broker that has stored more."""
    paths = [*TOPOLOGY.active_paths, *OTHER.active_paths]
    layouts = read_layouts([TOPIC, OTHER.topic], [topic_record(), other_record()])
    answers = dict.fromkeys(paths, Position(1, 0))
    resolved = {path: Resolved(20, at) for path, at in answers.items()}
    tails = {path: Tail(20, at) for path, at in answers.items()}
    still = [topic_record(), other_record(), *(owner_record(path) for path in paths), None]
    deleting = Topology(OTHER.topic, msgspec.structs.replace(OTHER.record, deleting_ms=5))
    moved = [
        (1, other_record(created=60), "trains was deleted"),
        (1, other_record(deleting), "trains is being deleted"),
        (5, owner_record(paths[3], 61), f"{paths[3]} changed its owner"),
    ]
    with turns_divided_by(divisor):
        snapshot = conclude(Cut(layouts, resolved, R, tails), still)
        assert isinstance(snapshot, Snapshot)
        assert list(snapshot.topics) == [str(TOPIC), str(OTHER.topic)]
        assert list(snapshot.segments) == paths
        for place, now, reason in moved:
            outcome = conclude(Cut(layouts, resolved, R, tails), [*still[:place], now, *still[place + 1 :]])
            assert isinstance(outcome, StartOver)
            assert reason in outcome.reason


def test_of_every_topic_what_is_settled_need_not_be_asked() -> None:
    layouts = read_layouts([TOPIC, OTHER.topic], [topic_record(), other_record()])
    settled = dict.fromkeys((*TOPOLOGY.active_paths, *OTHER.active_paths), EARLIEST)
    assert layouts.knowing(settled).segments == ()
    end = Position(1, 9)
    bounds = dict.fromkeys((LEFT, RIGHT), SegmentBounds(end, end, sealed=True))
    snapshot = Snapshot(revision=R, topics={str(TOPIC): TopicBounds(1, bounds)}, pending=(), aborted=())
    assert settled_in(snapshot) == {LEFT: end, RIGHT: end}


def test_a_segment_on_its_way_out_of_the_graph_is_not_asked() -> None:
    """Nobody serves it, and nothing is left in it."""
    going = Topology(TOPIC, msgspec.structs.replace(SPLIT.record, pruning=[0]))
    assert read_layouts([TOPIC], [topic_record(going)]).segments == (RIGHT, *CHILDREN)


@virtual_time
async def test_of_a_segment_that_is_settled_not_even_the_owner_need_be_there() -> None:
    """What a cut asks does not grow with a topic's history, and what nobody serves for a while holds up none."""
    _, asked, snapshots = await _asked(SPLIT)
    first = await snapshots.take([TOPIC], timeout_s=5.0)
    assert len(asked.revisions) == 4
    await asked.store.commit(Commit(deletes=(Delete(keys.owner(LEFT)),)))
    again = await snapshots.take([TOPIC], timeout_s=5.0)
    assert len(asked.revisions) == 4 + 3
    assert again.topics == first.topics
    await asked.store.close()


@pytest.mark.parametrize("answered", range(4))
@virtual_time
async def test_a_cut_is_begun_again_whichever_question_the_store_does_not_answer(
    answered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, asked, snapshots = await _asked()
    get_many, calls = asked.store.get_many, itertools.count()

    async def away(*wanted: Any, **options: Any) -> Any:
        if next(calls) == answered:
            raise StoreUnavailable("etcd is away")
        return await get_many(*wanted, **options)

    monkeypatch.setattr(asked.store, "get_many", away)
    snapshot = await snapshots.take([TOPIC], timeout_s=5.0)
    assert snapshot.segments[LEFT].end == Position(1, 0)
    assert snapshots.statistics().started_over == (1 if answered < 3 else 0)
    await asked.store.close()
