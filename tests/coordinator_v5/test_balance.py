"""Who should hold which coordinator id: the pure rule, and coordinators that come, go and restart under load."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator_v5.balance import Share, share
from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.processes import Connection, Process, fresh_etcd, headers, open_headers
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.records import COMMITTED, Header, decode
from txnstore.store import KeyValue
from txnstore.writes.transitions import RecordedDecision
from txnwire.errors import InvalidTxnState, NotOwner, TxnError
from txnwire.ids import TxnId

SIXTEEN = CoordinatorSettings(tcids=16, client_grace_s=3.0, header_retention_s=60.0)

names = st.sampled_from([f"c{number}" for number in range(6)])
held = st.dictionaries(st.integers(0, 19), st.one_of(names, st.just("gone")))


@given(st.integers(1, 20), st.sets(names, min_size=1), held)
def test_every_id_finds_one_taker_and_nobody_ends_with_more_than_its_share(
    tcids: int, members: set[str], held: dict[int, str]
) -> None:
    """Whatever is held at first; "gone" is one whose lease has yet to run out."""
    held = {tcid: holder for tcid, holder in held.items() if tcid < tcids and (holder in members or holder == "gone")}
    moves = 0
    for _ in range(4):
        shares = {member: share(tcids, sorted(members), held, member) for member in sorted(members)}
        taken = [tcid for one in shares.values() for tcid in one.take]
        assert len(taken) == len(set(taken)), "two run after one"
        assert not set(taken) & held.keys()
        for member, one in shares.items():
            assert all(held[tcid] == member for tcid in one.give_up)
            moves += len(one.give_up)
            held |= dict.fromkeys(one.take, member)
            for tcid in one.give_up:
                del held[tcid]
    orphaned = sum(holder == "gone" for holder in held.values())
    assert len(held) == tcids, "one is left free"
    counts = [sum(holder == member for holder in held.values()) for member in members]
    assert max(counts) <= -(-tcids // len(members))
    if not orphaned:
        assert max(counts) - min(counts) <= 1
    assert moves <= tcids
    for member in sorted(members):
        assert share(tcids, sorted(members), held, member) == Share([], []), "it does not come to rest"


@given(st.integers(1, 20), st.sets(names, min_size=1), names)
def test_few_move_when_one_joins_and_none_but_its_own_when_one_leaves(
    tcids: int, members: set[str], other: str
) -> None:
    stay = sorted(members - {other}) or ["alone"]
    held = settled(tcids, stay, {})
    joined = settled(tcids, [*stay, other], held)
    assert sum(joined[tcid] != held[tcid] for tcid in held) <= tcids // (len(stay) + 1) + 1
    assert all(joined[tcid] == other for tcid in held if joined[tcid] != held[tcid])
    left = settled(tcids, stay, {tcid: holder for tcid, holder in joined.items() if holder != other})
    assert all(left[tcid] == joined[tcid] for tcid in joined if joined[tcid] != other)


def settled(tcids: int, members: list[str], held: dict[int, str]) -> dict[int, str]:
    held = dict(held)
    for _ in range(4):
        for member in members:
            one = share(tcids, members, held, member)
            held |= dict.fromkeys(one.take, member)
            for tcid in one.give_up:
                del held[tcid]
    return held


def test_each_free_id_goes_to_who_lacks_most() -> None:
    held = {0: "a"}
    assert [share(4, ["a", "b"], held, me) for me in ("a", "b")] == [Share([2], []), Share([1, 3], [])]


def test_who_is_no_member_takes_nothing() -> None:
    assert share(4, ["a"], {}, "b") == Share([], [])
    assert share(4, [], {}, "b") == Share([], [])


# ---- coordinators


def counts(*processes: Process) -> list[int]:
    return [len(process.coordinator.owned_tcids) for process in processes]


@virtual_time
async def test_who_joins_gets_its_share_and_nobody_s_transaction_is_aborted() -> None:
    etcd = fresh_etcd()
    one = await Process(etcd, "one", SIXTEEN).start()
    assert counts(one) == [16]
    clients = [Connection(f"client-{number}") for number in range(4)]
    begun = [
        (client, (await one.coordinator.begin(tcid, connection=client)).txn_id)
        for tcid in range(16)
        for client in clients
    ]
    other = await Process(etcd, "two", SIXTEEN).start()
    third = await Process(etcd, "three", SIXTEEN).start()
    processes = (one, other, third)
    took_s = await until(lambda: sorted(counts(*processes)) == [5, 5, 6])
    assert 1.5 < took_s < 5.0, "once nobody has come or gone for a while"
    for client in clients:  # as clients do when the cluster's coordinators change
        for process in processes:
            await process.coordinator.announce(client, [txn_id for of, txn_id in begun if of is client])
    await asyncio.sleep(20.0)
    assert open_headers(etcd) == sorted(txn_id for _, txn_id in begun)
    assert sorted(counts(*processes)) == [5, 5, 6]
    for _, txn_id in begun:
        owner = next(process for process in processes if txn_id.tcid in process.coordinator.owned_tcids)
        assert (await owner.coordinator.end(txn_id, commit=True)).state == COMMITTED
    for process in processes:
        await process.close()


@virtual_time
async def test_a_coordinator_that_restarts_at_once_gets_its_own_back_and_nothing_else_moves() -> None:
    etcd = fresh_etcd()
    names = ("one", "two", "three")
    processes = {name: await Process(etcd, name, SIXTEEN).start() for name in names}
    await until(lambda: sorted(counts(*processes.values())) == [5, 5, 6])
    epochs = {record.key: record.create_revision for record in tcs(etcd)}
    before = {name: process.coordinator.owned_tcids for name, process in processes.items()}
    processes["two"].kill()
    processes["two"] = await Process(etcd, "two", SIXTEEN).start()
    await asyncio.sleep(10.0)
    assert {name: process.coordinator.owned_tcids for name, process in processes.items()} == before
    moved = [record for record in tcs(etcd) if record.create_revision != epochs[record.key]]
    assert len(moved) == len(before["two"])
    for process in processes.values():
        await process.close()


@virtual_time
async def test_a_coordinator_with_a_defect_leaves_its_ids_to_others_at_once() -> None:
    etcd = fresh_etcd()
    one = await Process(etcd, "one", SIXTEEN).start()
    other = await Process(etcd, "two", SIXTEEN).start()
    await until(lambda: counts(one, other) == [8, 8])
    tcid = one.coordinator.owned_tcids[0]

    async def defect() -> int:
        raise ZeroDivisionError

    one.coordinator._collector.collect = defect  # type: ignore[method-assign]
    took_s = await until(lambda: counts(one, other) == [0, 16])
    assert took_s < SIXTEEN.lease_ttl_s / 2
    with pytest.raises(NotOwner):
        await one.coordinator.begin(tcid)
    await asyncio.sleep(2 * SIXTEEN.lease_ttl_s)
    assert counts(one, other) == [0, 16]
    await one.close()
    await other.close()


@virtual_time
async def test_coordinators_that_give_up_ids_one_after_the_other_end_with_even_shares() -> None:
    etcd = fresh_etcd()
    one = await Process(etcd, "one", SIXTEEN).start()
    two = await Process(etcd, "two", SIXTEEN).start()
    await until(lambda: counts(one, two) == [8, 8])
    await asyncio.sleep(5.0)  # virtual: until nobody is about to look at its share
    two.pause()
    third = await Process(etcd, "three", SIXTEEN).start()
    await until(lambda: counts(one, third) == [6, 2])
    two.resume()
    await until(lambda: sorted(counts(one, two, third)) == [5, 5, 6])
    for process in (one, two, third):
        await process.close()


def tcs(etcd: MemoryEtcd) -> list[KeyValue]:
    return etcd.mvcc.range(keys.TC, keys.prefix_end(keys.TC))[0]


@virtual_time
async def test_d4_coordinators_come_go_die_and_sleep_and_every_transaction_is_decided_once() -> None:
    """Clients begin and commit all the while, wherever they find the coordinator id; none is aborted against them."""
    etcd = fresh_etcd()
    settings = replace(SIXTEEN, tcids=8, balance_after_s=0.3)
    up = {"one": await Process(etcd, "one", settings).start()}
    told: dict[TxnId, int] = {}
    working = True

    async def work(number: int) -> None:
        client = Connection(f"client-{number}")
        while working:
            tcid = number % 8
            owner = next((one for one in up.values() if tcid in one.coordinator.owned_tcids), None)
            if owner is None:
                await asyncio.sleep(0.05)
                continue
            try:
                txn_id = (await owner.coordinator.begin(tcid, connection=client, timeout_ms=60_000)).txn_id
            except TxnError as error:
                assert error.retriable
                continue
            await asyncio.sleep(0.3)
            for process in list(up.values()):
                await process.coordinator.announce(client, [txn_id])
            told[txn_id] = (await commit(up, txn_id)).revision

    workers = [asyncio.ensure_future(work(number)) for number in range(16)]
    for turn in range(4):
        up[f"extra-{turn}"] = await Process(etcd, f"extra-{turn}", settings).start()
        await asyncio.sleep(1.0)
        up.pop("one" if turn == 0 else f"extra-{turn - 1}").kill()
        await asyncio.sleep(7.0)
    working = False
    await asyncio.gather(*workers)
    for record in headers(etcd):
        header = decode(Header, record.value, key=record.key)
        txn_id = keys.txn_of(record.key)
        assert (header.state == COMMITTED) is (txn_id in told)
        assert txn_id not in told or told[txn_id] == record.mod_revision
    assert len(told) > 500
    for process in up.values():
        await process.close()


async def commit(up: dict[str, Process], txn_id: TxnId) -> RecordedDecision:
    for _ in range(100):
        for process in list(up.values()):
            try:
                return await asyncio.wait_for(process.coordinator.end(txn_id, commit=True), 2.0)
            except (TxnError, TimeoutError) as error:
                if isinstance(error, InvalidTxnState):
                    raise
        await asyncio.sleep(0.1)
    raise AssertionError("nobody answers")


@virtual_time
async def test_d3_two_coordinators_end_one_transaction_at_once_and_tell_one_story() -> None:
    etcd = fresh_etcd()
    one = await Process(etcd, "one", replace(SIXTEEN, tcids=2)).start()
    other = await Process(etcd, "two", replace(SIXTEEN, tcids=2)).start()
    for number in range(40):
        begun = await one.coordinator.begin(one.coordinator.owned_tcids[0])
        wanted = [(process, commit) for process in (one, other) for commit in (True, False)]
        wanted = wanted[number % 4 :] + wanted[: number % 4]
        answers = await asyncio.gather(
            *(process.coordinator.end(begun.txn_id, commit=commit) for process, commit in wanted),
            return_exceptions=True,
        )
        decided = {(one.state, one.revision) for one in answers if not isinstance(one, BaseException)}
        assert len(decided) == 1
        ((state, _),) = decided
        for (_, commit), answer in zip(wanted, answers, strict=True):
            assert isinstance(answer, InvalidTxnState) is not (commit is (state == COMMITTED))
        assert (await other.header(begun.txn_id)).state == state  # type: ignore[union-attr]
    await one.close()
    await other.close()
