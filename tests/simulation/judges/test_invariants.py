"""What is looked at while a run goes on, and at rest, against planted breaches (X5)."""

from __future__ import annotations

from collections import deque

import pytest

from simulation.judges.footprint import footprint_of
from simulation.judges.invariants import AFTERMATH_S, CLEANED_S, EVERY_REVISIONS, GRACE_S, SWEPT_S, Invariants
from simulation.judges.rest import left_in_store, too_long
from simulation.judges.settling import LIMITS_S, Settling
from txnctl.checking.picture import Picture
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.records import ABORTED, OPEN, ClockStamp, Header, Op, OwnerRecord, Pin, RegistrationRecord, TxnSeq, encode
from txnstore.store import Commit, Delete, Put
from txnwire.ids import TxnId

SEGMENT = "public/sim/in/0000-ffff-0"
TXN = TxnId(0, 7)
LASTS_S = 10.0
OPENED = Header(state=OPEN, timeout_ms=int(LASTS_S * 1000), created_ms=0)
DONE = Header(state=ABORTED, timeout_ms=int(LASTS_S * 1000), created_ms=0, reason="client")
OP = Op(v=1, kind="write", segment=SEGMENT)
OP_KEY = keys.op(keys.write_ops(TXN, SEGMENT), 1, 1)


class Still:
    """A clock nobody looks at."""

    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 0


class Watched:
    """A store, and the invariants that are shown its changes. `calm_since`: as the nemesis tells it."""

    def __init__(self, *, clocks_differ: bool = False) -> None:
        self.etcd = MemoryEtcd(Still())
        self.calm_since = 0.0
        self.invariants = Invariants(
            self.etcd, 1, calm_since=lambda: self.calm_since, clocks_differ=lambda: clocks_differ
        )

    def put(self, at: float, *puts: tuple[bytes, object], deletes: tuple[bytes, ...] = ()) -> None:
        commit = Commit(
            puts=tuple(Put(key, value if isinstance(value, bytes) else encode(value)) for key, value in puts),  # type: ignore[arg-type]
            deletes=tuple(Delete(key) for key in deletes),
        )
        before = self.etcd.mvcc.revision
        self.etcd.mvcc.commit([commit])
        for change in self.etcd.mvcc.changes_since(before + 1, at_most=10):
            self.invariants.saw(at, change.events)

    def begin(self, at: float = 0.0) -> None:
        self.put(at, (keys.tc(0), RegistrationRecord(id="control-1", address="a")), (keys.txn(TXN), OPENED))

    def findings_at(self, at: float) -> list[str]:
        self.invariants.look_at_the_time(at)
        return self.invariants.findings


def test_a_transaction_past_its_deadline_and_a_sweep_is_found() -> None:
    store = Watched()
    store.begin()
    assert store.findings_at(LASTS_S + SWEPT_S) == []
    [found] = store.findings_at(LASTS_S + SWEPT_S + 0.1)
    assert f"{TXN} is open past its deadline" in found


@pytest.mark.parametrize("excuse", ["fault", "owner", "nobody", "decided"])
def test_what_kept_coordinators_from_work_excuses_it_for_so_long(excuse: str) -> None:
    store = Watched()
    store.begin()
    late = LASTS_S + SWEPT_S + 0.1
    if excuse == "fault":
        store.calm_since = late - AFTERMATH_S - 1.0
    elif excuse == "owner":
        store.put(late - 1.0, (keys.tc(0), RegistrationRecord(id="control-2", address="b")))
    elif excuse == "nobody":
        store.put(late - 1.0, deletes=(keys.tc(0),))
    else:
        store.put(late - 1.0, (keys.txn(TXN), DONE))
    assert store.findings_at(late) == []
    if excuse in ("fault", "owner"):
        assert len(store.findings_at(late + SWEPT_S + GRACE_S)) == 1


def test_d6_with_clocks_that_differ_a_successor_may_count_all_of_it_anew_and_no_more() -> None:
    store = Watched(clocks_differ=True)
    store.begin()
    store.put(5.0, (keys.tc(0), RegistrationRecord(id="control-2", address="b")))
    assert store.findings_at(AFTERMATH_S + LASTS_S + SWEPT_S) == []
    assert len(store.findings_at(LASTS_S + max(5.0, LASTS_S) + SWEPT_S + 0.1)) == 1


