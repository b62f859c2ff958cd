"""Random histories of clients of one transaction key over two coordinators, judged by the rules of `KeyJudge`.

Clients connect, begin, commit, vanish and come back; whatever they ever sent may be delivered once more, later and
elsewhere; answers are lost, writes land late, coordinators sleep. Then every fault ends, and a new holder gets to work.

Leaves out: aborts by the holder (`test_l2_a_delayed_end_never_ends_the_next_transaction_of_the_key`), several keys
(`test_all_keys_of_a_connection_and_all_of_a_coordinator_id_are_forgotten_with_it`), holders that never come back
(`test_k7_transactions_of_a_holder_that_never_comes_back_end_after_the_grace`), coordinators that die
(`test_a_killed_coordinator_s_keyed_transaction_is_its_client_s_at_the_successor`), a full etcd
(`test_a_full_store_lets_a_holder_fence_another_one_but_begins_and_makes_nothing_new`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coordinator_v5.naming import transaction_keys
from coordinator_v5.settings import CoordinatorSettings
from simulation.judges.key_judge import judge
from tests.coordinator_v5.processes import (
    LANDS_LATE,
    LOST_AFTER,
    LOST_BEFORE,
    Connection,
    Process,
    in_virtual_time,
    open_headers,
)
from txnstore.memory.memory_etcd import MemoryEtcd
from txnwire.errors import ExpiredTransaction, InvalidTxnState, NotAllowed, TxnError
from txnwire.ids import TxnId

T = TypeVar("T")

KEY: Final = "job"
SETTINGS: Final = CoordinatorSettings(tcids=2, id_block=4, header_retention_s=4.0, client_grace_s=3.0, answer_s=2.0)
FATES: Final = (LOST_BEFORE, LOST_AFTER, LANDS_LATE)
CLIENTS: Final = 3

at = st.integers(0, 1)
client = st.integers(0, CLIENTS - 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("connect"), client, at),
        st.tuples(st.just("begin"), client, at),
        st.tuples(st.just("begin"), client, at),
        st.tuples(st.just("commit"), client, at),
        st.tuples(st.just("late"), st.integers(0, 200), at),
        st.tuples(st.just("delete"), at),
        st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.01, 0.3, 1.2, 4.0])),
        st.tuples(st.just("fault"), at, st.integers(0, 2)),
        st.tuples(st.just("pause"), at, st.sampled_from([0.2, 3.0, 9.0])),
        st.tuples(st.just("lose lease"), at),
        st.tuples(st.just("disconnect"), client),
    ),
    min_size=10,
    max_size=60,
)


class Client:
    """One client after another on the same machine: a fenced one connects anew, under an attempt of its own."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._lives = 0
        self.busy = False
        self._anew()

    def _anew(self) -> None:
        self._lives += 1
        self.connection = Connection(f"{self._name}.{self._lives}")
        self._attempt = self.connection.session_id
        self._named: int | None = None
        self.epoch: int | None = None
        self._begins = 0
        self._open: TxnId | None = None

    async def connect(self, process: Process) -> None:
        if self.epoch is not None:
            self._anew()
        if self._named is None:
            self._named = await self._connect(process, -1, b"")
        try:
            self.epoch = await self._connect(process, self._named, self._attempt)
        except NotAllowed:
            self._anew()
            raise
        self._world.given(self.epoch, self._attempt)

    async def _connect(self, process: Process, epoch: int, attempt: bytes) -> int:
        connection = self.connection

        def send(to: Process) -> Awaitable[int]:
            tcid = (*to.coordinator.owned_tcids, 0)[0]
            return to.coordinator.connect_key(tcid, key=KEY, epoch=epoch, attempt=attempt, connection=connection)

        return await self._world.sent(send)(process)

    async def begin(self, process: Process) -> None:
        if self.epoch is None or self._open is not None:
            return
        epoch, number, connection = self.epoch, self._begins + 1, self.connection
        attempt = b"%s/%d" % (self._attempt, number)

        def send(to: Process) -> Awaitable[object]:
            tcid = (*to.coordinator.owned_tcids, 0)[0]
            return to.coordinator.begin_keyed(
                tcid, key=KEY, epoch=epoch, number=number, attempt=attempt, timeout_ms=20_000, connection=connection
            )

        begun = await self._world.sent(send)(process)
        self._begins = number
        if begun.decision is None:  # type: ignore[attr-defined]
            self._open = begun.txn_id  # type: ignore[attr-defined]

    async def commit(self, process: Process) -> None:
        if self._open is None:
            return
        txn_id = self._open

        def send(to: Process) -> Awaitable[object]:
            return to.coordinator.end(txn_id, commit=True)

        try:
            await self._world.sent(send)(process)
        except InvalidTxnState:
            self._open = None
            raise
        self._open = None

    def disconnect(self) -> None:
        for process in self._world.processes:
            process.coordinator.disconnected(self.connection)
        session, owner = self.connection.session_id.decode(), self.connection.owner
        self.connection = Connection(session, owner)


