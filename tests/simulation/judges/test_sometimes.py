"""How rare branches are told from outside: by what etcd met, by what changed in it, by logs."""

from __future__ import annotations

import pytest

from simulation.judges.refusals import REFUSALS, refusal
from simulation.judges.sometimes import BRANCHES, LOGGED, Sometimes
from simulation.workloads.layout_work import RARE
from txnstore import keys
from txnstore.access.backend import Fenced, Reason, Refused
from txnstore.memory.memory_etcd import Arrival, MemoryEtcd
from txnstore.memory.mvcc import Mvcc
from txnstore.records import ABORTED, COMMITTED, OPEN, Header, Op, RegistrationRecord, encode
from txnstore.store import Commit, Compacted, Delete, Put, absent, created_at, version_is
from txnstore.writes.transitions import plan_begin, plan_end
from txnwire.ids import TxnId

SEGMENT = "public/sim/in/0000-ffff-0"
TXN = TxnId(0, 7)
OPENED = Header(state=OPEN, timeout_ms=1, created_ms=0, attempt="aa")
OP = Op(v=1, kind="write", segment=SEGMENT, producer="p", sequence_id=3)
OP_KEY = keys.op(keys.write_ops(TXN, SEGMENT), 1, 1)


def decided(state: str, reason: str | None = None, at_ms: int = 5) -> Header:
    return Header(state=state, timeout_ms=1, created_ms=0, attempt="aa", finalized_ms=at_ms, reason=reason)


def store(*puts: tuple[bytes, object]) -> Mvcc:
    """Each put at a revision of its own."""
    mvcc = Mvcc()
    for key, value in puts:
        mvcc.commit([Commit(puts=(Put(key, encode(value)),))])  # type: ignore[arg-type]
    return mvcc


COORDINATED = (keys.tc(0), RegistrationRecord(id="c", address="a"))
TC_EPOCH = 2
BEGUN = ((keys.txn(TXN), OPENED),)


def end(header: Header, tc_epoch: int | None = None) -> Commit:
    return plan_end(TXN, header, deadline_key=False, tc_epoch=tc_epoch)


def op(*compares: object) -> Commit:
    return Commit(compares=compares, puts=(Put(OP_KEY, encode(OP)),))  # type: ignore[arg-type]


TOLD: list[tuple[str, Mvcc, Commit]] = [
    ("begin repeated that had landed", store(COORDINATED, *BEGUN), plan_begin(TXN, TC_EPOCH, OPENED)),
    ("begin of a former coordinator refused", store(COORDINATED), plan_begin(TXN, TC_EPOCH + 1, OPENED)),
    (
        "commit lost to the deadline",
        store(*BEGUN, (keys.txn(TXN), decided(ABORTED, "timeout"))),
        end(decided(COMMITTED)),
    ),
    (
        "deadline lost to the commit",
        store(*BEGUN, (keys.txn(TXN), decided(COMMITTED))),
        end(decided(ABORTED, "timeout")),
    ),
    (
        "commit lost to the next holder of its key",
        store(*BEGUN, (keys.txn(TXN), decided(ABORTED, "fenced"))),
        end(decided(COMMITTED)),
    ),
    ("end repeated that had landed", store(*BEGUN, (keys.txn(TXN), decided(COMMITTED))), end(decided(COMMITTED))),
    (
        "end lost to another end",
        store(*BEGUN, (keys.txn(TXN), decided(ABORTED, "client"))),
        end(decided(COMMITTED)),
    ),
    (
        "end by a former coordinator refused",
        store(COORDINATED, *BEGUN),
        end(decided(ABORTED, "timeout"), tc_epoch=TC_EPOCH + 1),
    ),
    (
        "op refused: its transaction was decided",
        store(*BEGUN, (keys.txn(TXN), decided(COMMITTED))),
        op(version_is(keys.txn(TXN), 1), absent(OP_KEY)),
    ),
    (
        "op of a former owner refused",
        store(*BEGUN),
        op(version_is(keys.txn(TXN), 1), created_at(keys.owner(SEGMENT), 9)),
    ),
    ("op repeated that had landed", store(*BEGUN, (OP_KEY, OP)), op(version_is(keys.txn(TXN), 1), absent(OP_KEY))),
    (
        "clean-up of a former owner refused",
        store(*BEGUN),
        Commit(compares=(created_at(keys.owner(SEGMENT), 9),), deletes=(Delete(OP_KEY),)),
    ),
]


