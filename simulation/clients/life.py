"""The life of a client process: it connects, works until the plan ends or it cannot go on, and is started again by
whoever supervises it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, TypeVar

import txnclient
from simulation.clients.plan import ClientPorts, Plan
from txnclient.connection.opening import Opening
from txnwire.errors import TxnError

L = TypeVar("L")


class WorkloadLife:
    """One life of a client process. A workload says what it does in `_work`."""

    _may_connect_carelessly: bool = True
    """Whether a careless process may cancel its connection while it opens or closes."""

    def __init__(self, ports: ClientPorts, plan: Plan) -> None:
        self._ports = ports
        self._plan = plan
        self._random = ports.random
        self._name = ports.owner.name
        self._now = ports.clock.monotonic
        self._careless = plan.caller(ports.random)

    async def live(self) -> None:
        """Returns when it cannot go on, or when its work is done; it is then restarted, as under a supervisor."""
        try:
            async with self._connected() as client:
                await self._work(client)
        except TxnError as error:
            self._ended_by(error)

    async def _work(self, client: txnclient.Client) -> None:
        raise NotImplementedError

    def _connect(self) -> Opening[txnclient.Client]:
        return self._plan.connect(self._ports)

    def _connected(self) -> AbstractAsyncContextManager[txnclient.Client]:
        return self._careless.within(self._connect()) if self._may_connect_carelessly else self._connect()

    def _ended_by(self, error: TxnError) -> None:
        self._met(error)

    def _met(self, error: TxnError) -> None:
        self._plan.met(self._name, error)

    def _goes_on(self, until: float) -> bool:
        return self._plan.active and self._now() < until

    async def _pause(self, mean_s: float) -> None:
        await asyncio.sleep(self._random.expovariate(1 / mean_s))

    async def _repeat(
        self,
        turn: Callable[[], Awaitable[None]],
        *,
        pause_s: float,
        until: float = float("inf"),
        failed: Callable[[TxnError], None] | None = None,
    ) -> None:
        """Takes one turn after the other, each after a random pause. `failed` gets the error of a turn, and raises it
        if the process cannot go on; the default raises fatal ones."""
        while self._goes_on(until):
            await self._pause(pause_s)
            try:
                await turn()
            except TxnError as error:
                (failed or self._go_on_unless_fatal)(error)

    def _go_on_unless_fatal(self, error: TxnError) -> None:
        self._met(error)
        if error.fatal:
            raise error


class LoggedLife(WorkloadLife, Generic[L]):
    """A life that writes what it does into `log`, which all lives of its process have in common."""

    def __init__(self, ports: ClientPorts, plan: Plan, log: L) -> None:
        super().__init__(ports, plan)
        self._log = log


class EndlessLife(LoggedLife[L]):
    """A life that goes on after the end of the work until it is killed, and is never careless."""

    _may_connect_carelessly = False

    async def live(self) -> None:
        while True:
            await super().live()
            await asyncio.sleep(0.5)

    @staticmethod
    async def _together(*works: Coroutine[Any, Any, None]) -> None:
        """Does `works` at the same time, and cancels the others once one of them has failed."""
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def beside(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Does `works` beside the block, and cancels them at its end. Raises what ended one of them before."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in tasks:
        if not task.cancelled():
            task.result()
