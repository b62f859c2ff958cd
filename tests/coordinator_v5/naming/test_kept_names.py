"""Listing and deleting names: what may go, what stays; nothing of a deleted name's transaction counts later."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from coordinator_v5.naming import kept_names
from coordinator_v5.naming.kept_names import Deleted
from coordinator_v5.naming.names import Begun
from coordinator_v5.queries import UnreadableRecord
from coordinator_v5.settings import CoordinatorSettings
from tests.coordinator_v5.processes import Process, fresh_etcd, within
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.records import ABORTED, COMMITTED, OPEN, NameCounts, TxnName
from txnstore.store import Commit, CommitVerdict, KeyValue, Put
from txnstore.writes.name_transitions import Keep
from txnwire.errors import DataCorrupt, InvalidArgument, InvalidTxnState, OutcomeUnknown, TxnNotFound
from txnwire.ids import TxnId

QUICK = CoordinatorSettings(tcids=1, header_retention_s=5.0)
NEWEST, PLAIN = Keep(newest=True), Keep()


async def begin(process: Process, name: str, keep: Keep = PLAIN, **options: object) -> Begun:
    return await process.coordinator.begin_named(0, name=name, keep=keep, **options)  # type: ignore[arg-type]


async def ended(process: Process, name: str, keep: Keep = PLAIN, *, commit: bool = True) -> TxnId:
    txn_id = (await begin(process, name, keep)).txn_id
    await process.coordinator.end(txn_id, commit=commit, name=name)
    return txn_id


async def collected(process: Process) -> None:
    await until(lambda: not within(process.etcd, keys.TXN), within_s=60.0)


def names(etcd: MemoryEtcd) -> list[str]:
    return [keys.txn_name_text(record.key) for record in within(etcd, keys.TXN_NAME)]


@virtual_time
async def test_what_ended_just_now_may_go_as_well_as_what_is_collected() -> None:
    """Records round times up, so a name of this very second has one in the future."""
    process = await Process(fresh_etcd(), "one", QUICK).start()
    await ended(process, "a/old")
    await collected(process)
    await ended(process, "a/aborted", commit=False)
    await ended(process, "a/now")
    assert await kept_names.delete_names(process.store, "a/") == Deleted(deleted=3)
    assert names(process.etcd) == []
    await ended(process, "b")
    assert await kept_names.delete_name(process.store, "b") == Deleted(deleted=1)
    assert await kept_names.delete_name(process.store, "b") == Deleted()
    await process.close()


@virtual_time
async def test_an_open_name_is_not_deleted() -> None:
    """▲ Who begins it anew would do the work beside the open one, and both could commit."""
    process = await Process(fresh_etcd(), "one", QUICK).start()
    txn_id = (await begin(process, "a/1")).txn_id
    await ended(process, "a/2")
    assert await kept_names.delete_name(process.store, "a/1") == Deleted(open=1)
    assert await kept_names.delete_names(process.store, "a/") == Deleted(deleted=1, open=1)
    again = await begin(process, "a/1")
    assert (again.txn_id, again.joined) == (txn_id, True)
    await process.close()


@virtual_time
async def test_after_a_deletion_the_name_runs_again_and_the_old_transaction_counts_no_more_than_it_did() -> None:
    """▲ A late commit or write of what was aborted fails; the name is of the new transaction alone."""
    process = await Process(fresh_etcd(), "one", QUICK).start()
    old = await ended(process, "a/1", commit=False)
    assert (await kept_names.delete_name(process.store, "a/1")).deleted == 1
    new = (await begin(process, "a/1")).txn_id
    assert new != old
    await process.own()
    assert not await process.write(old)
    with pytest.raises(InvalidTxnState):
        await process.coordinator.end(old, commit=True, name="a/1")
    await until(lambda: process.record(keys.txn(old)) is None, within_s=60.0)
    with pytest.raises(InvalidTxnState):
        await process.coordinator.end(old, commit=True, name="a/1")
    record = process.record(keys.txn_name("a/1"))
    assert record is not None
    assert records.decode(TxnName, record.value, key=record.key).txn_id == str(new), "collection told it nothing"
    await process.coordinator.end(new, commit=True, name="a/1")
    await process.close()


@virtual_time
async def test_a_repeated_commit_of_a_deleted_name_stays_committed() -> None:
    process = await Process(fresh_etcd(), "one", QUICK).start()
    txn_id = await ended(process, "a/1")
    await kept_names.delete_name(process.store, "a/1")
    assert (await process.coordinator.end(txn_id, commit=True, name="a/1")).state == COMMITTED
    await collected(process)
    with pytest.raises(OutcomeUnknown):  # who counted stood with the name
        await process.coordinator.end(txn_id, commit=True, name="a/1")
    await process.close()


@virtual_time
async def test_a_name_that_is_begun_again_while_it_is_looked_at_stays() -> None:
    """▲ The deletion compares the record: what it has read as aborted names an open transaction by now."""
    process = await Process(fresh_etcd(), "one", QUICK).start()
    await ended(process, "a/1", commit=False)
    deleting = asyncio.ensure_future(kept_names.delete_names(process.store, "a/"))
    begun = await begin(process, "a/1")
    done = await deleting
    left = names(process.etcd)
    assert (done.deleted, left) in [(0, ["a/1"]), (1, ["a/1"])]
    assert (await begin(process, "a/1")).txn_id == begun.txn_id
    await process.close()


@virtual_time
async def test_a_name_whose_record_changes_as_it_is_deleted_is_looked_at_again() -> None:
    """Its collection writes the outcome into it: whoever deletes it would have to ask once more."""
    process = await Process(fresh_etcd(), "one", QUICK).start()
    await ended(process, "a/1")
    write, changed = process.store.commit, list[bytes]()

    async def changed_meanwhile(commit: Commit, **options: Any) -> CommitVerdict:
        if commit.deletes and not changed:
            (record,) = within(process.etcd, keys.TXN_NAME)
            process.etcd.mvcc.commit([Commit(puts=(Put(record.key, record.value),))])
            changed.append(record.key)
        return await write(commit, **options)

    process.store.commit = changed_meanwhile  # type: ignore[method-assign]
    assert await kept_names.delete_name(process.store, "a/1") == Deleted(deleted=1)
    assert changed
    await process.close()


@virtual_time
async def test_the_newest_commit_of_a_prefix_stays_if_its_begin_asked_for_it() -> None:
    process = await Process(fresh_etcd(), "one", QUICK).start()
    process.etcd.pages_divided_by = kept_names.PAGE  # one at once
    for number in range(3):
        await ended(process, f"job/{number}", NEWEST)
    await ended(process, "job/9", NEWEST, commit=False)
    await ended(process, "other/1", NEWEST)
    assert await kept_names.delete_name(process.store, "job/2") == Deleted(kept=1)
    assert await kept_names.delete_name(process.store, "job/0") == Deleted(deleted=1)
    await collected(process)
    assert await kept_names.delete_names(process.store, "job/") == Deleted(deleted=2, kept=1)
    assert names(process.etcd) == ["job/2", "other/1"]
    await process.close()


@virtual_time
async def test_many_names_go_over_several_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_names, "READ_AT_ONCE", 3)
    monkeypatch.setattr(kept_names, "AT_ONCE", 1)
    process = await Process(fresh_etcd(), "one", QUICK).start()
    process.etcd.pages_divided_by = 500
    for number in range(7):
        await ended(process, f"job/{number}", NEWEST)
        await ended(process, f"orders/{number}/charge")
    told = list[int]()
    total, after, requests = 0, None, 0
    for _ in range(2):
        while requests == 0 or after is not None:
            done = await kept_names.delete_names(process.store, "", after=after)
            total, after, requests = total + done.deleted, done.after, requests + 1
        told.append(requests)
        requests = 0
    assert (total, names(process.etcd)) == (13, ["job/6"])
    assert told == [4, 1], "two pages of two in each"
    await process.close()


@virtual_time
async def test_names_that_stay_count_towards_what_one_request_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has to end within its client's timeout, however few names it may delete."""
    monkeypatch.setattr(kept_names, "READ_AT_ONCE", 2)
    process = await Process(fresh_etcd(), "one", QUICK).start()
    process.etcd.pages_divided_by = kept_names.PAGE  # one at once
    for number in range(3):
        await begin(process, f"job/{number}")
    assert await kept_names.delete_names(process.store, "job/") == Deleted(open=2, after="job/1")
    assert await kept_names.delete_names(process.store, "job/", after="job/1") == Deleted(open=1)
    await process.close()


