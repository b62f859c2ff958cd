"""One transaction written by many processes: a driver, one worker process for each part, and one commit.

    txnctl dev &                                    # a cluster on this machine
    python examples/named_transaction.py --job night-1
    python examples/named_transaction.py --job night-1      # again: it finds itself committed and writes nothing

Every worker begins the same name and so joins the same transaction, as a writer of its own. Workers are tried again
when they fail, and part 0 is tried twice at once, as cluster schedulers do with slow tasks. The driver commits with the
writers of one attempt for each part: whatever the other attempts have written never happened. Needs no coordination
between the workers, no staging area and no clean-up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path

import txnclient

TOPIC = "topic://public/default/named-transaction"
LINES_PER_PART = 100
PROGRAM = str(Path(__file__).resolve())


async def work(url: str, job: str, part: int, attempt: int) -> None:
    """A worker: write one part, then say as which writer of which transaction."""
    async with txnclient.connect(url) as client, client.producer(TOPIC) as producer:
        shared = await client.begin(name=job)
        for line in range(LINES_PER_PART):
            if (part, attempt, line) == (1, 1, LINES_PER_PART // 2):
                raise SystemExit("part 1 fails halfway, the first time")
            await producer.send(f"{part}/{line}".encode(), key=str(part), txn=shared)
        print(json.dumps({"txn": str(shared.id), "writer": shared.writer_id}))


async def run_worker(url: str, job: str, part: int, attempt: int) -> dict[str, object] | None:
    """What the worker said, None if it failed."""
    arguments = ["--url", url, "--job", job, "--worker", str(part), "--attempt", str(attempt)]
    worker = await asyncio.create_subprocess_exec(sys.executable, PROGRAM, *arguments, stdout=asyncio.subprocess.PIPE)
    said, _ = await worker.communicate()
    return json.loads(said) if worker.returncode == 0 else None


async def run_part(url: str, job: str, part: int) -> dict[str, object]:
    if part == 0:
        attempts = await asyncio.gather(*(run_worker(url, job, part, attempt) for attempt in (1, 2)))
        return next(said for said in attempts if said is not None)
    for attempt in (1, 2, 3):
        said = await run_worker(url, job, part, attempt)
        if said is not None:
            return said
    raise SystemExit(f"part {part} failed three times")


async def drive(url: str, job: str, parts: int) -> None:
    async with txnclient.connect(url) as client:
        await client.create_topic(TOPIC, segments=4)
        shared = await client.begin(name=job, timeout=300)
        if shared.state == "COMMITTED":
            print(f"{job} is committed already, as transaction {shared.id}: nothing to do")
            return
        winners = await asyncio.gather(*(run_part(url, job, part) for part in range(parts)))
        # Had the transaction been aborted meanwhile (its deadline, an operator), later workers would have joined a
        # fresh one of the same name. So the driver commits the one it knows, and only if all have joined that.
        if any(winner["txn"] != str(shared.id) for winner in winners):
            raise SystemExit(f"some parts were written in another transaction than {shared.id}: run the job again")
        result = await shared.commit(writers=[int(str(winner["writer"])) for winner in winners])
        print(f"{job} committed as transaction {shared.id} at revision {result.revision}, {len(winners)} writers count")
        async with client.reader(TOPIC, start="earliest", end="latest") as reader:
            lines = [message async for message in reader if message.txn_id == shared.id]
        print(f"{len(lines)} lines of {parts} parts are visible")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default=os.environ.get("TXN_URL", "txn://127.0.0.1:6650"))
    parser.add_argument("--job", required=True, help="the transaction's name")
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--attempt", type=int, default=1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is None:
        asyncio.run(drive(given.url, given.job, given.parts))
    else:
        asyncio.run(work(given.url, given.job, given.worker, given.attempt))


if __name__ == "__main__":
    main()
