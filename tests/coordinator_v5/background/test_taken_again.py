"""A coordinator id that its holder loses and wins again before it is loaded."""

from __future__ import annotations

import asyncio

from tests.coordinator_v5.processes import ONE_TCID, Process, fresh_etcd
from tests.segments.virtual_time import virtual_time
from tests.waiting import until
from txnstore import keys
from txnstore.store import Commit, Delete, KeyValue


@virtual_time
async def test_an_id_that_is_lost_and_taken_again_while_it_is_loaded_is_served_under_its_new_epoch() -> None:
    """▲ Under the former epoch its begins would be refused, and nobody would load it again."""
    etcd = fresh_etcd()
    process = Process(etcd, "one", ONE_TCID)
    get_really = process.store.get
    reading, go_on = asyncio.Event(), asyncio.Event()

    async def held(key: bytes, **options: float) -> KeyValue | None:
        found = await get_really(key, **options)
        if key == keys.txn_seq(0):
            reading.set()
            await go_on.wait()
        return found

    process.store.get = held  # type: ignore[method-assign]
    starting = asyncio.ensure_future(process.start())
    await reading.wait()
    etcd.mvcc.commit([Commit(deletes=(Delete(keys.tc(0)),))])
    await until(lambda: etcd.mvcc.get(keys.tc(0)) is not None)
    await asyncio.sleep(1)
    go_on.set()
    await starting
    assert (await process.coordinator.begin(0)).txn_id.tcid == 0
    await process.close()
