"""The cut's last step case by case, the order of its questions, and a segment's answers (DESIGN §10)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import msgspec
import pytest

from segments.cut import Cut, Layouts, Resolved, StartOver, Tail, read_layouts, topic_keys
from segments.segment_cuts import NOTED_FOR_S, SegmentCuts
from segments.snapshots import Snapshots
from segments.topology import Topology, create_record
from tests.segments.virtual_time import LoopClock, run
from txnstore import keys, records
from txnstore.memory_etcd import MemoryEtcd
from txnstore.memory_store import MemoryStore
from txnstore.records import GcHorizon, Header, Owner
from txnstore.store import Commit, Delete, KeyValue, Put
from txnwire.errors import MessageTooLarge, NotOwner, Overloaded, Timeout, TopicNotFound
from txnwire.ids import Position, TxnId
from txnwire.names import TopicName
from txnwire.snapshot import SegmentBounds, Snapshot
from watchers.outcomes import Decision
from watchers.visibility import TransactionBuffer

TOPIC = TopicName("public", "nyc", "flights")
TOPOLOGY = Topology(TOPIC, create_record(2, policies={}, created_ms=0))
DELETING = Topology(TOPIC, msgspec.structs.replace(TOPOLOGY.record, deleting_ms=5))
LEFT, RIGHT = TOPOLOGY.active_paths
ONE, TWO = TxnId(0, 1), TxnId(0, 2)
R = 100


def record(key: bytes, value: msgspec.Struct, *, version: int = 1, created: int = 10, modified: int = 10) -> KeyValue:
    return KeyValue(key, records.encode(value), version, created, modified)


def topic_record(topology: Topology = TOPOLOGY, *, created: int = 10) -> KeyValue:
    return record(keys.topic(TOPIC.path), topology.record, created=created)


def owner_record(path: str, epoch: int = 20) -> KeyValue:
    return record(keys.owner(path), Owner(broker="b", address="b:1"), created=epoch)


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


def found(
    *headers: KeyValue | None,
    topic: KeyValue | None = None,
    right: KeyValue | None = None,
    horizon: KeyValue | None = None,
) -> list[KeyValue | None]:
    return [topic or topic_record(), owner_record(LEFT), right or owner_record(RIGHT), horizon, *headers]


def concluded(asked: Cut, *headers: KeyValue | None) -> Snapshot:
    snapshot = asked.conclude(found(*headers))
    assert isinstance(snapshot, Snapshot)
    return snapshot


def test_the_last_read_names_everything_that_may_have_moved() -> None:
    assert cut(TWO, ONE).final_keys == [
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
        (cut(), found(topic=topic_record(TOPOLOGY.split(1))), "layout epoch 1 to 2"),
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
    outcome = asked.conclude(read)
    assert isinstance(outcome, StartOver)
    assert reason in outcome.reason


def test_a_topic_or_an_owner_that_is_gone_has_the_cut_begun_again() -> None:
    gone = found()
    gone[0] = None
    assert isinstance(cut().conclude(gone), StartOver)
    ownerless = found()
    ownerless[1] = None
    assert isinstance(cut().conclude(ownerless), StartOver)


def test_other_policies_move_nothing() -> None:
    changed = Topology(TOPIC, msgspec.structs.replace(TOPOLOGY.record, policies={"retention_ms": 5}))
    assert isinstance(cut().conclude(found(topic=topic_record(changed))), Snapshot)


def test_a_topic_that_is_not_there_is_said_to_be_so() -> None:
    assert topic_keys([TOPIC]) == [keys.topic(TOPIC.path)]
    with pytest.raises(TopicNotFound, match="flights"):
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

    async def own(self) -> None:
        owner = records.encode(Owner(broker="b", address="b:1"))
        puts = tuple(Put(keys.owner(path), owner) for path in (LEFT, RIGHT))
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


async def _asked() -> tuple[MemoryEtcd, Asked, Snapshots]:
    etcd = MemoryEtcd(LoopClock())
    store = MemoryStore(etcd, LoopClock(), random.Random(0))
    await store.commit(Commit(puts=(Put(keys.topic(TOPIC.path), records.encode(TOPOLOGY.record)),)))
    asked = Asked(store)
    await asked.own()
    return etcd, asked, Snapshots(store, asked, LoopClock(), random.Random(0))


def test_r_is_read_behind_every_first_answer() -> None:
    """▲ Read before them, a transaction decided in between would be pending, with entries below a `resolved`."""

    async def scenario() -> None:
        etcd, asked, snapshots = await _asked()

        def decided_meanwhile() -> None:
            etcd.mvcc.commit([Commit(puts=(Put(keys.txn(ONE), b"{}"),))])

        asked.on_resolved = decided_meanwhile
        snapshot = await snapshots.take([TOPIC], timeout_s=5)
        assert snapshot.revision == etcd.mvcc.revision
        assert asked.revisions == [snapshot.revision] * 2
        await asked.store.close()

    run(scenario())


def test_a_layout_that_changes_while_the_cut_is_taken_has_it_begun_again() -> None:
    async def scenario() -> None:
        etcd, asked, snapshots = await _asked()
        changes = [TOPOLOGY.split(1).record]

        def split() -> None:
            if changes:
                put = Put(keys.topic(TOPIC.path), records.encode(changes.pop()))
                children = tuple(Put(keys.owner(path), b'{"v":1,"broker":"b","address":"b:1"}') for path in paths)
                etcd.mvcc.commit([Commit(puts=(put, *children))])

        paths = [path for path in TOPOLOGY.split(1).paths.values() if path not in (LEFT, RIGHT)]
        asked.on_resolved = split
        with pytest.raises(Timeout, match="changed its owner"):
            await snapshots.take([TOPIC], timeout_s=5)  # the children's owners are none of ours: never concluded
        assert snapshots.statistics().started_over > 1
        assert snapshots.statistics().failed == 1
        asked.epoch = etcd.mvcc.revision + 1
        owners = tuple(Put(keys.owner(path), b'{"v":1,"broker":"b","address":"b:1"}') for path in (LEFT, RIGHT, *paths))
        etcd.mvcc.commit([Commit(deletes=tuple(Delete(put.key) for put in owners))])
        etcd.mvcc.commit([Commit(puts=owners)])
        asked.epoch = etcd.mvcc.revision
        assert (await snapshots.take([TOPIC], timeout_s=5)).topics[str(TOPIC)].epoch == 2
        await asked.store.close()

    run(scenario())


def test_a_segment_without_an_owner_is_waited_for_and_named_when_the_time_is_up() -> None:
    async def scenario() -> None:
        _, asked, snapshots = await _asked()
        asked.refused = 3
        await snapshots.take([TOPIC], timeout_s=5)
        assert snapshots.statistics().taken == 1
        assert snapshots.statistics().started_over > 0
        asked.refused = 1_000_000
        with pytest.raises(Timeout, match="no owner at the moment"):
            await snapshots.take([TOPIC], timeout_s=5)
        with pytest.raises(TopicNotFound):
            await snapshots.take([TopicName("public", "nyc", "trains")], timeout_s=5)
        assert snapshots.statistics().failed == 2
        await asked.store.close()

    run(scenario())


def test_more_transactions_than_an_answer_can_name_are_said_to_be_too_many() -> None:
    async def scenario() -> None:
        _, asked, snapshots = await _asked()

        def too_large() -> None:
            raise MessageTooLarge("a command of 9000000 bytes is over the 8388608 bytes a frame can carry")

        asked.on_resolved = too_large
        with pytest.raises(Overloaded, match="txnctl transactions hanging"):
            await snapshots.take([TOPIC], timeout_s=5)
        assert snapshots.statistics().failed == 1
        await asked.store.close()

    run(scenario())


# ---- a segment's answers --------------------------------------------------------------------------------------------


class Answering:
    """A segment's half of a cut over a buffer, with a clock to be moved."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.followed = asyncio.Event()
        self.buffer = TransactionBuffer(LEFT)
        self.lost: Exception | None = None
        self.cuts = SegmentCuts(
            LEFT, self.buffer, self, check=self.check, wait_followed=self.wait_followed, wait_s=10.0
        )

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0

    def check(self) -> None:
        if self.lost is not None:
            raise self.lost

    async def wait_followed(self, revision: int) -> None:
        await self.followed.wait()

    def write(self, txn_id: TxnId, position: Position) -> None:
        self.buffer.op_started(txn_id, 0)
        self.buffer.appended(txn_id, 0, position)
        self.buffer.confirmed(position)
        self.buffer.op_finished(txn_id)


