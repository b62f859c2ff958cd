"""Ends transactions in the background after a caller cancelled a begin, a commit or an abort (C5)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine

from txnclient.connection.deadlines import Backoff
from txnclient.connection.session import Session
from txnclient.connection.tasks import OwnedTasks
from txnclient.transactions.transaction_impl import TransactionImpl
from txnwire.errors import TxnError

SLACK_S = 5.0
"""How long past a transaction's deadline to keep asking for its outcome: the service has ended it by then."""

_log = logging.getLogger("txnclient")


class BackgroundSettling:
    """Settles one client's transactions: each until it has ended or its deadline has passed, all until the client
    closes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tasks = OwnedTasks()

    def start(self, work: Coroutine[object, object, None], *, name: str) -> asyncio.Task[None]:
        return self._tasks.start(work, name=name)

    def settle(self, txn: TransactionImpl) -> None:
        """Repeat the requested commit or abort of `txn` until its outcome is known."""
        self.start(self._settle(txn), name=f"settling {txn.id}")

    def undo(self, beginning: Callable[[], Awaitable[TransactionImpl]]) -> None:
        """▲ Abort a transaction whose begin has lost its caller, as soon as its id is known: no other code ends it."""
        self.start(self._undo(beginning), name="undoing a begin")

    async def _undo(self, beginning: Callable[[], Awaitable[TransactionImpl]]) -> None:
        try:
            txn = await beginning()
        except TxnError as error:
            _log.debug("a begin that was cancelled has failed: %s", error)
        else:
            txn.settle_later()

    async def _settle(self, txn: TransactionImpl) -> None:
        backoff = Backoff(self._session.random)
        while txn.undecided:
            try:
                await txn.ask_again(timeout=self._session.timeout_s)
            except TxnError as error:
                _log.debug("settling transaction %s: %s", txn.id, error)
                if not error.retriable or self._session.clock.monotonic() > txn.expires_at + SLACK_S:
                    return
                await asyncio.sleep(backoff.next_s())

    async def finish(self, timeout_s: float) -> None:
        """Wait for the running tasks and those they start, at most `timeout_s`."""
        until = self._session.clock.monotonic() + timeout_s
        while (running := self._tasks.running) and (left := until - self._session.clock.monotonic()) > 0:
            await asyncio.wait(running, timeout=left)

    async def close(self) -> None:
        await self._tasks.close()
