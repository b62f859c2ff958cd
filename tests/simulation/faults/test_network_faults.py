"""Faults of hosts and connections in the simulation do what they say, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from simulation.world.loop import SimLoop
from simulation.world.sim_transport import Delays, Network, SimTransport
from simulation.world.world import SimClock
from tests.txnwire.transport.transport_contract import command, take
from txnwire.errors import ConnectionLost
from txnwire.ports import Connection

LATE = Delays((0.5, 0.6), slow_share=0.0)


class House:
    """A server that answers every command with itself, and a client, each on its host."""

    def __init__(self) -> None:
        self.loop = SimLoop(3)
        self.network = Network(self.loop, 3)
        self.client_owner, self.server_owner = self.loop.new_owner("client"), self.loop.new_owner("server")
        self.client = SimTransport(self.network, self.client_owner, "client")
        self.received: list[int] = []

    async def listen(self) -> None:
        server = SimTransport(self.network, self.server_owner, "server")
        listening = self.loop.create_future()

        async def serve() -> None:
            listening.set_result(await server.listen("server:1", self._echo))

        self.loop.call_soon(lambda: self.loop.create_task(serve()), context=self.loop.context_of(self.server_owner))
        await listening

    async def _echo(self, connection: Connection) -> None:
        while True:
            for one in await connection.receive():
                self.received.append(one.request_id)
                connection.send_nowait(one)

    async def connect(self) -> Connection:
        return await self.client.connect("server:1", timeout_s=1)

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        self.loop.run_until_complete(scenario())
        self.loop.close()


def test_a_slow_route_delays_one_way_until_it_is_mended() -> None:
    house = House()

    async def scenario() -> None:
        await house.listen()
        connection = await house.connect()
        house.network.slow(("server", "client"), LATE)
        begin = house.loop.time()
        connection.send_nowait(command(1))
        await asyncio.sleep(0.3)
        assert house.received == [1], "the way there is as fast as ever"
        assert await take(connection, 1) == [1]
        assert 0.5 <= house.loop.time() - begin < 0.9
        house.network.mend([("server", "client")])
        begin = house.loop.time()
        connection.send_nowait(command(2))
        assert await take(connection, 1) == [2]
        assert house.loop.time() - begin < 0.5

    house.run(scenario)


def test_connections_of_the_same_hosts_overtake_each_other_when_one_lags() -> None:
    house = House()

    async def scenario() -> None:
        await house.listen()
        first, second = await house.connect(), await house.connect()
        house.network.links()[0].lag = LATE
        first.send_nowait(command(1))
        await asyncio.sleep(0.01)
        second.send_nowait(command(2))
        assert await take(second, 1) == [2]
        assert house.received == [2]
        house.network.heal()
        first.send_nowait(command(3))
        assert await take(first, 2) == [1, 3], "▲ in order all the same on one connection, also where it gets faster"

    house.run(scenario)


def test_a_host_that_fails_is_noticed_by_its_silence_alone() -> None:
    house = House()

    async def scenario() -> None:
        await house.listen()
        connection = await house.connect()
        house.loop.kill(house.server_owner)
        house.network.owner_died(house.server_owner, host="server")
        begin = house.loop.time()
        connection.send_nowait(command(1))
        with pytest.raises(ConnectionLost, match="no connection within"):
            await house.connect()
        with pytest.raises(ConnectionLost, match="no sign of life"):
            await connection.receive()
        assert house.loop.time() - begin > 3.9, "nobody told it"
        assert house.received == []
        house.network.host_is_up("server")
        with pytest.raises(ConnectionLost, match="refused"):
            await house.connect()

    house.run(scenario)


def test_a_wall_clock_drifts_from_where_it_is_and_is_set_right() -> None:
    loop = SimLoop(1)

    async def scenario() -> None:
        clock = SimClock(loop)
        begin = clock.wall_ms()
        clock.drift(0.5)
        await asyncio.sleep(10)
        assert clock.wall_ms() - begin == pytest.approx(15_000, abs=2)
        clock.drift(-0.2)
        assert clock.wall_ms() - begin == pytest.approx(15_000, abs=2), "what it is off by stays"
        await asyncio.sleep(10)
        assert clock.wall_ms() - begin == pytest.approx(23_000, abs=2)
        assert clock.monotonic() == pytest.approx(20, abs=0.01)
        clock.set_right()
        assert clock.wall_ms() - begin == pytest.approx(20_000, abs=2)

    loop.run_until_complete(scenario())
    loop.close()
