"""A segment whose take-over hangs on its disk, beside others of its broker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import Recovered
from tests.segments.brokering import Cluster
from tests.waiting import until
from txnstore.store import Commit, Put


class HangingFences:
    """File ledgers that are never fenced for one segment."""

    def __init__(self, data_dir: Path, segment: str) -> None:
        self._store = FileLedgerStore(data_dir)
        self._segment = segment
        self.waiting = 0

    async def fence(self, segment: str, ledger_id: int) -> Recovered:
        if segment == self._segment:
            self.waiting += 1
            await asyncio.Event().wait()
        return await self._store.fence(segment, ledger_id)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_a_take_over_whose_disk_hangs_keeps_no_decisions_and_holds_up_no_other_segment(
    memory_cluster: Cluster,
) -> None:
    """▲ It would keep all that the cluster decides, as long as the disk hangs; and no snapshot could be taken of the
    others where nothing is decided."""
    cluster = memory_cluster
    hanging, healthy = await cluster.create_topic(segments=2)
    node = await cluster.start()
    for segment in (hanging, healthy):
        await node.broker.segment(segment)
    await node.crash()
    cluster.make_ledgers = lambda folder: HangingFences(folder, hanging)  # type: ignore[assignment,return-value]
    node = await cluster.start()
    ledgers: HangingFences = node.ledgers  # type: ignore[assignment]
    served = await node.broker.segment(healthy)
    await until(lambda: ledgers.waiting)
    for _ in range(20):
        await cluster.commit(await cluster.begin())
    elsewhere = (await cluster.store.commit(Commit(puts=(Put(b"/elsewhere", b""),)))).revision
    async with asyncio.timeout(2):
        await served.wait_followed(elsewhere, patience_s=0.01)
    assert len(node.broker._shared.decisions.early) == 0
    assert hanging in node.broker.taking
