"""The judge of transactions' records finds each thing that it looks for, and nothing in a life as it should be (X5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.judges.record_judge import RecordJudge
from txnstore import keys, records
from txnstore.access.backend import Reason, Refused
from txnstore.memory.memory_etcd import Arrival
from txnstore.memory.mvcc import Mvcc
from txnstore.records import (
    ABORTED,
    COMMITTED,
    OPEN,
    AbortedRecord,
    GcHorizon,
    Header,
    Op,
    OwnerRecord,
    RegistrationRecord,
    TxnName,
    TxnSeq,
)
from txnstore.store import Commit, Delete, Put
from txnstore.writes.collection_transitions import Collectable, Horizon, OutcomeBitmap, plan_collect
from txnstore.writes.op_transitions import aborted_rewrite, plan_ack_op, plan_clean_up, plan_write_op
from txnstore.writes.transitions import decide, plan_begin, plan_end, plan_late_index
from txnwire.ids import TxnId

SEGMENT = "public/sim/in/0000-ffff-0"
TXN = TxnId(1, 5)
WRITE_OP = keys.op(keys.write_ops(TXN, SEGMENT), 3, 7)


def header(state: str = OPEN) -> Header:
    opened = Header(state=OPEN, timeout_ms=9000, created_ms=1000, attempt="a1")
    if state == OPEN:
        return opened
    return decide(opened, state, finalized_ms=2000, reason="client" if state == ABORTED else None, writers=None)


class Store:
    """Commits, shown to the judge as a simulated etcd would."""

    def __init__(self) -> None:
        self.mvcc = Mvcc()
        self.judge = RecordJudge()
        self.tc_epoch = self.write(Put(keys.tc(1), records.encode(RegistrationRecord(id="control-1", address="a:1"))))
        self.write(Put(keys.txn_seq(1), records.encode(TxnSeq(next=100))), by="control-1")
        self.epoch = self.write(Put(keys.owner(SEGMENT), records.encode(OwnerRecord(broker="broker-1", address="b:1"))))

    def commit(self, commit: Commit, by: str | None = None) -> int:
        before = self.mvcc.revision
        results = self.mvcc.commit([commit])
        assert results[0].succeeded
        if by is not None:
            self.judge.met(Arrival(request="commit", client=by, commits=(commit,), outcome=results))
        for change in self.mvcc.changes_since(before + 1, at_most=10):
            self.judge.saw(change.events)
        return self.mvcc.revision

    def write(self, *writes: Put | Delete, by: str | None = None) -> int:
        puts = tuple(one for one in writes if isinstance(one, Put))
        return self.commit(Commit((), puts, tuple(one for one in writes if isinstance(one, Delete))), by)

    def begin(self, txn_id: TxnId = TXN, by: str = "control-1") -> None:
        self.commit(plan_begin(txn_id, self.tc_epoch, header()), by)

    def op(self, counter: int = 7, first: bool = True) -> None:
        op = Op(v=1, kind="write", segment=SEGMENT, messages=1)
        self.commit(plan_write_op(TXN, SEGMENT, self.epoch, counter, op, first_in_segment=first), "broker-1")

    def end(self, state: str = COMMITTED, *, deadline_key: bool = False) -> int:
        return self.commit(plan_end(TXN, header(state), deadline_key=deadline_key), "control-1")

    def clean_up(self, aborted: bool = False) -> None:
        rewrites = [aborted_rewrite(SEGMENT, TXN, None, (1, 0))] if aborted else []
        self.commit(plan_clean_up(SEGMENT, self.epoch, writes=[TXN], rewrites=rewrites), "broker-1")

    def collect(self, revision: int, committed: bool = True) -> None:
        outcomes, final = OutcomeBitmap(1, 0), Collectable(TXN.counter, committed, revision)
        self.commit(plan_collect(self.tc_epoch, outcomes, [final], Horizon(), raise_to=revision, touched_ms=1))


@pytest.mark.parametrize("state", [COMMITTED, ABORTED])
def test_a_life_as_it_should_be_shows_nothing(state: str) -> None:
    store = Store()
    store.begin()
    store.op()
    store.op(8, first=False)
    store.commit(plan_late_index(TXN, store.tc_epoch, 9000), "control-1")
    store.write(Put(keys.txn_seq(1), records.encode(TxnSeq(next=100, indexed_below=50))), by="control-1")
    revision = store.end(state, deadline_key=True)
    store.clean_up(aborted=state == ABORTED)
    store.collect(revision, committed=state == COMMITTED)
    assert store.judge.findings == []


def test_names_that_may_go_may_go() -> None:
    store = Store()
    _names_committed(store)
    store.write(Delete(keys.txn_name("job/1")), Delete(keys.txn_name("other")))
    assert store.judge.findings == []


def put_header(state: str) -> Put:
    return Put(keys.txn(TXN), records.encode(header(state)))


def _opened(store: Store) -> None:
    store.begin()


def _with_op(store: Store) -> None:
    store.begin()
    store.op()


def _committed_with_op(store: Store) -> None:
    _with_op(store)
    store.end()


def _aborted_with_op(store: Store) -> None:
    _with_op(store)
    store.end(ABORTED)


def _late_indexed(store: Store) -> None:
    store.begin()
    store.commit(plan_late_index(TXN, store.tc_epoch, 9000))


def _named(store: Store) -> None:
    opened = Header(state=OPEN, timeout_ms=9000, created_ms=1000, attempt="a1", name="job")
    name = Put(keys.txn_name("job"), records.encode(TxnName(v=1, txn_id=str(TXN))))
    store.write(Put(keys.txn(TXN), records.encode(opened)), name)


def _names_committed(store: Store) -> None:
    """Begun in this order; `job/2` is the newest, and `other` asks for nothing."""
    for number, (name, newest) in enumerate((("job/1", True), ("job/2", True), ("other", False)), start=8):
        named = TxnName(v=1, txn_id=str(TxnId(1, number)), outcome=COMMITTED, keep_newest=newest)
        store.write(Put(keys.txn_name(name), records.encode(named)))


def _collected(store: Store) -> None:
    store.begin()
    store.collect(store.end())


def _succeeded(store: Store) -> None:
    """Another coordinator has the id: what is below 100 is its predecessor's."""
    store.write(Delete(keys.tc(1)))
    store.write(Put(keys.tc(1), records.encode(RegistrationRecord(id="control-2", address="a:2"))))