def test_an_answer_waits_until_decisions_are_followed_and_nothing_decided_is_in_flight() -> None:
    async def scenario() -> None:
        segment = Answering()
        segment.write(ONE, Position(1, 0))
        assert segment.cuts.begin() == Position(1, -1)
        segment.buffer.op_started(ONE, 0)
        answering = asyncio.ensure_future(segment.cuts.answer(R, Position(0, -1)))
        await asyncio.sleep(1)
        assert not answering.done(), "decisions are not followed to R"
        segment.buffer.decided(Decision(ONE, True, R - 1))
        segment.followed.set()
        await asyncio.sleep(1)
        assert not answering.done(), "an entry of what is committed at R is still on its way"
        segment.buffer.appended(ONE, 0, Position(1, 1))
        segment.buffer.confirmed(Position(1, 1))
        segment.buffer.op_finished(ONE)
        segment.cuts.woken()
        found = await answering
        assert found == (Position(1, 1), (), ())

    run(scenario())


def test_an_answer_that_cannot_come_ends_by_its_time_limit_or_with_the_segment() -> None:
    async def scenario() -> None:
        segment = Answering()
        segment.followed.set()
        segment.cuts.begin()
        segment.buffer.op_started(ONE, 0)
        segment.buffer.decided(Decision(ONE, True, R))
        with pytest.raises(Timeout, match="operation in flight"):
            await segment.cuts.answer(R, Position(0, -1))
        answering = asyncio.ensure_future(segment.cuts.answer(R, Position(0, -1)))
        await asyncio.sleep(1)
        segment.lost = NotOwner("lost")
        segment.cuts.woken()
        with pytest.raises(NotOwner):
            await answering

    run(scenario())


