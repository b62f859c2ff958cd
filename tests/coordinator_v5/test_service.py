"""The coordinator's commands over a connection: PIP-31's messages in, their answers and errors out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest

from coordinator_v5.service import CoordinatorService
from coordinator_v5.sessions import ANNOUNCED_AT_ONCE
from tests.coordinator_v5.processes import Process, fresh_etcd, headers, open_headers
from tests.segments.memory_transport import MemoryTransport
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.records import REASON_ADMIN, REASON_CLIENT
from txnstore.writes.writer_lists import MAX_LISTED, MAX_WRITERS
from txnwire.errors import (
    ExpiredTransaction,
    InvalidArgument,
    InvalidTxnState,
    NotAllowed,
    NotOwner,
    OutcomeUnknown,
    TxnError,
    TxnNotFound,
)
from txnwire.ids import TxnId
from txnwire.ports import Connection
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.calls import Caller
from txnwire.transport.serving import serve_connection
from txnwire.turns import turns_divided_by

SESSION = b"s" * 16


class Client:
    """One connection of one session."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    async def begin(self, tc_id: int = 0, *, timeout_ms: int = 30_000, attempt: bytes = b"", name: str = "") -> TxnId:
        request = pb.NewTxn(tc_id=tc_id, timeout_ms=timeout_ms, attempt=attempt, name=name)
        ok = (await self.caller.call(pb.Command(new_txn=request))).new_txn_ok
        assert ok.state == pb.TXN_STATE_OPEN
        assert ok.deadline_ms > 1_700_000_000_000
        return TxnId.from_bits(ok.txnid_most_bits, ok.txnid_least_bits)

    async def end(
        self,
        txn_id: TxnId,
        action: pb.TxnAction.ValueType,
        *,
        forced: bool = False,
        writers: pb.WriterList | None = None,
        name: str = "",
        note: str = "",
    ) -> pb.EndTxnOk:
        request = pb.EndTxn(
            txnid_most_bits=txn_id.most_bits,
            txnid_least_bits=txn_id.least_bits,
            action=action,
            forced=forced,
            writers=writers,
            name=name,
            note=note,
        )
        return (await self.caller.call(pb.Command(end_txn=request))).end_txn_ok


Connect = Callable[[], Coroutine[object, object, Client]]


@asynccontextmanager
async def served(*, owner: str = "one") -> AsyncIterator[tuple[MemoryEtcd, Process, Connect]]:
    """A coordinator that serves connections, and what opens one. `owner`: another one then owns the coordinator id."""
    etcd = fresh_etcd()
    other = await Process(etcd, owner).start() if owner != "one" else None
    process = await Process(etcd, "one").start()
    service = CoordinatorService(process.coordinator)
    transport = MemoryTransport()
    opened: list[Caller] = []

    async def serve(connection: Connection) -> None:
        await serve_connection(
            connection,
            [service],
            server_id="one",
            roles=["coordinator"],
            incarnation="1",
            clock=process.clock,
        )

    listener = await transport.listen("one:1", serve)

    async def connect() -> Client:
        hello = pb.Hello(client_name="test", session_id=SESSION)
        caller = await Caller.open(
            transport, "one:1", hello, clock=process.clock, on_push=lambda _: None, timeout_s=5.0
        )
        opened.append(caller)
        return Client(caller)

    yield etcd, other or process, connect
    for caller in opened:
        await caller.close()
    await listener.close()
    await process.close()
    if other is not None:
        await other.close()


COMMIT, ABORT = pb.TXN_ACTION_COMMIT, pb.TXN_ACTION_ABORT


@virtual_time
async def test_begin_commit_and_abort() -> None:
    async with served() as (_, _, connect):
        client = await connect()
        ids = await asyncio.gather(*(client.begin() for _ in range(300)))
        assert len(set(ids)) == 300
        ends = await asyncio.gather(
            *(client.end(txn_id, COMMIT if number % 2 else ABORT) for number, txn_id in enumerate(ids))
        )
        for number, ok in enumerate(ends):
            assert ok.state == (pb.TXN_STATE_COMMITTED if number % 2 else pb.TXN_STATE_ABORTED)
            assert ok.revision > 0
            assert not ok.HasField("writers")
        again = await client.end(ids[1], COMMIT)
        assert again.revision == ends[1].revision
        with pytest.raises(InvalidTxnState, match="client"):
            await client.end(ids[0], COMMIT)