def _indexed_below(below: int) -> Callable[[Store], object]:
    def before(store: Store) -> None:
        store.write(Put(keys.txn_seq(1), records.encode(TxnSeq(next=100, indexed_below=below))), by="control-1")

    return before


def _nobodys_id(store: Store) -> None:
    store.write(Delete(keys.tc(1)))


def _nobodys_segment(store: Store) -> None:
    store.begin()
    store.write(Delete(keys.owner(SEGMENT)))


def _committed(store: Store) -> None:
    store.begin()
    store.end()


def _acked(store: Store) -> None:
    """Committed, with acks in a segment that nobody owns any more."""
    store.begin()
    op = Op(v=1, kind="ack", segment=SEGMENT, subscription="job", positions=[(1, 0, 1, "")])
    acked = plan_ack_op(TXN, SEGMENT, "job", store.epoch, 9, op, first_in_subscription=True)
    store.commit(acked, "broker-1")
    store.end()
    store.write(Delete(keys.owner(SEGMENT)))


def _named_and_committed(store: Store) -> None:
    _named(store)
    named = Header(state=COMMITTED, timeout_ms=9000, created_ms=1000, name="job")
    store.write(Put(keys.txn(TXN), records.encode(named)), by="control-1")


def _name_of_a_collected_one(store: Store) -> None:
    name = TxnName(v=1, txn_id=str(TXN), outcome=COMMITTED)
    store.write(Put(keys.txn_name("job"), records.encode(name)))


def _horizon(revision: int) -> Put:
    return Put(keys.GC_HORIZON, records.encode(GcHorizon(revision=revision)))


def _nothing(_: Store) -> None: ...