@pytest.mark.parametrize("page", [1, 2, 4, 500])
@virtual_time
async def test_over_several_requests_each_name_is_told_of_once(monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    monkeypatch.setattr(kept_names, "READ_AT_ONCE", 1)
    process = await Process(fresh_etcd(), "one", QUICK).start()
    process.etcd.pages_divided_by = -(-kept_names.PAGE // page)
    for number in range(4):
        await begin(process, f"open/{number}")
        await process.store.commit(Commit(puts=(Put(keys.txn_name(f"open/{number}/x"), b"somebody else's"),)))
    done = [await kept_names.delete_names(process.store, "")]
    while done[-1].after is not None and len(done) < 20:
        done.append(await kept_names.delete_names(process.store, "", after=done[-1].after))
    assert (sum(one.open for one in done), sum(one.changed for one in done)) == (4, 4)
    await process.close()


@virtual_time
async def test_a_key_that_is_no_text_ends_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else's, beside a value that can be read; it is the last one that the request reads."""
    monkeypatch.setattr(kept_names, "READ_AT_ONCE", 1)
    process = await Process(fresh_etcd(), "one", QUICK).start()
    await begin(process, "open")
    record = await process.store.get(keys.txn_name("open"))
    assert record is not None
    await process.store.commit(Commit(puts=(Put(keys.TXN_NAME + b"\xff", record.value),)))
    done = await kept_names.delete_names(process.store, "")
    assert (done.deleted, done.open, done.changed) == (0, 2, 0)
    await process.close()


@virtual_time
async def test_a_listing_tells_how_each_ended_and_is_not_spoilt_by_one_record() -> None:
    process = await Process(fresh_etcd(), "one", QUICK).start()
    process.etcd.pages_divided_by = kept_names.PAGE // 2  # two at once
    await ended(process, "orders/1", Keep(120_000))
    await collected(process)
    await begin(process, "orders/2")
    await ended(process, "ordinary", commit=False)
    await process.store.commit(Commit(puts=(Put(keys.txn_name("orders/0"), b"somebody else's"),)))
    unreadable: list[UnreadableRecord] = []
    found = await kept_names.list_names(process.store, unreadable=unreadable)
    assert [(one.name, one.state, one.collected) for one in found] == [
        ("orders/1", COMMITTED, True), ("orders/2", OPEN, False), ("ordinary", ABORTED, False),
    ]  # fmt: skip
    assert (found[0].keep, found[1].keep) == (Keep(120_000), Keep(7 * 24 * 3600 * 1000)), "a week where none was asked"
    assert [one.key for one in unreadable] == ["/txn-name/orders/0"]

    async def listed(prefix: str = "", namespace: str | None = None) -> list[str]:
        found = await kept_names.list_names(process.store, prefix=prefix, namespace=namespace, unreadable=[])
        return [one.name for one in found]

    assert await listed("ord") == ["orders/1", "orders/2", "ordinary"]
    assert await listed(namespace="orders") == ["orders/1", "orders/2"]
    assert await listed("orders/2", "orders") == ["orders/2"]
    assert await listed("x", "orders") == []
    assert await listed(namespace="") == ["ordinary"]
    done = await kept_names.delete_names(process.store, "orders/")
    assert (done.deleted, done.open, done.changed) == (1, 1, 1)
    await process.close()


@virtual_time
async def test_a_damaged_header_hides_no_name_and_is_named() -> None:
    process = await Process(fresh_etcd(), "one", QUICK).start()
    damaged, whole = [(await begin(process, name)).txn_id for name in ("a/1", "a/2")]
    await process.store.commit(Commit(puts=(Put(keys.txn(damaged), b"not a header"),)))
    unreadable: list[UnreadableRecord] = []
    found = await kept_names.list_names(process.store, unreadable=unreadable)
    assert [(one.txn_id, one.state) for one in found] == [(damaged, "UNKNOWN"), (whole, OPEN)]
    assert [one.key for one in unreadable] == [keys.txn(damaged).decode()]
    with pytest.raises(DataCorrupt, match=str(damaged)):
        await kept_names.list_names(process.store)
    await process.close()


@virtual_time
async def test_who_asks_how_a_name_ended_begins_nothing() -> None:
    process = await Process(fresh_etcd(), "one", QUICK).start()
    txn_id = await ended(process, "a/1")
    assert (await begin(process, "a/1", known_only=True)).txn_id == txn_id
    await kept_names.delete_name(process.store, "a/1")
    with pytest.raises(TxnNotFound, match="'a/1'"):
        await begin(process, "a/1", known_only=True)
    assert names(process.etcd) == []
    await process.close()


@virtual_time
async def test_an_empty_name_is_none() -> None:
    process = await Process(fresh_etcd(), "one", QUICK).start()
    with pytest.raises(InvalidArgument):
        await kept_names.delete_name(process.store, "")
    await process.close()


@virtual_time
async def test_names_that_are_deleted_count_no_more_each_in_its_namespace() -> None:
    process = await Process(fresh_etcd(), "one", QUICK).start()
    for name in ("a/1", "a/2", "a/3", "b/1"):
        await ended(process, name)
    counted = NameCounts(counted_ms=1, namespaces={"a": 5, "b": 3, "c": 1})
    await process.store.commit(Commit(puts=(Put(keys.TXN_NAME_COUNTS, records.encode(counted)),)))
    assert await kept_names.delete_names(process.store, "") == Deleted(deleted=4)
    record = process.record(keys.TXN_NAME_COUNTS)
    assert record is not None
    assert records.decode(NameCounts, record.value, key=record.key).namespaces == {"a": 2, "b": 2, "c": 1}
    await process.close()


@pytest.mark.parametrize("one", [True, False], ids=["one", "all"])
@virtual_time
async def test_names_are_deleted_though_etcd_is_full(one: bool) -> None:
    """Which makes room: their count is set right by the sweeper, once it can be written."""
    process = await Process(fresh_etcd(), "one", QUICK).start()
    await ended(process, "a/1")
    await process.store.commit(
        Commit(puts=(Put(keys.TXN_NAME_COUNTS, records.encode(NameCounts(counted_ms=1, namespaces={"a": 1}))),))
    )
    process.etcd.quota_bytes = 1
    if one:
        assert await kept_names.delete_name(process.store, "a/1") == Deleted(deleted=1)
    else:
        assert await kept_names.delete_names(process.store, "a/") == Deleted(deleted=1)
    assert names(process.etcd) == []
    await process.close()


@virtual_time
async def test_a_count_that_comes_while_deleted_names_are_subtracted_stands() -> None:
    """▲ It has counted without them already: the older one would stand in its place until the next round."""
    process = await Process(fresh_etcd(), "one", QUICK).start()
    await ended(process, "a/1")
    older, newer = (records.encode(NameCounts(counted_ms=ms, namespaces={"a": 6 - ms})) for ms in (1, 2))
    await process.store.commit(Commit(puts=(Put(keys.TXN_NAME_COUNTS, older),)))
    get_really = process.store.get

    async def get(key: bytes, **options: float) -> KeyValue | None:
        found = await get_really(key, **options)
        if key == keys.TXN_NAME_COUNTS:
            process.etcd.mvcc.commit([Commit(puts=(Put(key, newer),))])
        return found

    process.store.get = get  # type: ignore[method-assign]
    assert await kept_names.delete_name(process.store, "a/1") == Deleted(deleted=1)
    record = process.record(keys.TXN_NAME_COUNTS)
    assert record is not None
    assert record.value == newer
    await process.close()
