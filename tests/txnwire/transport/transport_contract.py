"""What every `ports.Transport` must do. A test class derives from `TransportContract` and brings the two fixtures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.waiting import until
from txnwire.errors import ConnectionLost, MessageTooLarge
from txnwire.ports import Connection, Listener, Transport
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_COMMAND_BYTES, MAX_ENTRY_BYTES


def command(request_id: int, size: int = 0) -> pb.Command:
    return pb.Command(request_id=request_id, send=pb.Send(producer_id=7, entry=bytes(size)))


class Server:
    """Keeps accepted connections for the test to use as the other end; each is served until the test lets it go."""

    def __init__(self) -> None:
        self.accepted: list[Connection] = []
        self.ended: list[str] = []
        self.let_go = asyncio.Event()
        self.handler: Callable[[Connection], Awaitable[None]] | None = None
        self.listener: Listener | None = None

    async def __call__(self, connection: Connection) -> None:
        self.accepted.append(connection)
        try:
            await (self.handler(connection) if self.handler else self.let_go.wait())
        finally:
            self.ended.append(connection.peer)


async def echo(connection: Connection) -> None:
    while True:
        for received in await connection.receive():
            connection.send_nowait(received)


async def take(connection: Connection, count: int) -> list[int]:
    """The request ids of the next `count` commands."""
    got: list[int] = []
    while len(got) < count:
        got += [received.request_id for received in await connection.receive()]
    return got


class TransportContract:
    @pytest.fixture
    def address(self) -> str:
        raise NotImplementedError("where the transport may listen")

    @pytest.fixture
    def transport(self) -> Transport:
        raise NotImplementedError("the transport under test")

    @pytest.fixture
    async def server(self, transport: Transport, address: str) -> AsyncIterator[Server]:
        server = Server()
        server.listener = await transport.listen(address, server)
        yield server
        server.let_go.set()
        await server.listener.close()

    @pytest.fixture
    async def pair(self, transport: Transport, server: Server) -> AsyncIterator[tuple[Connection, Connection]]:
        """The client's and the server's end of one connection."""
        assert server.listener is not None
        client = await transport.connect(server.listener.address, timeout_s=10)
        await until(lambda: bool(server.accepted))
        yield client, server.accepted[0]
        await client.close()

    async def test_commands_arrive_whole_and_in_order_both_ways(self, pair: tuple[Connection, Connection]) -> None:
        for sender, receiver in (pair, pair[::-1]):
            for request_id in range(1, 3001):
                sender.send_nowait(command(request_id, size=request_id % 300))
            assert await take(receiver, 3000) == list(range(1, 3001))

    async def test_a_command_may_be_reused_once_it_is_sent(self, pair: tuple[Connection, Connection]) -> None:
        client, server = pair
        reused = pb.Command(ok=pb.Ok())
        for request_id in (1, 2, 3):
            reused.request_id = request_id
            client.send_nowait(reused)
        assert await take(server, 3) == [1, 2, 3]

    async def test_the_largest_entry_and_the_largest_command_pass(self, pair: tuple[Connection, Connection]) -> None:
        client, server = pair
        for sender, receiver in ((client, server), (server, client)):
            sender.send_nowait(command(1, size=MAX_ENTRY_BYTES))
            sender.send_nowait(command(2, size=MAX_COMMAND_BYTES - 64))
            assert await take(receiver, 2) == [1, 2]

    async def test_a_command_no_frame_can_carry_is_refused(self, pair: tuple[Connection, Connection]) -> None:
        client, server = pair
        with pytest.raises(MessageTooLarge):
            client.send_nowait(command(1, size=MAX_COMMAND_BYTES))
        client.send_nowait(command(2))
        assert await take(server, 1) == [2]

    async def test_what_was_sent_before_close_arrives_then_the_end(self, pair: tuple[Connection, Connection]) -> None:
        client, server = pair
        for request_id in range(1, 101):
            client.send_nowait(command(request_id, size=1000))
        await client.close()
        assert await take(server, 100) == list(range(1, 101))
        with pytest.raises(ConnectionLost):
            await server.receive()

    async def test_what_the_server_sent_before_close_arrives_then_the_end(
        self, pair: tuple[Connection, Connection], server: Server
    ) -> None:
        client, other_end = pair
        for request_id in range(1, 101):
            other_end.send_nowait(command(request_id, size=1000))
        server.let_go.set()
        assert await take(client, 100) == list(range(1, 101))
        with pytest.raises(ConnectionLost):
            await client.receive()

    async def test_a_closed_connection_says_so_and_closes_again(self, pair: tuple[Connection, Connection]) -> None:
        client, _ = pair
        await client.close()
        await client.close()
        with pytest.raises(ConnectionLost):
            client.send_nowait(command(1))
        with pytest.raises(ConnectionLost):
            await client.receive()
        with pytest.raises(ConnectionLost):
            await client.drain(0)

    async def test_closing_wakes_a_receiver_at_either_end(self, pair: tuple[Connection, Connection]) -> None:
        receivers = [asyncio.ensure_future(end.receive()) for end in pair]
        await asyncio.sleep(0)
        await pair[0].close()
        async with asyncio.timeout(5):
            results = await asyncio.gather(*receivers, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionLost, ConnectionLost]

    async def test_a_cancelled_receive_loses_nothing(self, pair: tuple[Connection, Connection]) -> None:
        client, server = pair
        for request_id in range(1, 21):
            receiver = asyncio.ensure_future(server.receive())
            await asyncio.sleep(0)
            client.send_nowait(command(request_id))
            for _ in range(request_id % 7):
                await asyncio.sleep(0)
            receiver.cancel()
            await asyncio.wait({receiver})
            got = [] if receiver.cancelled() else [received.request_id for received in receiver.result()]
            assert (got or await take(server, 1)) == [request_id]

    async def test_a_slow_reader_holds_the_sender_back(self, pair: tuple[Connection, Connection]) -> None:
        client, server = pair
        for request_id in range(1, 101):
            client.send_nowait(command(request_id, size=1_000_000))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.drain(0), 0.3)
        assert client.pending_bytes > 0
        drained = asyncio.ensure_future(client.drain(0))
        assert await take(server, 100) == list(range(1, 101))
        await asyncio.wait_for(drained, 10)
        assert client.pending_bytes == 0

    async def test_nobody_there_is_connection_lost(self, transport: Transport, server: Server) -> None:
        assert server.listener is not None
        gone = server.listener.address
        await server.listener.close()
        with pytest.raises(ConnectionLost, match=gone):
            await transport.connect(gone, timeout_s=5)

    async def test_closing_the_listener_ends_its_connections_and_handlers(
        self, transport: Transport, server: Server
    ) -> None:
        """Nobody is cancelled, who would have no say in how it ends."""
        ends: list[type[BaseException]] = []

        async def noting(connection: Connection) -> None:
            try:
                await connection.receive()
            except BaseException as error:
                ends.append(type(error))
                raise

        server.handler = noting
        assert server.listener is not None
        clients = [await transport.connect(server.listener.address, timeout_s=10) for _ in range(3)]
        await until(lambda: len(server.accepted) == 3)
        async with asyncio.timeout(10):
            await server.listener.close()
        assert ends == [ConnectionLost] * 3
        for client in clients:
            with pytest.raises(ConnectionLost):
                await client.receive()
            await client.close()

    async def test_a_handler_that_does_not_end_is_cancelled(
        self, pair: tuple[Connection, Connection], server: Server
    ) -> None:
        assert server.listener is not None
        async with asyncio.timeout(10):
            await server.listener.close(grace_s=0.1)
        assert len(server.ended) == 1
        with pytest.raises(ConnectionLost):
            await pair[0].receive()

    async def test_a_handler_that_fails_ends_its_connection_only(self, transport: Transport, server: Server) -> None:
        async def fail_at_zero(connection: Connection) -> None:
            while True:
                for received in await connection.receive():
                    if not received.request_id:
                        raise RuntimeError("a handler's bug")
                    connection.send_nowait(received)

        server.handler = fail_at_zero
        assert server.listener is not None
        failing, living = [await transport.connect(server.listener.address, timeout_s=10) for _ in range(2)]
        failing.send_nowait(command(0))
        with pytest.raises(ConnectionLost):
            await failing.receive()
        living.send_nowait(command(5))
        assert await take(living, 1) == [5]
        await failing.close()
        await living.close()
