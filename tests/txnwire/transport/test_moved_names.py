"""A channel to a name that stands for another address by now, as when Kubernetes starts a pod anew elsewhere."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, cast

import grpc

from tests.waiting import until_accepted
from txnwire.transport.grpc_transport import open_channel

_OLD: Final = "127.0.0.2"
_NEW: Final = "127.0.0.3"
_SOON_S: Final = 15.0
"""Half of what gRPC lets pass, unless it is told otherwise, before it looks up a name again."""
_TYPE_A: Final = 1


class Names(asyncio.DatagramProtocol):
    """A DNS server: every name stands for `address`, and may be kept for no time."""

    def __init__(self) -> None:
        self.address = _OLD

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        question = data[12 : data.index(b"\0", 12) + 5]
        answer = b""
        if int.from_bytes(question[-4:-2]) == _TYPE_A:
            answer = struct.pack("!HHHIH4B", 0xC00C, _TYPE_A, 1, 0, 4, *map(int, self.address.split(".")))
        counts = struct.pack("!HHHHH", 0x8180, 1, bool(answer), 0, 0)
        self._transport.sendto(data[:2] + counts + question + answer, addr)


@asynccontextmanager
async def names() -> AsyncIterator[tuple[Names, int]]:
    loop = asyncio.get_running_loop()
    transport, serving = await loop.create_datagram_endpoint(Names, local_addr=("127.0.0.1", 0))
    try:
        yield serving, transport.get_extra_info("sockname")[1]
    finally:
        transport.close()


@asynccontextmanager
async def echo_at(address: str, port: int = 0) -> AsyncIterator[int]:
    async def echo(request: bytes, _: object) -> bytes:
        return request

    server = grpc.aio.server()
    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"Echo": method}),))
    port = server.add_insecure_port(f"{address}:{port}")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


async def test_a_name_that_stands_for_another_address_is_looked_up_again_before_leases_end() -> None:
    """▲ A process that finds etcd later than that has lost what it owns."""
    async with names() as (dns, dns_port):
        async with echo_at(_OLD) as port:
            channel = open_channel(f"dns://127.0.0.1:{dns_port}/etcd.test:{port}")
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test/Echo")
            assert await call(b"old", timeout=_SOON_S) == b"old"
        dns.address = _NEW
        async with echo_at(_NEW, port):

            async def ask() -> bytes:
                answer: bytes = await call(b"new", timeout=_SOON_S)
                return answer

            failure = grpc.aio.AioRpcError
            assert await until_accepted(ask, failure, "still at its old address", within_s=_SOON_S) == b"new"
            await channel.close()
