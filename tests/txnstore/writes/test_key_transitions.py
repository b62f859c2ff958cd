"""Transaction keys: what may be connected, deleted and begun, and which compare each race meets."""

from __future__ import annotations

import pytest

from txnstore import keys, records
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import ABORTED, COMMITTED, OPEN, Header, RegistrationRecord, TransactionKey
from txnstore.store import Commit, KeyValue, Put
from txnstore.writes.key_transitions import (
    UNUSED,
    Earlier,
    KeyedBegin,
    KeyState,
    check_begin,
    check_connect,
    plan_begin_keyed,
    plan_connect,
    plan_delete_key,
    read_begin_keyed_verdict,
    read_key,
)
from txnstore.writes.transitions import decide, plan_end, plan_give_up_tcid, plan_late_index, plan_take_tcid
from txnwire.errors import ExpiredTransaction, InvalidTxnState, NotAllowed, NotOwner
from txnwire.ids import TxnId

NAME = keys.txn_key("anonymous", "job")
FIRST, SECOND = TxnId(1, 5), TxnId(1, 6)
OPENED = Header(state=OPEN, timeout_ms=9, created_ms=1, txn_key="job", key_epoch=0, attempt="aa")
FREE = KeyState(TransactionKey(epoch=3, attempt="a1", since_ms=1), 30)
BEGUN = KeyState(TransactionKey(epoch=3, attempt="a1", since_ms=1, txn_id=str(FIRST), begins=2), 40)
DELETED = KeyState(TransactionKey(epoch=4, since_ms=1, deleted_ms=5), 50)


def header(state: str) -> KeyValue:
    value = OPENED if state == OPEN else decide(OPENED, state, finalized_ms=2, reason="client", writers=None)
    return KeyValue(keys.txn(FIRST), records.encode(value), 1 if state == OPEN else 2, 20, 25)


@pytest.mark.parametrize(
    ("state", "epoch", "attempt", "expected"),
    [
        (UNUSED, -1, "a1", None),
        (UNUSED, 0, "a1", NotAllowed),
        (FREE, 3, "b1", None),
        (FREE, 2, "a1", 3),  # its answer was lost, or its connection
        (FREE, 2, "b1", NotAllowed),  # of two who have read the same epoch one was faster
        (FREE, 1, "a1", NotAllowed),
        (FREE, -1, "a1", NotAllowed),
        (FREE, 4, "a1", NotAllowed),
        (DELETED, 3, "a1", NotAllowed),
        (DELETED, 3, "", NotAllowed),
        (DELETED, 4, "b1", None),
    ],
)
def test_which_connects_are_let_in(state: KeyState, epoch: int, attempt: str, expected: object) -> None:
    if expected is NotAllowed:
        told = rf"key (was deleted|has a newer holder) \(epoch {state.record.epoch}, this client's is {epoch + 1}\)"
        with pytest.raises(NotAllowed, match=told):
            check_connect(state, epoch, attempt)
    else:
        assert check_connect(state, epoch, attempt) == expected


@pytest.mark.parametrize(
    ("state", "found", "epoch", "number", "attempt", "expected"),
    [
        (FREE, None, 3, 1, "aa", None),
        (FREE, None, 2, 1, "aa", ExpiredTransaction),
        (UNUSED, None, 0, 1, "aa", ExpiredTransaction),
        (DELETED, None, 3, 1, "aa", ExpiredTransaction),
        (DELETED, None, 4, 1, "aa", ExpiredTransaction),
        (BEGUN, header(OPEN), 3, 1, "99", NotAllowed),
        (BEGUN, header(OPEN), 3, 2, "aa", Earlier(FIRST, OPENED, True)),
        (BEGUN, header(OPEN), 3, 2, "bb", InvalidTxnState),
        (BEGUN, header(OPEN), 3, 3, "cc", InvalidTxnState),
        (BEGUN, header(ABORTED), 3, 3, "cc", None),
        (BEGUN, None, 3, 3, "cc", None),
        (BEGUN, None, 3, 2, "aa", Earlier(FIRST, None, False)),
        (BEGUN, header(OPEN), 4, 1, "aa", ExpiredTransaction),
    ],
)
def test_which_begins_are_let_in(
    state: KeyState, found: KeyValue | None, epoch: int, number: int, attempt: str, expected: object
) -> None:
    begin = KeyedBegin(NAME, epoch, number)
    if isinstance(expected, type):
        with pytest.raises(expected):
            check_begin(state, found, begin, attempt)
    else:
        assert check_begin(state, found, begin, attempt) == expected


async def begun(store: MemoryStore) -> tuple[int, KeyState]:
    """A key with an open transaction; the epoch of its coordinator id, and the key's state."""
    epoch = (await store.commit(Commit(puts=(Put(keys.tc(1), b"{}"),)))).revision
    commit, taken = plan_connect(NAME, UNUSED, "a1", now_ms=1)
    state = taken._replace(mod_revision=(await store.commit(commit)).revision)
    commit, _ = plan_begin_keyed(FIRST, epoch, OPENED, KeyedBegin(NAME, 0, 1), state)
    verdict = read_begin_keyed_verdict(commit, await store.commit(commit), FIRST, "aa")
    assert verdict.begun
    assert verdict.state is not None
    assert read_key(await store.get(NAME)) == verdict.state
    return epoch, verdict.state


