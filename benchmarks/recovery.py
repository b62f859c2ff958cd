"""Recovery of a segment after many finished and 1 000 open transactions: only the open ones and the tail may count."""

from __future__ import annotations

import asyncio
import signal

from benchmarks.cluster import TOPIC, Bench, bench_cluster
from benchmarks.load import VALUE, Timings, at_once
from benchmarks.result import Result, at_most, percentile
from txnctl.commands.asking import asking
from txnwire.errors import TxnError

OPEN = 1000
KILLS = 5
FEW, MANY = 2_000, 200_000


async def recovery() -> list[Result]:
    few, few_detail = await _recovered_after(FEW)
    many, many_detail = await _recovered_after(MANY)
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
    epoch = (await _stats_of_the_next_owner(bench, 0))["epoch"]
    bench.cluster.children["broker-1"].signal(signal.SIGKILL)
    return float((await _stats_of_the_next_owner(bench, epoch))["recovery_s"])


async def _stats_of_the_next_owner(bench: Bench, former_epoch: float) -> dict[str, float]:
    async with asyncio.timeout(60), asking(bench.cluster.url) as ask:
        while True:
            try:
                answer = (await ask.ask("topics.stats", topic=TOPIC))["segments"][0]
            except TxnError as error:
                answer = {"error": str(error)}
            if "error" not in answer and answer["open_transactions"] == OPEN and answer["epoch"] > former_epoch:
                return dict(answer)
            await asyncio.sleep(0.1)
