"""Named transactions in the workload: clients join the same ones, each as a writer with a part of its own, and now and
then somebody ends one, with some of the parts that are complete (DESIGN §10).

A part that a commit does not list has failed, though its transaction has committed: nobody may ever read what it sent,
and what it acked comes again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

import txnclient
from simulation.workloads.careless import Careless
from simulation.workloads.recorder import Draft, Recorder
from txnclient.transactions.transaction import Transaction, TransactionState
from txnwire.errors import InvalidTxnState, TxnError
from txnwire.ids import TxnId

JOB_S = 6.0
"""How long one generation of names is begun anew."""
JOBS = 2
"""Names in use at a time."""
TIMEOUTS_S = (1.0, 15.0)
RUSH_SHARE = 0.1
"""Of all parts: so many wait for the next full second and begin its name, at one moment with whoever else waits."""

BRIEF = "brief"
BRIEF_SHARE = 0.15
BRIEF_KEEP = timedelta(minutes=1)
"""As little as there may be: what is collected early in a run is forgotten within it."""
NEWEST_SHARE = 0.3
"""Of all begins: so many ask to be known while nothing newer is, which counts where they are the first."""

Step = Callable[[Draft, Transaction], Awaitable[None]]


@dataclass(slots=True)
class SharedParts:
    """What the clients of one process know of the parts they have in named transactions."""

    recorder: Recorder
    parts: dict[TxnId, dict[int, Draft]] = field(default_factory=dict)
    complete: dict[TxnId, list[int]] = field(default_factory=dict)
    """Writers whose sends and acks are all there: only these may be counted."""

    def begin(self, process: str, txn: Transaction) -> Draft:
        draft = self.recorder.begin(process, f"writer {txn.writer_id:016x}")
        draft.shared = shared_name(txn)
        draft.changed(draft)  # a journal has to know it, also of a part that comes to nothing
        self.parts.setdefault(txn.id, {})[txn.writer_id] = draft
        return draft

    def decided(self, txn: Transaction) -> None:
        """Every part learns how it ended; told two stories, it shows them both."""
        for writer, draft in self.parts.get(txn.id, {}).items():
            counted = counts(txn, writer)
            draft.reported("committed" if counted else "aborted")
            if draft.outcome == "unknown":
                self.recorder.end(draft, "ok" if counted else "failed")


def shared_name(txn: Transaction) -> str:
    return f"{txn.name} {txn.id}"


def counts(txn: Transaction, writer: int) -> bool:
    """Whether a part of this decided transaction has happened."""
    return txn.state is TransactionState.COMMITTED and (txn.writers is None or writer in txn.writers)


class SharedWork:
    """One client's share. `met` is told of errors that end nothing."""

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
        """Join, do some steps, and end the transaction or leave it to others."""
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
        """Where it is known how. That it has committed may be known without the writers that count."""
        if txn.state is TransactionState.ABORTED or txn.result is not None:
            self._parts.decided(txn)


async def ask_shared(client: txnclient.Client, drafts: list[Draft], told: Callable[[Draft, str], None]) -> list[str]:
    """At the end: how each part ended, by the outcome that its name still tells; returned is what is wrong with it.

    Of a name that was kept briefly nobody is asked: what nobody was told of it may have happened or not."""
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