@pytest.mark.parametrize("plan", [plan_connect, plan_delete_key])
async def test_k1_of_a_fence_and_a_commit_one_happens(memory_store: MemoryStore, plan: object) -> None:
    """▲ The fence was planned while the transaction was open; the commit was faster, and must not be overwritten."""
    _, state = await begun(memory_store)
    opened = await memory_store.get(keys.txn(FIRST))
    committed = decide(OPENED, COMMITTED, finalized_ms=2, reason=None, writers=None)
    assert (await memory_store.commit(plan_end(FIRST, committed, deadline_key=True))).succeeded
    if plan is plan_connect:
        fence, _ = plan_connect(NAME, state, "b1", now_ms=3, open_header=opened)
    else:
        fence, _ = plan_delete_key(NAME, state, now_ms=3, open_header=opened)
    assert not (await memory_store.commit(fence)).succeeded
    found = await memory_store.get(keys.txn(FIRST))
    assert found is not None
    assert records.decode(Header, found.value, key=found.key) == committed
    assert read_key(await memory_store.get(NAME)) == state


@pytest.mark.parametrize("plan", [plan_connect, plan_delete_key])
async def test_k1_a_fence_takes_the_deadline_of_what_it_aborts_along(memory_store: MemoryStore, plan: object) -> None:
    """▲ As every end does: of what has ended nothing is left in the index."""
    epoch, state = await begun(memory_store)
    assert (await memory_store.commit(plan_late_index(FIRST, epoch, OPENED.timeout_ms))).succeeded
    opened = await memory_store.get(keys.txn(FIRST))
    if plan is plan_connect:
        fence, _ = plan_connect(NAME, state, "b1", now_ms=3, open_header=opened)
    else:
        fence, _ = plan_delete_key(NAME, state, now_ms=3, open_header=opened)
    assert (await memory_store.commit(fence)).succeeded
    assert await memory_store.get(keys.deadline(OPENED.timeout_ms, FIRST)) is None


async def test_k3_of_two_connects_that_read_the_same_one_happens(memory_store: MemoryStore) -> None:
    one, _ = plan_connect(NAME, UNUSED, "a1", now_ms=1)
    other, _ = plan_connect(NAME, UNUSED, "b1", now_ms=1)
    assert (await memory_store.commit(one)).succeeded
    assert not (await memory_store.commit(other)).succeeded
    assert read_key(await memory_store.get(NAME)).record.attempt == "a1"


async def test_a_begin_that_was_planned_before_a_fence_never_lands(memory_store: MemoryStore) -> None:
    epoch, state = await begun(memory_store)
    header = await memory_store.get(keys.txn(FIRST))
    late, _ = plan_begin_keyed(SECOND, epoch, OPENED, KeyedBegin(NAME, 0, 2), state)
    fence, taken = plan_connect(NAME, state, "b1", now_ms=3, open_header=header)
    assert (await memory_store.commit(fence)).succeeded
    verdict = read_begin_keyed_verdict(late, await memory_store.commit(late), SECOND, "aa")
    assert not verdict.begun
    assert verdict.state is not None
    assert verdict.state.record == taken.record
    with pytest.raises(ExpiredTransaction):
        check_begin(verdict.state, None, KeyedBegin(NAME, 0, 2), "aa")
    assert await memory_store.get(keys.txn(SECOND)) is None


async def test_a_begin_while_another_is_open_or_under_a_lost_coordinator_id_is_refused(
    memory_store: MemoryStore,
) -> None:
    epoch, state = await begun(memory_store)
    second, _ = plan_begin_keyed(SECOND, epoch, OPENED, KeyedBegin(NAME, 0, 2), state)
    verdict = read_begin_keyed_verdict(second, await memory_store.commit(second), SECOND, "aa")
    assert (verdict.begun, verdict.state) == (False, state)
    aborted = decide(OPENED, ABORTED, finalized_ms=2, reason="client", writers=None)
    await memory_store.commit(plan_end(FIRST, aborted, deadline_key=True))
    foreign, _ = plan_begin_keyed(SECOND, epoch + 1, OPENED, KeyedBegin(NAME, 0, 2), state)
    with pytest.raises(NotOwner):
        read_begin_keyed_verdict(foreign, await memory_store.commit(foreign), SECOND, "aa")
    assert (await memory_store.commit(second)).succeeded


async def test_a_coordinator_id_is_given_up_only_by_whom_it_was_taken(memory_store: MemoryStore) -> None:
    lease = await memory_store.grant_lease(10)
    taken = await memory_store.commit(plan_take_tcid(7, RegistrationRecord(id="a", address="a:1"), lease.id))
    assert not (await memory_store.commit(plan_give_up_tcid(7, taken.revision - 1))).succeeded
    assert await memory_store.get(keys.tc(7)) is not None
    assert (await memory_store.commit(plan_give_up_tcid(7, taken.revision))).succeeded
    assert await memory_store.get(keys.tc(7)) is None
