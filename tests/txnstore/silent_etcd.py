"""An etcd of nothing but gRPC, which answers what it is told to: reads, or renewals of leases alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc

from txnstore.etcd import rpc_pb2 as pb
from txnstore.etcd.backend import EtcdBackend
from txnstore.etcd.connection import EtcdConnection
from txnstore.etcd.settings import EtcdSettings
from txnwire.clock import SystemClock

TTL_S = 2
CLUSTER = 5


class SilentEtcd:
    """`applies`: while it is cleared, reads and writes wait, as at a member that defragments or whose disk hangs;
    `tells`: the same for its status, `commits`: for transactions alone, `sends`: amid a snapshot. `asked` counts what
    came. `cluster`, `leader` and `errors` are those that it tells of; `with_leader`: how many watches were to end where
    it has none."""

    def __init__(self, secured: grpc.ServerCredentials | None = None) -> None:
        self.cluster, self.leader, self.with_leader = CLUSTER, 1, 0
        self.errors: list[str] = []
        self.applies, self.tells, self.renews, self.commits, self.sends = [asyncio.Event() for _ in range(5)]
        self.go_on()
        self.asked: Counter[str] = Counter()
        self.watching = 0
        self.port = 0
        self._secured = secured
        self._server = grpc.aio.server()

    def go_on(self) -> None:
        for event in (self.applies, self.tells, self.renews, self.commits, self.sends):
            event.set()

    async def start(self) -> None:
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        download = grpc.unary_stream_rpc_method_handler
        for service, methods in {
            "KV": {"Range": unary(self._answer("range", self.applies, lambda: pb.RangeResponse(header=self._header()))),
                   "Txn": unary(self._answer("txn", self.applies, lambda: pb.TxnResponse(header=self._header())))},
            "Maintenance": {"Status": unary(self._answer("status", self.tells, lambda: pb.StatusResponse(
                header=self._header(), version="3.5.21", leader=self.leader, raftIndex=20, raftAppliedIndex=20,
                errors=self.errors))), "Snapshot": download(self._break_off)},
            "Lease": {"LeaseKeepAlive": stream(self._renew),
                      "LeaseGrant": unary(self._answer("grant", self.applies, lambda: pb.LeaseGrantResponse(
                          header=self._header(), ID=1, TTL=TTL_S))),
                      "LeaseRevoke": unary(self._answer("revoke", self.applies, lambda: pb.LeaseRevokeResponse(
                          header=self._header())))},
            "Watch": {"Watch": stream(self._watch)},
        }.items():  # fmt: skip
            handler = grpc.method_handlers_generic_handler(f"etcdserverpb.{service}", methods)
            self._server.add_generic_rpc_handlers((handler,))
        if self._secured is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = self._server.add_secure_port("127.0.0.1:0", self._secured)
        await self._server.start()

    async def close(self, grace_s: float = 0) -> None:
        await self._server.stop(grace_s)

    def _header(self) -> pb.ResponseHeader:
        return pb.ResponseHeader(cluster_id=self.cluster, member_id=1, revision=9)

    def _answer(
        self, name: str, when: asyncio.Event, reply: Callable[[], Any]
    ) -> Callable[[bytes, object], Awaitable[bytes]]:
        async def answer(_: bytes, __: object) -> bytes:
            self.asked[name] += 1
            await when.wait()
            if name == "txn":
                await self.commits.wait()
            return cast(bytes, reply().SerializeToString())

        return answer

    async def _renew(self, requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        async for request in requests:
            self.asked["renewal"] += 1
            await self.renews.wait()
            asked = pb.LeaseKeepAliveRequest.FromString(request)
            yield pb.LeaseKeepAliveResponse(header=self._header(), ID=asked.ID, TTL=TTL_S).SerializeToString()

    async def _break_off(self, _: bytes, context: Any) -> AsyncIterator[bytes]:
        yield pb.SnapshotResponse(blob=b"some").SerializeToString()
        await self.sends.wait()
        await context.abort(grpc.StatusCode.UNAVAILABLE, "etcdserver: server stopped")

    async def _watch(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        self.watching += 1
        self.with_leader += ("hasleader", "true") in context.invocation_metadata()
        try:
            async for _request in requests:
                yield pb.WatchResponse(header=self._header(), created=True).SerializeToString()
        finally:
            self.watching -= 1


@asynccontextmanager
async def silent_etcds(
    count: int, *, request_timeout_s: float = 0.2
) -> AsyncIterator[tuple[list[SilentEtcd], EtcdBackend]]:
    """So many, and a backend that is connected to the first of them."""
    etcds = [SilentEtcd() for _ in range(count)]
    for etcd in etcds:
        await etcd.start()
    endpoints = tuple(f"http://127.0.0.1:{etcd.port}" for etcd in etcds)
    settings = EtcdSettings(endpoints=endpoints, request_timeout_s=request_timeout_s)
    backend = EtcdBackend(EtcdConnection(settings, SystemClock()), b"")
    try:
        await backend.open()
        yield etcds, backend
    finally:
        await backend.close()
        for etcd in etcds:
            etcd.go_on()
            await etcd.close()