@pytest.mark.parametrize(("branch", "mvcc", "commit"), TOLD, ids=[branch for branch, _, _ in TOLD])
def test_e2_why_a_write_was_refused_is_told_from_its_compares(branch: str, mvcc: Mvcc, commit: Commit) -> None:
    [result] = mvcc.commit([commit])
    assert not result.succeeded
    assert refusal(commit, mvcc.failing(commit), mvcc.get) == branch


class Still:
    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 0


def watched() -> tuple[MemoryEtcd, Sometimes]:
    etcd = MemoryEtcd(Still())
    return etcd, Sometimes(etcd)


def commit_at(etcd: MemoryEtcd, sometimes: Sometimes, at: float, *commits: Commit, **arrival: object) -> None:
    before = etcd.mvcc.revision
    results = etcd.mvcc.commit(commits)
    made = {"request": "commit", "client": "c", "commits": commits, "outcome": results, **arrival}
    sometimes.met(at, Arrival(**made))  # type: ignore[arg-type]
    for change in etcd.mvcc.changes_since(before + 1, at_most=10):
        sometimes.saw(at, change.events)


@pytest.mark.parametrize(
    ("branch", "arrival"),
    [
        ("request to etcd lost", {"lost": True, "outcome": None}),
        ("full etcd refused a put", {"outcome": Refused(Reason.FULL, "")}),
        ("put on a lease that was gone", {"outcome": Refused(Reason.LEASE_GONE, "")}),
        ("request refused by its sending fence", {"outcome": Fenced()}),
        ("watch compacted away", {"request": "watch", "outcome": Compacted("")}),
        ("late grant of a lease", {"request": "grant", "outcome": (1, 2.0), "late": True}),
    ],
)
def test_e1_e2_e3_what_a_request_met_is_counted_once(branch: str, arrival: dict[str, object]) -> None:
    _, sometimes = watched()
    sometimes.met(1.0, Arrival(**{"request": "commit", "client": "c", **arrival}))  # type: ignore[arg-type]
    assert {name: count for name, count in sometimes.counts.items() if count} == {branch: 1}


def test_e2_writes_of_unknown_outcome_are_told_by_their_truth() -> None:
    etcd, sometimes = watched()
    put = Commit(compares=(absent(b"/x"),), puts=(Put(b"/x", b"1"),))
    commit_at(etcd, sometimes, 1.0, put, unheard=True)
    commit_at(etcd, sometimes, 2.0, put, late=True, unheard=True)
    commit_at(etcd, sometimes, 3.0, Commit(puts=(Put(b"/y", b"1"),)), put, late=True)
    assert {name: count for name, count in sometimes.counts.items() if count} == {
        "commit applied, its answer lost": 1,
        "late write refused by a compare": 2,
        "late write landed": 1,
        "one of several in a request refused, the others applied": 1,
    }


def test_a_decision_that_overtakes_the_answer_to_an_op_is_counted() -> None:
    etcd, sometimes = watched()
    commit_at(etcd, sometimes, 1.0, Commit(puts=(Put(keys.txn(TXN), encode(OPENED)),)))
    commit_at(etcd, sometimes, 2.0, op(absent(OP_KEY)), answered_s=0.5)
    commit_at(etcd, sometimes, 2.4, end(decided(COMMITTED)))
    assert sometimes.counts["decided before an op of it was answered"] == 1


def test_l4_an_op_without_its_entry_is_counted_at_the_end() -> None:
    etcd, sometimes = watched()
    commit_at(etcd, sometimes, 2.0, op(absent(OP_KEY)))
    sometimes.entries_stand([])
    assert sometimes.counts["op whose entry was never stored"] == 0, "of a segment nobody knows of"
    ledgers = b'{"v":1,"ledgers":[]}'
    commit_at(etcd, sometimes, 3.0, Commit(puts=(Put(keys.ledger(SEGMENT), ledgers),)))
    sometimes.entries_stand([(SEGMENT, "p", 3)])
    assert sometimes.counts["op whose entry was never stored"] == 0
    sometimes.entries_stand([(SEGMENT, "p", 2)])
    assert sometimes.counts["op whose entry was never stored"] == 1


def test_every_branch_has_one_name_and_logs_lead_to_theirs() -> None:
    names = [*BRANCHES, *RARE]
    assert len(dict.fromkeys(names)) == len(names)
    assert len(dict.fromkeys(REFUSALS)) == len(REFUSALS)
    _, sometimes = watched()
    for event in LOGGED:
        sometimes.logged(event)
    assert all(sometimes.counts[branch] == 1 for branch in LOGGED.values())
