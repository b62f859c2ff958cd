"""What a closed process leaves is found, and what is open is not taken for left."""

from __future__ import annotations

import asyncio
import random
import re
import threading
from pathlib import Path

import pytest

from segments.ledger.file_ledger import FileLedgerStore
from segments.log.sends.sending import Budget
from simulation.judges.leftovers import BUDGETS, EMPTY, OURS, ROOT, files_left, leases_left, left_in, tasks_left
from tests.segments.virtual_time import LoopClock, run, virtual_time
from tests.txnclient.scripted_server import TOPIC, connected
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.store import Commit, Put
from txnwire.tasks import restarted

SEGMENT = "public/default/orders/0000-ffff-0"


async def test_a_ledger_that_is_open_is_left_in_its_store_and_as_a_file(tmp_path: Path) -> None:
    ledgers = FileLedgerStore(tmp_path)
    await ledgers.create(SEGMENT, 0, incarnation="one")
    assert list(left_in(ledgers)) == ["FileLedgerStore, closed, has 1 left in FileLedgerStore._writers"]
    assert len([file for file in files_left() if str(tmp_path) in file]) == 1
    await ledgers.close()
    assert [*left_in(ledgers), *(file for file in files_left() if str(tmp_path) in file)] == []


async def test_a_job_that_runs_is_left_in_its_store(tmp_path: Path) -> None:
    ledgers, go_on = FileLedgerStore(tmp_path), threading.Event()
    job = ledgers.submit(lambda: go_on.wait(30.0))
    assert list(left_in(ledgers)) == ["FileLedgerStore, closed, has 1 left in IoThreads.under_way"]
    go_on.set()
    assert await job
    await ledgers.close()
    assert list(left_in(ledgers)) == []


@pytest.mark.parametrize("what", [*BUDGETS, *EMPTY])
def test_what_is_looked_for_is_an_attribute_that_there_is(what: str) -> None:
    """▲ One under its former name is always found empty."""
    owner, _, attribute = what.partition(".")
    stands = rf"(?:\bself\.{attribute}\b|^    {attribute}:)"
    holds = re.compile(rf"^class {owner}\b(?:(?!^class ).)*{stands}", re.MULTILINE | re.DOTALL)
    sources = [path for package in OURS for path in Path(ROOT, package).rglob("*.py")]
    assert any(holds.search(path.read_text()) for path in sources)


def test_a_budget_that_is_taken_is_left_wherever_it_hangs() -> None:
    class Holder:
        def __init__(self) -> None:
            self.parts = {"one": [Budget(100)]}

    holder = Holder()
    assert list(left_in(holder)) == []
    holder.parts["one"][0].bytes = 7
    assert list(left_in(holder)) == ["Holder, closed, has 7 left in Budget.bytes"]


@virtual_time
async def test_a_client_that_is_open_has_its_connection_tasks_and_what_it_opened() -> None:
    async with connected() as (_, client):
        await client.producer(TOPIC)
        left = [text.rpartition(" ")[2] for text in left_in(client)]
        assert {"Client._opened", "Links._links", "OwnedTasks._tasks"} <= set(left)
    assert list(left_in(client)) == []


def test_a_task_of_ours_is_left_and_one_of_others_is_not() -> None:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    async def scenario() -> list[str]:
        ours, theirs = restarted(wait, name="planted"), asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        found = list(tasks_left(asyncio.all_tasks()))
        ours.cancel()
        theirs.cancel()
        await asyncio.wait((ours, theirs))
        assert list(tasks_left((ours, theirs))) == []
        return found

    assert run(scenario()) == ["a task is left: planted, _run_again of txnwire/tasks.py"]


def test_a_scenario_in_virtual_time_that_leaves_a_task_fails() -> None:
    async def scenario() -> None:
        restarted(asyncio.Event().wait, name="planted")  # type: ignore[arg-type]
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match="planted"):
        run(scenario())
    run(scenario(), leaves_tasks=True)


@virtual_time
async def test_a_lease_is_left_with_its_keys_but_for_that_of_sendings() -> None:
    etcd = MemoryEtcd(LoopClock())
    store = MemoryStore(etcd, LoopClock(), random.Random(1))
    lease = await store.grant_lease(30.0)
    await store.commit(Commit(puts=(Put(keys.leader("planted"), b"x", lease.id),)))
    assert list(leases_left(etcd)) == [f"lease {lease.id:x} is left, with /leader/planted"]
    await lease.revoke()
    assert list(leases_left(etcd)) == []
    await store.close()