@virtual_time
async def test_writer_lists_tell_none_from_empty() -> None:
    async with served() as (_, _, connect):
        client = await connect()
        for writers in ([], [7, 2**64 - 1]):
            txn_id = await client.begin()
            ok = await client.end(txn_id, COMMIT, writers=pb.WriterList(writers=writers))
            assert ok.HasField("writers")
            assert list(ok.writers.writers) == writers
            with pytest.raises(InvalidTxnState, match="writers"):
                await client.end(txn_id, COMMIT)
        plain = await client.end(await client.begin(), COMMIT)
        assert not plain.HasField("writers")


@virtual_time
async def test_a_note_is_answered_to_its_own_commit_and_checked() -> None:
    """▲ One reply is filled again and again."""

    async with served() as (_, _, connect):
        client = await connect()
        assert (await client.end(await client.begin(), COMMIT, name="a", note="rows=3")).note == "rows=3"
        assert (await client.end(await client.begin(), COMMIT, name="b")).note == ""
        txn_id = await client.begin()
        for action, name, note in ((COMMIT, "c", "n" * 257), (COMMIT, "", "rows=3"), (ABORT, "c", "rows=3")):
            with pytest.raises(InvalidArgument, match="note"):
                await client.end(txn_id, action, name=name, note=note)
        assert (await client.end(txn_id, COMMIT, name="c", note="n" * 256)).note == "n" * 256


@virtual_time
async def test_a_forced_abort_says_so() -> None:
    async with served() as (_, _, connect):
        client = await connect()
        txn_id = await client.begin()
        assert (await client.end(txn_id, ABORT, forced=True)).state == pb.TXN_STATE_ABORTED
        with pytest.raises(InvalidTxnState, match="admin"):
            await client.end(txn_id, COMMIT)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (pb.Command(new_txn=pb.NewTxn(tc_id=9)), NotOwner),
        (pb.Command(new_txn=pb.NewTxn(tc_id=70_000)), InvalidArgument),
        (pb.Command(new_txn=pb.NewTxn(tc_id=0, name="n" * 513)), InvalidArgument),
        (pb.Command(new_txn=pb.NewTxn(tc_id=0, timeout_ms=2**60)), InvalidArgument),
        (pb.Command(new_txn=pb.NewTxn(tc_id=0, attempt=bytes(33))), InvalidArgument),
        (pb.Command(end_txn=pb.EndTxn(txnid_most_bits=0, txnid_least_bits=0)), InvalidArgument),
        (pb.Command(end_txn=pb.EndTxn(txnid_most_bits=1, txnid_least_bits=1)), InvalidArgument),
        (pb.Command(end_txn=pb.EndTxn(txnid_most_bits=0, txnid_least_bits=1, action=9)), InvalidArgument),  # type: ignore[arg-type]
        (pb.Command(end_txn=pb.EndTxn(txnid_most_bits=0, txnid_least_bits=10**9)), TxnNotFound),
        (pb.Command(add_partition_to_txn=pb.AddPartitionToTxn()), InvalidArgument),
        (pb.Command(announce_session=pb.AnnounceSession(open=[pb.TxnIdBits()])), InvalidArgument),
        (pb.Command(tc_client_connect=pb.TcClientConnect(tc_id=0)), InvalidArgument),
        (pb.Command(tc_client_connect=pb.TcClientConnect(tc_id=9, transaction_key="k")), NotOwner),
        (pb.Command(tc_client_connect=pb.TcClientConnect(transaction_key="k", epoch=7, attempt=b"a")), NotAllowed),
        (pb.Command(new_txn=pb.NewTxn(transaction_key="k", key_begin=1)), ExpiredTransaction),
        (pb.Command(new_txn=pb.NewTxn(transaction_key="k", name="n", key_begin=1)), InvalidArgument),
        (pb.Command(new_txn=pb.NewTxn(transaction_key="k&k", key_begin=1)), InvalidArgument),
    ],
)
@virtual_time
async def test_requests_that_are_refused(command: pb.Command, error: type[TxnError]) -> None:
    async with served() as (_, _, connect):
        client = await connect()
        with pytest.raises(error):
            await client.caller.call(command)


@virtual_time
async def test_adding_participants_is_a_no_op() -> None:
    async with served() as (etcd, _, connect):
        client = await connect()
        txn_id = await client.begin()
        before = etcd.mvcc.revision
        bits = {"txnid_most_bits": txn_id.most_bits, "txnid_least_bits": txn_id.least_bits}
        for command in (
            pb.Command(add_partition_to_txn=pb.AddPartitionToTxn(**bits, partitions=["x"])),  # type: ignore[arg-type]
            pb.Command(add_subscription_to_txn=pb.AddSubscriptionToTxn(**bits, subscriptions=["s"])),  # type: ignore[arg-type]
        ):
            assert (await client.caller.call(command)).HasField("ok")
        assert etcd.mvcc.revision == before


