"""A consistent report over topics that never stand still: money moves, and the books balance at any moment.

    txnctl dev &                                    # a cluster on this machine
    python examples/snapshot_read.py --state balance.json
    python examples/snapshot_read.py --state balance.json    # again: reads only what has been committed since

Every transfer is one transaction: a debit in one topic, a credit in another. Reading both topics one after the other
would see some transfers half. A snapshot holds each of them whole or not at all; it is a little JSON, so the report
keeps it beside its result and the next run goes on from there, also over transfers that were under way meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
from collections import Counter
from pathlib import Path

import txnclient
from txnclient import Snapshot

DEBITS, CREDITS = "topic://bank/books/debits", "topic://bank/books/credits"
ACCOUNTS = ("anna", "bela", "carl", "dora")


async def transfer_money(client: txnclient.Client, stop: asyncio.Event) -> int:
    """One transfer after another until told to stop; returns how many."""
    transfers = 0
    async with client.producer(DEBITS) as debits, client.producer(CREDITS) as credits:
        while not stop.is_set():
            giver, taker = random.sample(ACCOUNTS, 2)
            amount = json.dumps(random.randrange(1, 100)).encode()
            async with client.transaction() as txn:
                await debits.send(amount, key=giver, txn=txn)
                await credits.send(amount, key=taker, txn=txn)
            transfers += 1
    return transfers


def load(state: Path) -> tuple[Counter[str], Snapshot | None]:
    if not state.exists():
        return Counter(), None
    saved = json.loads(state.read_text())
    return Counter(saved["balances"]), Snapshot.from_json(json.dumps(saved["snapshot"]))


def save(state: Path, balances: Counter[str], snapshot: Snapshot) -> None:
    """In one write: a crash between balances and snapshot would count some transfers twice, or never."""
    fresh = state.with_suffix(".new")
    fresh.write_text(json.dumps({"balances": balances, "snapshot": json.loads(snapshot.to_json())}))
    fresh.replace(state)


async def report(client: txnclient.Client, state: Path) -> None:
    """Bring the balances up to date: read from the snapshot they were made at to one taken now."""
    balances, since = load(state)
    until = await client.snapshot([DEBITS, CREDITS])
    read = 0
    async with client.reader([DEBITS, CREDITS], start=since or "earliest", end=until) as reader:
        async for message in reader:
            sign = -1 if message.topic == DEBITS else 1
            balances[(message.key or b"").decode()] += sign * json.loads(message.value)
            read += 1
    save(state, balances, until)
    total = sum(balances.values())
    print(f"at revision {until.revision}: {read} entries read, {len(until.pending)} transfers under way, sum {total}")
    if total != 0:
        raise SystemExit("the books do not balance")


async def run(url: str, state: Path, reports: int) -> None:
    async with txnclient.connect(url) as client:
        for topic in (DEBITS, CREDITS):
            await client.create_topic(topic, segments=2)
        stop = asyncio.Event()
        clerks = [asyncio.create_task(transfer_money(client, stop)) for _ in range(8)]
        for _ in range(reports):
            await asyncio.sleep(0.2)
            await report(client, state)
        stop.set()
        transfers = sum(await asyncio.gather(*clerks))
        await report(client, state)
        balances, _ = load(state)
        print(f"{transfers} transfers in this run; balances: {dict(balances)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default=os.environ.get("TXN_URL", "txn://127.0.0.1:6650"))
    parser.add_argument("--state", type=Path, default=Path("balance.json"), help="where the report is kept")
    parser.add_argument("--reports", type=int, default=5)
    given = parser.parse_args()
    asyncio.run(run(given.url, given.state, given.reports))


if __name__ == "__main__":
    main()