class World:
    def __init__(self, etcd: MemoryEtcd, processes: list[Process]) -> None:
        self.etcd = etcd
        self.processes = processes
        self.clients = [Client(self, f"client-{number}") for number in range(CLIENTS)]
        self.epochs: dict[int, bytes] = {}
        self._requests: list[Callable[[Process], Awaitable[object]]] = []
        self._calls: list[asyncio.Future[None]] = []

    def given(self, epoch: int, attempt: bytes) -> None:
        assert self.epochs.setdefault(epoch, attempt) == attempt, "an epoch was given twice"

    def sent(self, send: Callable[[Process], Awaitable[T]]) -> Callable[[Process], Awaitable[T]]:
        """Remember a request: it may arrive again."""
        self._requests.append(send)
        return send

    async def step(self, step: tuple[object, ...]) -> None:
        match step:
            case (("connect" | "begin" | "commit") as what, int(who), int(where)):
                one = self.clients[who]
                if not one.busy:
                    self._call(self._act(one, getattr(one, str(what)), self.processes[where]))
            case ("late", int(which), int(where)) if self._requests:
                self._call(_late(self._requests[which % len(self._requests)], self.processes[where]))
            case ("delete", int(where)):
                self._call(self._delete(self.processes[where]))
            case ("sleep", float(seconds)):
                await asyncio.sleep(seconds)
            case ("fault", int(where), int(fate)):
                self.processes[where].fates.script.append(FATES[fate])
            case ("pause", int(where), float(seconds)):
                self.processes[where].pause()
                asyncio.get_running_loop().call_later(seconds, self.processes[where].resume)
            case ("lose lease", int(where)):
                leases = self.etcd.leases()
                if leases:
                    self.etcd.expire_lease(leases[where % len(leases)])
            case ("disconnect", int(who)) if not self.clients[who].busy:
                self.clients[who].disconnect()
            case _:
                pass
        await asyncio.sleep(0)

    def _call(self, call: Awaitable[None]) -> None:
        self._calls.append(asyncio.ensure_future(call))

    async def _act(self, one: Client, act: Callable[[Process], Awaitable[None]], process: Process) -> None:
        one.busy = True
        try:
            await act(process)
        except TxnError as error:
            assert error.retriable or isinstance(error, NotAllowed | InvalidTxnState), error
            if isinstance(error, ExpiredTransaction | NotAllowed):
                one._anew()
        finally:
            one.busy = False

    async def _delete(self, process: Process) -> None:
        state, _ = await transaction_keys.look(process.store, b"/txn-key/anonymous&job")
        try:
            await transaction_keys.delete(
                process.store, process.clock, owner="anonymous", key=KEY, epoch=state.record.epoch
            )
        except TxnError as error:
            assert error.retriable or isinstance(error, NotAllowed), error

    async def settle(self) -> None:
        """Faults end; every call is answered; then somebody new is served at once, whatever is left behind."""
        for process in self.processes:
            process.fates.script.clear()
            process.resume()
        await asyncio.wait_for(asyncio.gather(*self._calls), 60.0)
        await asyncio.sleep(8.0)  # writes that land late have landed, leases are held
        one = Client(self, "newcomer")
        process = next(one for one in self.processes if one.coordinator.owned_tcids)
        await one.connect(process)
        for _ in range(2):
            await one.begin(process)
            assert len(open_headers(self.etcd)) == 1
            await one.commit(process)
        assert open_headers(self.etcd) == []


async def _late(request: Callable[[Process], Awaitable[object]], process: Process) -> None:
    """Nobody waits for the answer, which may be anything but a defect."""
    try:
        await request(process)
    except TxnError as error:
        assert error.retriable or isinstance(error, NotAllowed | InvalidTxnState), error


def play(history: list[tuple[object, ...]]) -> int:
    """The highest epoch given."""

    async def scenario(etcd: MemoryEtcd) -> int:
        processes = [await Process(etcd, name, SETTINGS).start() for name in ("one", "two")]
        world = World(etcd, processes)
        for step in history:
            await world.step(step)
        await world.settle()
        for one in processes:
            await one.close()
        found = judge(change.events for change in etcd.mvcc.changes_since(0, at_most=1_000_000))
        assert not found.findings
        for epochs in found.commits.values():
            assert epochs == sorted(epochs)
        return max(world.epochs)

    return in_virtual_time(scenario)


@given(steps)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_k3_whatever_comes_late_or_is_lost_one_holder_is_served(history: list[tuple[object, ...]]) -> None:
    play(history)


@pytest.mark.parametrize("seed", range(10))
def test_k3_whatever_comes_late_or_is_lost_one_holder_is_served_over_long_histories(seed: int) -> None:
    chance = random.Random(seed)
    kinds = ["connect"] * 5 + ["begin"] * 10 + ["commit"] * 9 + ["late"] * 8 + ["sleep"] * 6 + ["fault"] * 3
    kinds += ["delete", "pause", "disconnect", "lose lease"]
    arguments = {
        "connect": lambda: (chance.randrange(CLIENTS), chance.randrange(2)),
        "begin": lambda: (chance.randrange(CLIENTS), chance.randrange(2)),
        "commit": lambda: (chance.randrange(CLIENTS), chance.randrange(2)),
        "late": lambda: (chance.randrange(1000), chance.randrange(2)),
        "delete": lambda: (chance.randrange(2),),
        "sleep": lambda: (chance.choice([0.0, 0.01, 0.05, 0.3, 1.2]),),
        "fault": lambda: (chance.randrange(2), chance.randrange(3)),
        "pause": lambda: (chance.randrange(2), chance.choice([0.2, 3.0, 9.0])),
        "disconnect": lambda: (chance.randrange(CLIENTS),),
        "lose lease": lambda: (chance.randrange(2),),
    }
    assert play([(kind, *arguments[kind]()) for kind in chance.choices(kinds, k=300)]) > 1