@virtual_time
async def test_d7_a_begin_repeated_on_a_new_connection_gets_the_same_transaction() -> None:
    async with served() as (etcd, _, connect):
        first = await connect()
        txn_id = await first.begin(attempt=b"a" * 8)
        await first.caller.close()
        second = await connect()
        assert await second.begin(attempt=b"a" * 8) == txn_id
        assert open_headers(etcd) == [txn_id]


@pytest.mark.parametrize("turns", [1, ANNOUNCED_AT_ONCE])
@virtual_time
async def test_a_client_whose_connection_ends_loses_its_transactions_unless_it_announces_them(turns: int) -> None:
    with turns_divided_by(turns):
        async with served() as (etcd, _, connect):
            first = await connect()
            kept = [await first.begin(timeout_ms=300_000) for _ in range(3)]
            lost = [await first.begin(timeout_ms=300_000) for _ in range(3)]
            await first.caller.close()
            await asyncio.sleep(5)
            second = await connect()
            bits = [pb.TxnIdBits(txnid_most_bits=one.most_bits, txnid_least_bits=one.least_bits) for one in kept]
            await second.caller.call(pb.Command(announce_session=pb.AnnounceSession(open=bits)))
            await until(lambda: not set(lost) & set(open_headers(etcd)), within_s=12)
            await asyncio.sleep(30)
            assert open_headers(etcd) == kept
            await second.caller.close()
            assert 10 <= await until(lambda: not open_headers(etcd)) < 11.5


@pytest.mark.parametrize("owner", ["one", "another"])
@virtual_time
async def test_an_operator_s_abort_is_recorded_as_such_whoever_owns_the_transaction(owner: str) -> None:
    async with served(owner=owner) as (_, process, connect):
        client = await connect()
        for forced, reason in ((True, REASON_ADMIN), (False, REASON_CLIENT)):
            begun = await process.coordinator.begin(0)
            assert (await client.end(begun.txn_id, ABORT, forced=forced)).state == pb.TXN_STATE_ABORTED
            header = await process.header(begun.txn_id)
            assert header is not None
            assert header.reason == reason


@virtual_time
async def test_d5_a_named_commit_repeated_after_its_collection_is_answered_with_its_writers() -> None:
    async with served() as (etcd, _, connect):
        client, writers = await connect(), pb.WriterList(writers=[7, 9])
        txn_id = await client.begin(name="job")
        await client.end(txn_id, COMMIT, writers=writers, name="job")
        await until(lambda: not headers(etcd), within_s=90)
        again = await client.end(txn_id, COMMIT, writers=writers, name="job")
        assert (again.state, list(again.writers.writers)) == (pb.TXN_STATE_COMMITTED, [7, 9])
        with pytest.raises(OutcomeUnknown):
            await client.end(txn_id, COMMIT, writers=writers)


@virtual_time
async def test_a_commit_lists_as_many_writers_as_are_allowed_and_no_more() -> None:
    async with served() as (_, _, connect):
        client = await connect()
        txn_id = await client.begin()
        with pytest.raises(InvalidArgument, match=str(MAX_WRITERS)):
            await client.end(txn_id, COMMIT, writers=pb.WriterList(writers=range(MAX_WRITERS + 1)))
        ok = await client.end(txn_id, COMMIT, writers=pb.WriterList(writers=range(MAX_WRITERS)))
        assert (ok.state, len(ok.writers.writers)) == (pb.TXN_STATE_COMMITTED, MAX_WRITERS)


@virtual_time
async def test_a_commit_whose_list_fits_no_record_leaves_the_transaction_as_it_is() -> None:
    """Every other writer, so that no two of them follow each other."""
    async with served() as (etcd, process, connect):
        client = await connect()
        txn_id = await client.begin()
        with pytest.raises(InvalidArgument, match="runs"):
            await client.end(txn_id, COMMIT, writers=pb.WriterList(writers=range(0, 2 * MAX_LISTED + 2, 2)))
        assert open_headers(etcd) == [txn_id]
        assert process.coordinator._ends.pending == 0
        assert (await client.end(txn_id, COMMIT, writers=pb.WriterList(writers=[7]))).state == pb.TXN_STATE_COMMITTED
