"""A token that is lost while etcd is too busy to give another."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from tests.waiting import until
from txnstore.access.backend import Refused, Unanswered
from txnstore.access.lineage import StoreUnfit
from txnstore.etcd import rpc_pb2 as pb
from txnstore.etcd.connection import Endpoint, EtcdConnection
from txnstore.etcd.settings import EtcdSettings
from txnwire.clock import SystemClock

RANGE = "/etcdserverpb.KV/Range"
TOKEN = ("token", "t")


class BusyEtcd:
    """Reads with a token, which it gives once it is not `busy` any more. `forgets`: it knows none that it has given;
    `denies`: its user may read nothing; `guarded`: its status is for users alone. `asked`: how often for a token."""

    def __init__(self) -> None:
        self.busy, self.forgets, self.denies, self.guarded = True, False, False, False
        self.asked = 0
        self._server = grpc.aio.server()

    async def start(self) -> int:
        unary = grpc.unary_unary_rpc_method_handler
        for service, method, answer in (
            ("KV", "Range", self._range),
            ("Auth", "Authenticate", self._authenticate),
            ("Maintenance", "Status", self._status),
        ):
            handler = grpc.method_handlers_generic_handler(f"etcdserverpb.{service}", {method: unary(answer)})
            self._server.add_generic_rpc_handlers((handler,))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return int(port)

    async def close(self) -> None:
        await self._server.stop(0)

    async def _range(self, _: bytes, context: Any) -> bytes:
        if self.forgets or TOKEN not in context.invocation_metadata():
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token")
        if self.denies:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "etcdserver: permission denied")
        return bytes(pb.RangeResponse().SerializeToString())

    async def _status(self, _: bytes, context: Any) -> bytes:
        if self.guarded and TOKEN not in context.invocation_metadata():
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "etcdserver: user name is empty")
        return bytes(pb.StatusResponse(version="3.5.21", leader=1).SerializeToString())

    async def _authenticate(self, _: bytes, context: Any) -> bytes:
        self.asked += 1
        if self.busy:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "etcdserver: too many requests")
        return bytes(pb.AuthenticateResponse(token=TOKEN[1]).SerializeToString())


async def test_an_etcd_that_is_too_busy_to_give_a_token_is_asked_again() -> None:
    """▲ Told as a refusal of the user, it would end every watch of the process for good: tokens are lost in a restart
    of etcd, for all processes at once, and that is when it is busy."""
    etcd = BusyEtcd()
    settings = EtcdSettings(endpoints=(f"http://127.0.0.1:{await etcd.start()}",), user="u", password="p")
    connection = EtcdConnection(settings, SystemClock())
    try:
        with pytest.raises(Unanswered, match="too many requests"):
            await connection.unary(RANGE, b"")
        with pytest.raises(Unanswered, match="too many requests"):  # of a watch, or a keep-alive
            await connection.stream_failed(connection.current, grpc.StatusCode.UNAUTHENTICATED, "invalid auth token")
        etcd.busy = False
        assert pb.RangeResponse.FromString(await connection.unary(RANGE, b"")) == pb.RangeResponse()
    finally:
        await connection.close()
        await etcd.close()


async def test_an_etcd_that_is_too_busy_to_give_the_first_token_is_asked_again() -> None:
    etcd = BusyEtcd()
    settings = EtcdSettings(endpoints=(f"http://127.0.0.1:{await etcd.start()}",), user="u", password="p")
    connection = EtcdConnection(settings, SystemClock())
    try:
        opening = asyncio.create_task(connection.open())
        await until(lambda: etcd.asked > 1 or opening.done())
        etcd.busy = False
        await opening
        assert connection.token == TOKEN[1]
    finally:
        await connection.close()
        await etcd.close()


async def test_an_etcd_that_tells_its_status_to_users_alone_is_used() -> None:
    etcd = BusyEtcd()
    etcd.busy, etcd.guarded = False, True
    settings = EtcdSettings(endpoints=(f"http://127.0.0.1:{await etcd.start()}",), user="u", password="p")
    connection = EtcdConnection(settings, SystemClock())
    try:
        await connection.open()
        assert connection.token == TOKEN[1]
    finally:
        await connection.close()
        await etcd.close()


async def test_an_etcd_that_knows_no_token_that_it_has_just_given_refuses_the_user() -> None:
    etcd = BusyEtcd()
    etcd.busy, etcd.forgets = False, True
    settings = EtcdSettings(endpoints=(f"http://127.0.0.1:{await etcd.start()}",), user="u", password="p")
    connection = EtcdConnection(settings, SystemClock())
    try:
        with pytest.raises(Refused, match="denied: etcdserver: invalid auth token"):
            await connection.unary(RANGE, b"")
    finally:
        await connection.close()
        await etcd.close()


async def test_a_token_is_known_to_an_etcd_that_refuses_its_user_by_name() -> None:
    etcd = BusyEtcd()
    etcd.busy, etcd.denies = False, True
    settings = EtcdSettings(endpoints=(f"http://127.0.0.1:{await etcd.start()}",), user="u", password="p")
    connection = EtcdConnection(settings, SystemClock())
    try:
        with pytest.raises(Refused, match="permission denied"):
            await connection.unary(RANGE, b"")
        assert await connection.knows(TOKEN[1])
        assert not await connection.knows("another")
    finally:
        await connection.close()
        await etcd.close()


async def test_a_store_that_asks_for_a_token_is_checked_as_soon_as_there_is_one() -> None:
    """▲ Without one nothing of it can be read: dies if a store that was restored from a backup is used unchecked."""
    etcd = BusyEtcd()
    etcd.busy = False
    settings = EtcdSettings(endpoints=(f"http://127.0.0.1:{await etcd.start()}",), user="u", password="p")
    connection = EtcdConnection(settings, SystemClock())

    async def check(endpoint: Endpoint) -> None:
        await connection.unary(RANGE, b"", endpoint=endpoint)
        raise StoreUnfit("restored from a backup")

    connection.check_store = check
    try:
        with pytest.raises(StoreUnfit, match="restored from a backup"):
            await connection.open()
    finally:
        await connection.close()
        await etcd.close()
