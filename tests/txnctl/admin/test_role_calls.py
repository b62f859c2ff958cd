"""What the owner of a segment answers to another role: all of it arrives, however much it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from random import Random
from typing import Any, cast

import pytest

from segments.layout.directory import Directory
from tests.segments.memory_transport import MemoryTransport
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.waiting import until
from txnctl.admin.admin_requests import AdminRequests
from txnctl.admin.role_calls import RoleCalls
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import OwnerRecord, encode
from txnstore.store import Commit, Put
from txnwire.errors import InvalidArgument
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.ports import Connection
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.calls import Handler, Peer, serve_connection
from txnwire.turns import turns_divided_by

SEGMENT = "public/default/orders/0000-ffff-0"
UNDECIDED = tuple(TxnId(1, n) for n in range(1, 8))
ABORTED = tuple((TxnId(2, n), None if n % 2 else n) for n in range(1, 8))


class Cuts:
    """Of a segment with several open and several aborted transactions behind the resolved position."""

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return {"segment_cut": self._cut}

    def disconnected(self, peer: Peer) -> None:
        """Nothing is kept per connection."""

    async def _cut(self, _: Peer, __: pb.Command) -> pb.Command:
        answer = pb.SegmentCutOk(ownership_epoch=5, end=pb.Position(ledger_id=1, entry_id=9))
        for one in UNDECIDED:
            answer.undecided.add(txnid_most_bits=one.most_bits, txnid_least_bits=one.least_bits)
        for one, writer in ABORTED:
            bits = {"txnid_most_bits": one.most_bits, "txnid_least_bits": one.least_bits}
            answer.aborted.add(**bits, writer=writer or 0, whole=writer is None)
        return pb.Command(segment_cut_ok=answer)


@virtual_time
async def test_a_cut_has_every_open_and_every_aborted_transaction_of_its_segment() -> None:
    """▲ Readers of a snapshot would get entries of those that are missing. They are taken in several turns."""
    clock, transport = LoopClock(), MemoryTransport()

    async def serve(connection: Connection) -> None:
        await serve_connection(connection, [Cuts()], server_id="h:1", roles=(), incarnation="1", clock=clock)

    async with AsyncExitStack() as closing:
        store = MemoryStore(MemoryEtcd(clock), clock, Random(1))
        closing.push_async_callback(store.close)
        directory = Directory(store, clock)
        await directory.start()
        closing.push_async_callback(directory.close)
        lease = await store.grant_lease(1e6)
        closing.push_async_callback(lease.revoke)
        owner = Put(keys.owner(SEGMENT), encode(OwnerRecord(broker="b", address="h:1")), lease.id)
        await store.commit(Commit(puts=(owner,)))
        await until(lambda: directory.owner(SEGMENT) is not None)
        closing.push_async_callback((await transport.listen("h:1", serve)).close)
        calls = RoleCalls(directory, transport, clock, Random(2), name="controller")
        closing.push_async_callback(calls.close)
        with turns_divided_by(500):  # two at a time
            tail = await calls.tail(SEGMENT, 7, EARLIEST)
    assert (tail.epoch, tail.end) == (5, Position(1, 9))
    assert (tail.undecided, tail.aborted) == (UNDECIDED, ABORTED)


@virtual_time
async def test_every_connection_to_another_role_is_closed_with_the_calls() -> None:
    """▲ The others would keep them, and count them, for as long as this process lives."""
    clock, transport, served = LoopClock(), MemoryTransport(), dict[str, bool]()
    requests = AdminRequests()

    async def name(_: Mapping[str, Any]) -> dict[str, Any]:
        return {"name": "it"}

    requests.add({"name": name})

    def serving(address: str) -> Callable[[Connection], Awaitable[None]]:
        async def serve(connection: Connection) -> None:
            served[address] = True
            await serve_connection(connection, [requests], server_id=address, roles=(), incarnation="1", clock=clock)
            served[address] = False

        return serve

    async with AsyncExitStack() as closing:
        store = MemoryStore(MemoryEtcd(clock), clock, Random(1))
        closing.push_async_callback(store.close)
        addresses = ("h:1", "i:1", "j:1")
        for address in addresses:
            closing.push_async_callback((await transport.listen(address, serving(address))).close)
        calls = RoleCalls(Directory(store, clock), transport, clock, Random(2), name="controller")
        for address in addresses:
            assert (await calls.ask(address, "name"))["name"] == "it"
        assert served == dict.fromkeys(addresses, True)
        await calls.close()
        await until(lambda: not any(served.values()), within_s=10)


@pytest.mark.parametrize("arguments", ["[1]", "{", "7"])
async def test_arguments_that_are_no_object_are_refused_with_the_question_s_name(arguments: str) -> None:
    requests = AdminRequests()

    async def name(_: Mapping[str, Any]) -> dict[str, Any]:
        return {}

    requests.add({"name": name})
    command = pb.Command(admin_request=pb.AdminRequest(what="name", args_json=arguments))
    with pytest.raises(InvalidArgument, match="name: its arguments are not one JSON object: "):
        await requests.handlers["admin_request"](cast(Any, None), command)
