"""`send_many`: takes a caller's messages part by part and cuts each part into runs, which are sent as entries.

▲ If it ends early in a transaction, also by a cancel or the caller's own iterator, the transaction can only abort
(`producer.py`): a commit would show a part of the messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from txnclient.connection.topic_layout import SegmentInfo
from txnclient.producing.bulk import BulkPart, SentIds
from txnclient.producing.channels.batches import BulkBatch
from txnclient.producing.channels.moving import Group
from txnclient.transactions.transaction_impl import TransactionImpl
from txnclient.transactions.whole import Whole
from txnwire.entry import Columns

Pull = Callable[[], Awaitable[BulkPart | None]]
"""Returns the next part, None after the last; raises what the caller's messages raise."""


class EntryRun(NamedTuple):
    """Messages for one entry."""

    columns: Columns
    size: int
    segment: SegmentInfo | None
    """None: messages without a key, for any segment."""
    version: int
    """Version of the routes that gave the segment."""
    deliver_at_ms: int
    """When queues deliver it; 0: at once."""


class BulkSender(Protocol):
    """The producer."""

    batch_bytes: int

    def groups(self, keys: Sequence[bytes | None] | None) -> tuple[list[Group], int]: ...
    async def add_run(self, run: EntryRun, txn: TransactionImpl | None) -> BulkBatch: ...


async def send_bulk(sender: BulkSender, pull: Pull, txn: TransactionImpl | None, deliver_at_ms: int) -> SentIds:
    """Send all parts and wait until all is stored. After a failure it pulls nothing more, and raises the first failure
    once everything sent is answered."""
    bulk = _Bulk(sender, txn, deliver_at_ms)
    with Whole(txn, "a bulk send"):
        return await bulk.send(pull)


class _Bulk:
    def __init__(self, sender: BulkSender, txn: TransactionImpl | None, deliver_at_ms: int) -> None:
        self._sender = sender
        self._txn = txn
        self._deliver_at_ms = deliver_at_ms
        self._ids = SentIds()
        self._stored = 0
        """Number of batches, from the first on, known to be stored."""

    async def send(self, pull: Pull) -> SentIds:
        failure: BaseException | None = None
        try:
            while self._first_failure() is None and (part := await pull()) is not None:
                await self._send(part)
                await asyncio.sleep(0)  # let other tasks run, also the writer of these batches
        except Exception as error:  # noqa: BLE001 - an error of the caller's iterator; raised below
            failure = error
        unsettled = [batch.settled for batch in self._ids.batches[self._stored :] if not batch.settled.done()]
        if unsettled:
            await asyncio.wait(unsettled)
        failure = failure or self._first_failure()
        if failure is not None:
            raise failure
        return self._ids

    def _first_failure(self) -> BaseException | None:
        """The first failure among the answered batches before the first unanswered one."""
        batches = self._ids.batches
        while self._stored < len(batches) and batches[self._stored].settled.done():
            failure = batches[self._stored].settled.exception()
            if failure is not None:
                return failure
            self._stored += 1
        return None

    async def _send(self, part: BulkPart) -> None:
        groups, version = self._sender.groups(part.columns.keys)
        for segment, indexes in groups:
            chosen = part if indexes is None else part.select(indexes)
            for columns, size in chosen.runs(self._sender.batch_bytes):
                run = EntryRun(columns, size, segment, version, self._deliver_at_ms)
                self._ids.add(await self._sender.add_run(run, self._txn))
        order = None if len(groups) == 1 else [index for _, indexes in groups for index in indexes or ()]
        self._ids.taken(order, len(part))
