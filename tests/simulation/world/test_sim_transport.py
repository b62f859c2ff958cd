"""`SimTransport` keeps the transport contract, in virtual time; and what its faults do to commands on their way."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable

import pytest

from simulation.world.loop import SimLoop
from simulation.world.sim_transport import Network, SimTransport
from tests.txnwire.transport.transport_contract import Server, TransportContract, command, take
from tests.waiting import until
from txnwire.errors import ConnectionLost
from txnwire.ports import Connection


class _Everywhere(SimTransport):
    """One process that listens on "server"."""

    def __init__(self, network: Network) -> None:
        super().__init__(network, network.loop.world, "server")


CONTRACT = [name for name in dir(TransportContract) if name.startswith("test_")]


@pytest.mark.parametrize("name", CONTRACT)
def test_the_contract(name: str) -> None:
    """The shared suite, each of its tests in virtual time with fixtures made by hand."""
    test = getattr(TransportContract(), name)
    loop = SimLoop(7)

    async def main() -> None:
        transport = _Everywhere(Network(loop, 7))
        server = Server()
        server.listener = await transport.listen("server:0", server)
        parts: dict[str, object] = {"transport": transport, "server": server}
        if "pair" in inspect.signature(test).parameters:
            client = await transport.connect(server.listener.address, timeout_s=10)
            await until(lambda: bool(server.accepted))
            parts["pair"] = (client, server.accepted[0])
        await test(**{wanted: parts[wanted] for wanted in inspect.signature(test).parameters})
        server.let_go.set()
        await server.listener.close()

    loop.run_until_complete(main())
    loop.close()


Scenario = Callable[["Pair"], Awaitable[None]]


class Pair:
    """A client process and a server process that keeps what it received and answers each command with itself."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.network = Network(loop, 7)
        self.client_owner, self.server_owner = loop.new_owner("client"), loop.new_owner("server")
        self.client = SimTransport(self.network, self.client_owner, "client")
        self.received: list[int] = []

    async def start(self) -> Connection:
        server = SimTransport(self.network, self.server_owner, "server")
        started = self.loop.create_future()

        async def serve() -> None:
            started.set_result(await server.listen("server:1", self._echo))

        self.loop.call_soon(lambda: self.loop.create_task(serve()), context=self.loop.context_of(self.server_owner))
        await started
        return await self.client.connect("server:1", timeout_s=1)

    async def _echo(self, connection: Connection) -> None:
        while True:
            for one in await connection.receive():
                self.received.append(one.request_id)
                connection.send_nowait(one)


def run(scenario: Scenario) -> None:
    loop = SimLoop(3)

    async def main() -> None:
        await scenario(Pair(loop))

    loop.run_until_complete(main())
    loop.close()


def test_a_reset_after_delivery_loses_the_reply_alone() -> None:
    async def scenario(pair: Pair) -> None:
        connection = await pair.start()
        connection.send_nowait(command(1))
        assert await take(connection, 1) == [1]
        (link,) = pair.network.links()
        link.lose_replies(1, 0.2)
        connection.send_nowait(command(2))
        with pytest.raises(ConnectionLost):
            await connection.receive()
        assert pair.received == [1, 2]
        assert pair.network.links() == []

    run(scenario)


def test_a_short_cut_delays_a_long_one_ends_the_connection() -> None:
    async def scenario(pair: Pair) -> None:
        connection = await pair.start()
        pair.network.cut("client", "server")
        connection.send_nowait(command(1))
        await asyncio.sleep(2)
        assert pair.received == []
        pair.network.heal()
        assert await take(connection, 1) == [1]
        pair.network.cut("server", "client")
        connection.send_nowait(command(2))
        with pytest.raises(ConnectionLost, match="no sign of life"):
            await connection.receive()
        assert pair.received == [1, 2]
        with pytest.raises(ConnectionLost):
            await pair.client.connect("server:1", timeout_s=1)

    run(scenario)


def test_a_killed_server_is_noticed_behind_a_cut_that_began_with_its_death() -> None:
    async def scenario(pair: Pair) -> None:
        connection = await pair.start()
        pair.loop.kill(pair.server_owner)
        pair.network.owner_died(pair.server_owner)
        pair.network.cut("server", "client")
        pair.loop.call_in_world(1.0, pair.network.mend, [("server", "client")])
        with pytest.raises(ConnectionLost):
            await connection.receive()

    run(scenario)


def test_a_killed_server_is_noticed_and_its_port_is_free() -> None:
    async def scenario(pair: Pair) -> None:
        connection = await pair.start()
        connection.send_nowait(command(1))
        assert await take(connection, 1) == [1]
        pair.loop.kill(pair.server_owner)
        pair.network.owner_died(pair.server_owner)
        with pytest.raises(ConnectionLost):
            await connection.receive()
        with pytest.raises(ConnectionLost, match="refused"):
            await pair.client.connect("server:1", timeout_s=1)
        await connection.close()
        assert not pair.network.is_taken("server:1")

    run(scenario)


def test_frames_of_one_connection_never_overtake_each_other() -> None:
    async def scenario(pair: Pair) -> None:
        connection = await pair.start()
        for number in range(1, 400):
            connection.send_nowait(command(number))
            if number % 3 == 0:
                await asyncio.sleep(0.0003)
        assert await take(connection, 399) == list(range(1, 400))
        assert pair.received == list(range(1, 400))

    run(scenario)
