"""Recovery of a segment after many finished and 1 000 open transactions: only the open ones and the tail may count."""

from __future__ import annotations

import asyncio
import signal

from benchmarks.harness.cluster import TOPIC, Bench, bench_cluster
from benchmarks.harness.load import VALUE, Timings, at_once
from benchmarks.harness.result import Result, at_most, percentile
from benchmarks.harness.scale import Scale
from txnctl.commands.shared.asking import asking
from txnwire.errors import TxnError

OPEN = 1000
KILLS = 5
FEW, MANY = 2_000, 200_000


async def recovery(scale: Scale) -> list[Result]:
    few, few_detail = await _recovered_after(scale.of(FEW, 200))
    many, many_detail = await _recovered_after(scale.of(MANY, 2_000))
    return [
        Result(name="recovery after 2 000 finished, 1 000 open", value=few, unit="s", detail=few_detail),
        at_most("recovery after 200 000 finished, 1 000 open", many, "s", 2, many_detail),
        at_most("recovery, 200 000 finished to 2 000", many / few, "x", 1.5),
    ]


async def _recovered_after(finished: int) -> tuple[float, str]:
    """Seconds the segment's recovery took, as its new owner measured it: the median over kills of the broker."""
    async with bench_cluster(segments=1) as bench, await bench.client.producer(TOPIC, compression=None) as producer:
        timings = Timings()
        while (left := finished - len(timings.commits)) > 0:
            seconds = min(30.0, max(0.2, left / 3000))
            await at_once(bench.client, producer, concurrency=256, seconds=seconds, timings=timings)
        transactions = [await bench.client.begin(timeout=3000) for _ in range(OPEN)]
        await asyncio.gather(*(producer.send(VALUE, txn=txn) for txn in transactions))
        await _until_settled(bench)
        took = [await _recover_once(bench) for _ in range(KILLS)]
        await asyncio.gather(*(txn.abort() for txn in transactions))
        shown = ", ".join(f"{seconds:.3f}" for seconds in took)
        return percentile(took, 0.5), f"{len(timings.commits)} committed before; after {KILLS} SIGKILLs: {shown} s"


async def _until_settled(bench: Bench) -> None:
    """Until what has finished is cleaned up and collected: recovery is measured, not what else keeps the cores busy."""
    async with asyncio.timeout(300):
        while (await bench.backlog())["headers"] > OPEN:
            await asyncio.sleep(1.0)


async def _recover_once(bench: Bench) -> float:
    epoch = (await stats_of_the_next_owner(bench, 0, OPEN))[0]["epoch"]
    bench.cluster.children["broker-1"].signal(signal.SIGKILL)
    return float((await stats_of_the_next_owner(bench, epoch, OPEN))[0]["recovery_s"])


async def stats_of_the_next_owner(bench: Bench, former_epoch: float, open_transactions: int) -> list[dict[str, float]]:
    """Of the load topic's segments, once all are owned under later epochs and hold so many open transactions."""
    async with asyncio.timeout(60), asking(bench.cluster.url) as ask:
        while True:
            try:
                answer = (await ask.ask("topics.stats", topic=TOPIC))["segments"]
            except TxnError as error:
                answer = [{"error": str(error)}]
            owned = all("error" not in one and one["epoch"] > former_epoch for one in answer)
            if owned and sum(one["open_transactions"] for one in answer) == open_transactions:
                return list(answer)
            await asyncio.sleep(0.1)