INDEX = Put(keys.write_index(SEGMENT, TXN), b"")
BROKEN: list[tuple[str, Callable[[Store], object], list[Put | Delete], str]] = [
    ("decided twice", _committed_with_op, [put_header(ABORTED)], "which was COMMITTED, is put as ABORTED"),
    ("begun as decided", _nothing, [put_header(COMMITTED)], "begins as COMMITTED"),
    ("begun again", _collected, [put_header(OPEN)], "begins a second time"),
    ("of no block", _nothing, [Put(keys.txn(TxnId(1, 100)), records.encode(header()))], "an id of no block"),
    ("of a predecessor", _succeeded, [put_header(OPEN)], "by an owner that was succeeded by control-2"),
    ("mark passes", _opened, [Put(keys.txn_seq(1), records.encode(TxnSeq(next=100, indexed_below=6)))], "passes"),
    ("ids go back", _opened, [Put(keys.txn_seq(1), records.encode(TxnSeq(next=99)))], "goes back"),
    ("deadline key stays", _late_indexed, [put_header(COMMITTED)], "keeps its deadline key"),
    ("deadline of nothing", _nothing, [Put(keys.deadline(9000, TXN), b"")], "its transaction is absent"),
    ("open and collected", _opened, [Delete(keys.txn(TXN))], "collected while it is open"),
    ("ops left", _committed_with_op, [Delete(keys.txn(TXN))], "is collected with ops"),
    ("outcome lost", _committed_with_op, [Delete(keys.txn(TXN))], "it was COMMITTED, and is known as None"),
    ("horizon", _committed_with_op, [Delete(keys.txn(TXN))], "is collected behind the horizon 0"),
    ("op without header", _nothing, [Put(WRITE_OP, b"{}"), INDEX], "its transaction is absent"),
    ("op after the decision", _committed_with_op, [Put(WRITE_OP, b"{}")], "its transaction is COMMITTED"),
    ("op of a former owner", _opened, [Put(WRITE_OP, b"{}"), INDEX], "the segment's owner is broker-1, under epoch"),
    ("op without index", _opened, [Put(WRITE_OP, b"{}")], "has 1 ops and no index key"),
    ("index without op", _opened, [INDEX], "has 0 ops and an index key"),
    ("name taken over", _named, [Put(keys.txn_name("job"), records.encode(TxnName(v=1, txn_id=str(TxnId(1, 6)))))],
     "goes from 0001-0000000000000005, which is OPEN"),
    ("outcome of another", _named,
     [Put(keys.txn_name("job"), records.encode(TxnName(v=1, txn_id=str(TXN), outcome=COMMITTED)))],
     "is told of an outcome of 0001-0000000000000005, which is not collected"),
    ("name forgotten early", _named, [Delete(keys.txn_name("job"))], "is not decided"),
    ("newest name forgotten", _names_committed, [Delete(keys.txn_name("job/2"))], "the newest commit of its prefix"),
    ("no record", _aborted_with_op,
     [Delete(keys.owner(SEGMENT)), Delete(keys.write_ops(TXN, SEGMENT), keys.prefix_end(keys.write_ops(TXN, SEGMENT)))],
     "aborted, go without a record while nobody owns the segment"),
    ("record without a position", _aborted_with_op,
     [Put(keys.aborted(SEGMENT, TXN), records.encode(AbortedRecord(max_position=None)))], "is put without a position"),
    ("begun below the mark", _indexed_below(6), [put_header(OPEN)], "begins below the late-index mark 6"),
    ("begun by nobody", _nobodys_id, [put_header(OPEN)], "begins, and nobody owns its coordinator id"),
    ("begun under the name of another", _named,
     [Put(keys.txn(TxnId(1, 6)), records.encode(Header(state=OPEN, timeout_ms=9000, created_ms=1000, name="job")))],
     "which does not lead to it"),
    ("name without the outcome", _named_and_committed, [Delete(keys.txn(TXN))], "does not say how it ended"),
    ("op in a segment of nobody", _nobodys_segment, [Put(WRITE_OP, b"{}"), INDEX], "the segment's owner is nobody"),
    ("acks lost", _acked,
     [Delete(keys.ack_ops(TXN, SEGMENT, "job"), keys.prefix_end(keys.ack_ops(TXN, SEGMENT, "job"))),
      Delete(keys.ack_index(SEGMENT, "job", TXN))], "committed, go while nobody owns the segment"),
    ("ids by nobody", _nobodys_id, [Put(keys.txn_seq(1), records.encode(TxnSeq(next=200)))],
     "is written, and nobody owns the coordinator id"),
    ("mark goes back", _indexed_below(3), [Put(keys.txn_seq(1), records.encode(TxnSeq(next=100, indexed_below=2)))],
     "goes back"),
    ("horizon goes back", lambda store: store.write(_horizon(5)), [_horizon(4)], "/gc-horizon goes back"),
    ("deadline of what is decided", _committed, [Put(keys.deadline(9000, TXN), b"")], "its transaction is COMMITTED"),
    ("name of a commit taken over", _name_of_a_collected_one,
     [Put(keys.txn_name("job"), records.encode(TxnName(v=1, txn_id=str(TxnId(1, 6)))))], "which is COMMITTED, to"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "writes", "told"), [case[1:] for case in BROKEN], ids=[case[0] for case in BROKEN])