def test_d6_what_a_clock_that_was_set_forth_took_is_given_back_and_no_more_than_nobody_stamped() -> None:
    quiet_s = 6.0
    for by_s, back_s in ((4.0, 4.0), (60.0, quiet_s)):
        store = Watched()
        store.put(1.0, (keys.CLOCK, ClockStamp(ms=1000)))
        store.begin(at=2.0)
        leap = (int((1.0 + quiet_s) * 1000), int(by_s * 1000))
        store.put(1.0 + quiet_s, (keys.CLOCK, ClockStamp(ms=leap[0], leaps=(leap,))))
        store.put(2.0 + quiet_s, (keys.CLOCK, ClockStamp(ms=leap[0] + 1000, leaps=(leap,))))
        assert store.findings_at(2.0 + LASTS_S + back_s + SWEPT_S) == []
        assert len(store.findings_at(2.0 + LASTS_S + back_s + SWEPT_S + 0.1)) == 1


def test_op_records_past_the_decision_are_found_once_their_segment_has_an_owner() -> None:
    store = Watched()
    store.begin()
    store.put(1.0, (OP_KEY, OP), (keys.write_index(SEGMENT, TXN), b""))
    store.put(20.0, (keys.txn(TXN), DONE))
    late = 20.0 + CLEANED_S + 0.1
    assert store.findings_at(late) == [], "nobody owns it"
    store.put(late, (keys.owner(SEGMENT), OwnerRecord(broker="broker-1", address="a")))
    assert store.findings_at(late + CLEANED_S) == []
    [found] = store.findings_at(late + CLEANED_S + 0.1)
    assert f"{SEGMENT} still has op records" in found


def test_op_records_that_were_cleaned_up_are_nothing() -> None:
    store = Watched()
    store.begin()
    store.put(1.0, (OP_KEY, OP), (keys.owner(SEGMENT), OwnerRecord(broker="broker-1", address="a")))
    store.put(20.0, (keys.txn(TXN), DONE))
    store.put(21.0, deletes=(OP_KEY,))
    assert store.findings_at(60.0) == []


def test_the_records_are_looked_at_every_so_many_revisions() -> None:
    store = Watched()
    store.begin()
    store.put(0.1, (keys.txn_seq(0), TxnSeq(next=100)))
    orphan = keys.op(keys.write_ops(TxnId(0, 99), SEGMENT), 1, 1)
    store.put(0.2, (orphan, OP))
    for _ in range(EVERY_REVISIONS):
        store.put(0.3, (keys.GC_HORIZON, b"{}"))
    assert store.invariants.pictures >= 1
    assert any("ops_have_headers" in found for found in store.invariants.findings)


def test_what_is_left_too_long_after_healing_is_found() -> None:
    settling = Settling()
    picture = Picture(headers={TXN: OPENED})
    settling.look(LIMITS_S["open transactions"], picture)
    assert settling.findings() == []
    settling.look(LIMITS_S["open transactions"] + 1.0, picture)
    [found] = settling.findings()
    assert found.startswith("open transactions: the last one 36.0 s after")


def test_what_is_left_in_the_store_at_rest_is_found() -> None:
    store = Watched()
    store.put(0.0, (keys.txn(TXN), OPENED), (OP_KEY, OP), (keys.PIN + b"x", Pin(revision=1)))
    store.put(0.0, (keys.deadline(1_000, TXN), b""), (keys.deadline(300_000, TXN), b""))
    found = list(left_in_store(store.etcd.mvcc, 300_000))
    for what in (
        "1 open transactions",
        "1 headers to collect",
        "1 op records",
        "1 pins of snapshots",
        "1 deadline keys",
    ):
        assert any(text.endswith(what) for text in found), (what, found)


def test_a_footprint_names_the_longest_collection_of_each_attribute() -> None:
    settling = Settling()  # not of the packages that are walked: only what it holds of them is
    picture = Picture(headers={TXN: OPENED})
    picture.unknown = ["a", "b", "c"]
    found = footprint_of([picture, deque((picture, Picture())), settling]).lengths
    assert found["Picture.unknown"] == 3
    assert found["Picture.headers"] == 1
    assert not any(name.startswith("Settling") for name in found)


def test_what_holds_too_much_is_found_unless_it_has_a_bound_of_its_own() -> None:
    picture = Picture()
    picture.unknown = ["a", "b", "c"]
    assert list(too_long("broker-1", footprint_of(picture), "at work", 3)) == []
    [found] = too_long("broker-1", footprint_of(picture), "at work", 2)
    assert found == "broker-1 at work holds 3 in Picture.unknown, 2 are allowed"