def test_what_was_decided_after_r_is_named_though_it_is_applied_and_cleaned_up() -> None:
    async def scenario() -> None:
        segment = Answering()
        segment.followed.set()
        segment.cuts.begin()
        for number, txn_id in enumerate((ONE, TWO)):
            segment.write(txn_id, Position(1, number))
        for decision in (Decision(ONE, True, R + 1), Decision(TWO, False, R + 2)):
            applied = segment.buffer.decided(decision)
            assert applied is not None
            segment.buffer.cleaned([applied])
        found = await segment.cuts.answer(R, Position(0, -1))
        assert found == (Position(1, 1), (ONE, TWO), ()), "aborted later is pending, not aborted"
        found = await segment.cuts.answer(R + 1, Position(0, -1))
        assert found.undecided == (TWO,)
        found = await segment.cuts.answer(R + 2, Position(0, -1))
        assert (found.undecided, found.aborted) == ((), ((TWO, None),))

    run(scenario())


def test_an_answer_needs_decisions_noted_since_before_r() -> None:
    """▲ After a while they are noted no more: better no cut than one that misses what was decided meanwhile."""

    async def scenario() -> None:
        segment = Answering()
        segment.followed.set()
        with pytest.raises(Timeout, match="begin it again"):
            await segment.cuts.answer(R, Position(0, -1))
        segment.cuts.begin()
        segment.write(ONE, Position(1, 0))
        segment.now_s = NOTED_FOR_S + 1
        segment.cuts.woken()
        segment.buffer.decided(Decision(ONE, True, R + 5))
        segment.cuts.begin()  # another cut's: what was decided before it is not known
        with pytest.raises(Timeout, match="begin it again"):
            await segment.cuts.answer(R, Position(0, -1))
        assert (await segment.cuts.answer(R + 5, Position(0, -1))).undecided == ()

    run(scenario())