def test_x5_what_breaks_a_rule_is_found(
    before: Callable[[Store], object], writes: list[Put | Delete], told: str
) -> None:
    store = Store()
    before(store)
    assert store.judge.findings == []
    store.write(*writes)
    assert any(told in finding for finding in store.judge.findings), store.judge.findings


def test_x5_what_somebody_else_does_than_the_owner_is_found() -> None:
    """Though it stands there as the owner would have put it."""
    store = Store()
    store.begin(by="control-2")
    op = Op(v=1, kind="write", segment=SEGMENT, messages=1)
    store.commit(plan_write_op(TXN, SEGMENT, store.epoch, 7, op, first_in_segment=True), "broker-2")
    begun, put = store.judge.findings
    assert "by control-2: " in begun
    assert begun.endswith("begins by an owner that was succeeded by control-1")
    assert "by broker-2: " in put
    assert put.endswith(f"is put, the segment's owner is broker-1, under epoch {store.epoch}")


def test_x5_a_sweep_by_a_coordinator_that_was_succeeded_is_found() -> None:
    store = Store()
    store.begin()
    _succeeded(store)
    swept = decide(header(), ABORTED, finalized_ms=2000, reason="session", writers=None)
    store.commit(plan_end(TXN, swept, deadline_key=False), "control-1")
    assert ["is aborted (session) by control-1, its owner is control-2" in one for one in store.judge.findings] == [
        True
    ]


def test_x5_a_named_transaction_that_is_aborted_like_a_lost_begin_is_found() -> None:
    store = Store()
    named = Header(state=OPEN, timeout_ms=9000, created_ms=1000, attempt="a1", name="job")
    name = Put(keys.txn_name("job"), records.encode(TxnName(v=1, txn_id=str(TXN))))
    store.write(Put(keys.txn(TXN), records.encode(named)), name)
    swept = decide(named, ABORTED, finalized_ms=2000, reason="unanswered", writers=None)
    store.commit(plan_end(TXN, swept, deadline_key=False), "control-1")
    assert ["which a named one never is" in one for one in store.judge.findings] == [True]


def test_an_op_key_used_twice_is_found() -> None:
    store = Store()
    store.begin()
    store.op()
    store.clean_up()
    store.op()
    assert any("is put a second time" in finding for finding in store.judge.findings)


def test_a_write_that_the_store_refuses_for_its_size_is_found() -> None:
    store = Store()
    refusal = Refused(Reason.MALFORMED, "etcdserver: request is too large")
    store.judge.met(Arrival(request="commit", client="broker-1", outcome=refusal))
    store.judge.met(Arrival(request="commit", client="broker-1", outcome=Refused(Reason.FULL, "no space")))
    assert store.judge.findings == ["a commit of broker-1 is refused: malformed: etcdserver: request is too large"]
