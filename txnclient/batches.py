"""What leaves as one entry: messages that gathered one by one, a part of a bulk send, or a piece of a large value."""

from __future__ import annotations

import asyncio

from txnclient.deadlines import Deadline
from txnclient.transaction import Transaction
from txnwire.entry import Columns, OutgoingMessage, Piece
from txnwire.errors import TxnError
from txnwire.ids import MessageId, Position


class Batch:
    """Messages of one transaction (or of none) for one segment. A subclass holds them and tells their senders."""

    __slots__ = ("bytes", "deadline", "due", "entry", "first", "last", "piece", "txn")

    def __init__(self, txn: Transaction | None, deadline: Deadline, size: int = 0, piece: Piece | None = None) -> None:
        self.txn = txn
        self.deadline = deadline
        self.bytes = size
        """What it counts for in the producer's buffer."""
        self.due = 0.0
        """When lingering ends, on the loop's clock; 0: it leaves at the end of this turn."""
        self.piece = piece
        """With chunk id -1: the first one of its value, named by its own sequence id."""
        self.entry = b""
        self.first = -1
        self.last = -1

    @property
    def count(self) -> int:
        raise NotImplementedError

    def take_columns(self) -> Columns:
        """The messages, which are forgotten here."""
        raise NotImplementedError

    def unsettled(self) -> asyncio.Future[MessageId] | asyncio.Future[Position] | None:
        """A future that ends with this batch, None where nobody waits for it any more."""
        raise NotImplementedError

    def stored(self, segment: str, position: Position) -> None:
        raise NotImplementedError

    def failed(self, error: TxnError) -> None:
        raise NotImplementedError

    def cancelled(self) -> None:
        """It was withdrawn before it was sent, because its transaction aborts."""
        raise NotImplementedError


class GatheringBatch(Batch):
    """Messages sent one by one, each with a future of its own."""

    __slots__ = ("futures", "messages")

    def __init__(self, txn: Transaction | None, deadline: Deadline) -> None:
        super().__init__(txn, deadline)
        self.messages: list[OutgoingMessage] = []
        self.futures: list[asyncio.Future[MessageId]] = []

    @property
    def count(self) -> int:
        return len(self.futures)

    def add(self, message: OutgoingMessage, size: int, future: asyncio.Future[MessageId]) -> None:
        self.messages.append(message)
        self.futures.append(future)
        self.bytes += size

    def take_columns(self) -> Columns:
        columns = Columns.of(self.messages)
        self.messages = []
        return columns

    def unsettled(self) -> asyncio.Future[MessageId] | None:
        """They end together, so any that nobody has cancelled will do."""
        alive = [future for future in self.futures if not future.done()]
        return alive[-1] if alive else None

    def stored(self, segment: str, position: Position) -> None:
        for index, future in enumerate(self.futures):
            if not future.done():
                future.set_result(MessageId(segment, position, index))

    def failed(self, error: TxnError) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(error)
                if self.txn is not None:
                    future.exception()  # its commit reports it, whoever looks at the future or not

    def cancelled(self) -> None:
        for future in self.futures:
            future.cancel()


class BulkBatch(Batch):
    """Messages that stay columns from the caller to the wire, with one future for all."""

    __slots__ = ("_columns", "count_", "segment", "settled")

    def __init__(
        self,
        columns: Columns,
        size: int,
        txn: Transaction | None,
        deadline: Deadline,
        settled: asyncio.Future[Position],
        piece: Piece | None = None,
    ) -> None:
        super().__init__(txn, deadline, size, piece)
        self._columns: Columns | None = columns
        self.count_ = len(columns.values)
        self.segment = ""
        self.settled = settled

    @property
    def count(self) -> int:
        return self.count_

    def take_columns(self) -> Columns:
        columns, self._columns = self._columns, None
        if columns is None:
            raise RuntimeError("a batch is encoded once")
        return columns

    def unsettled(self) -> asyncio.Future[Position] | None:
        return None if self.settled.done() else self.settled

    def stored(self, segment: str, position: Position) -> None:
        self.segment = segment
        self.settled.set_result(position)

    def failed(self, error: TxnError) -> None:
        self.settled.set_exception(error)
        self.settled.exception()  # its sender looks at it, unless it was cancelled itself

    def cancelled(self) -> None:
        self.settled.cancel()
