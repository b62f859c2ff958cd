"""How many aborted records close the open ledger early, so that its sidecar takes them out of etcd."""

from __future__ import annotations

from dataclasses import replace

from segments.log.ledgers.retention import Retention
from segments.owner.segment import Segment
from tests.segments.brokering import Cluster
from tests.segments.brokering_clients import Producer
from tests.segments.log.small_logs import ONE_ENTRY_EACH
from tests.waiting import until

FEW_IN_STORE = replace(ONE_ENTRY_EACH, ledger_roll_bytes=1 << 30, housekeeping_s=3600.0, aborted_in_store=2)


async def _abort(cluster: Cluster, producer: Producer, many: int) -> None:
    for number in range(many):
        txn = await cluster.begin()
        await producer.send(f"aborted {number}", txn=txn)
        await cluster.abort(txn)
        await cluster.wait_no_ops(txn)


async def _noted(served: Segment, records: int) -> None:
    """The owner hears of a clean-up after etcd shows it."""
    await until(lambda: served.buffer.records_in_store == records)


async def test_aborts_that_an_open_transaction_keeps_in_etcd_close_one_ledger_and_not_one_after_the_other(
    memory_cluster: Cluster,
) -> None:
    """▲ A closed ledger starts the next round at once: under traffic the log would roll without a pause for as long as
    the transaction is open, and no roll takes a record out of etcd."""
    cluster = memory_cluster
    [segment] = await cluster.create_topic()
    node = await cluster.start(settings=FEW_IN_STORE)
    producer = await (await cluster.connect(node)).producer(segment)
    await producer.send("open", txn=await cluster.begin())
    await _abort(cluster, producer, 3)
    served = node.broker.segments[segment]
    await _noted(served, 3)
    for number in range(4):
        await served.keep(Retention())
        await producer.send(f"plain {number}")
    assert served.statistics().keeping.rolled_by_age == 1
    await _abort(cluster, producer, 3)
    await _noted(served, 6)
    await served.keep(Retention())
    assert served.statistics().keeping.rolled_by_age == 2, "those of the ledger that is open now"
