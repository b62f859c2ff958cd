"""Named transactions in the workload: clients join the same ones, each as a writer with its own part, and sometimes one
of them ends a transaction with some of the complete parts (DESIGN §10).

A part that a commit does not list has failed, though its transaction has committed: its sends must never be read, and
what it acked comes again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta

import txnclient
from simulation.clients.careless import Careless
from simulation.clients.recorder import Draft
from simulation.clients.shared_parts import SharedParts, counts, shared_name
from txnclient.transactions.transaction import Transaction, TransactionState
from txnwire.errors import InvalidTxnState, TxnError

JOB_S = 6.0
"""How long one generation of names is used."""
JOBS = 2
"""Names in use at a time."""
TIMEOUTS_S = (1.0, 15.0)
RUSH_SHARE = 0.1
"""Share of parts that wait for the next full second to begin their name at the same moment as others."""

BRIEF = "brief"
BRIEF_SHARE = 0.15
BRIEF_KEEP = timedelta(minutes=1)
"""The minimum: a transaction collected early in a run is forgotten within it."""
NEWEST_SHARE = 0.3
"""Share of begins that ask to be remembered until a newer one; only a name's first begin decides."""

Step = Callable[[Draft, Transaction], Awaitable[None]]


class SharedWork:
    """One client's share. Calls `met` with errors that end nothing."""

    def __init__(
        self,
        parts: SharedParts,
        process: str,
        random: random.Random,
        now: Callable[[], float],
        met: Callable[[str, TxnError], None],
        careless: Careless,
    ) -> None:
        self._parts = parts
        self._process = process
        self._random = random
        self._now = now
        self._met = met
        self._careless = careless

    async def take_part(self, client: txnclient.Client, step: Step) -> None:
        """Joins, does some steps, and ends the transaction or leaves it to others."""
        chance = self._random
        job = f"job/{int(self._now() // JOB_S)}-{chance.randrange(JOBS)}"
        if chance.random() < RUSH_SHARE:
            second = int(self._now()) + 1
            await asyncio.sleep(second - self._now())
            job = f"rush/{second}"
        keep = None
        if chance.random() < BRIEF_SHARE:
            job, keep = f"{BRIEF}/{job}", BRIEF_KEEP
        begin = client.begin(
            name=job, timeout=chance.choice(TIMEOUTS_S), keep=keep, keep_newest=chance.random() < NEWEST_SHARE
        )
        txn = await self._careless.call(begin)
        if txn.state is TransactionState.COMMITTED:
            self._parts.decided(txn)
            return
        draft = self._parts.begin(self._process, txn)
        for _ in range(chance.randrange(4)):
            await step(draft, txn)
        await self._careless.call(txn.flush())
        self._parts.complete.setdefault(txn.id, []).append(txn.writer_id)
        drawn = chance.random()
        if drawn < 0.35:
            await self._commit(txn)
        elif drawn < 0.45:
            await self._abort(txn)

    async def _commit(self, txn: Transaction) -> None:
        complete = self._parts.complete[txn.id]
        writers = [writer for writer in complete if self._random.random() < 0.75]
        try:
            await self._careless.call(txn.commit(writers=writers))
        except InvalidTxnState as error:
            self._met(self._process, error)
        self._decided(txn)

    async def _abort(self, txn: Transaction) -> None:
        try:
            await self._careless.call(txn.abort())
        except InvalidTxnState as error:
            self._met(self._process, error)
        self._decided(txn)

    def _decided(self, txn: Transaction) -> None:
        """Returns how it ended, if known. A commit may be known without its counting writers."""
        if txn.state is TransactionState.ABORTED or txn.result is not None:
            self._parts.decided(txn)


async def ask_shared(client: txnclient.Client, drafts: list[Draft], told: Callable[[Draft, str], None]) -> list[str]:
    """At the end: records how each part ended, by its name's kept outcome; returns what is wrong with it.

    Skips names that are kept only briefly: a part without a known outcome may have happened or not."""
    by_job: dict[str, list[Draft]] = {}
    for draft in drafts:
        if draft.shared and not draft.shared.startswith(f"{BRIEF}/"):
            by_job.setdefault(draft.shared.partition(" ")[0], []).append(draft)
    findings = []
    for job, parts in by_job.items():
        txn = await client.begin(name=job, timeout=60.0)
        if txn.state is not TransactionState.COMMITTED:
            if txn.joined:
                findings.append(f"{job} is still open as {txn.id} after everything has healed")
            await txn.abort()
        for draft in parts:
            writer = int(draft.name.partition(" ")[2], 16)
            happened = draft.shared == shared_name(txn) and counts(txn, writer)
            told(draft, "COMMITTED" if happened else "ABORTED")
    return findings
