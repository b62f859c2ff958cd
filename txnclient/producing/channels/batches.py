"""Batches, each sent as one entry: messages gathered one by one, part of a bulk send, or a piece of a large value."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

from txnclient.connection.deadlines import Deadline
from txnclient.transactions.transaction_impl import TransactionImpl
from txnclient.transactions.whole import cancelled_in
from txnwire.entry import Columns, OutgoingMessage, Piece, decode_block
from txnwire.errors import InvalidTxnState, TxnError, again
from txnwire.ids import MessageId, Position
from txnwire.numbers import Numbers

Stored = asyncio.Future[MessageId]
"""The result of one message: its id, once it is stored."""


class Batch:
    """Messages of one transaction (or of none) for one segment. A subclass holds them and tells their senders."""

    __slots__ = (
        "_end", "bytes", "deadline", "deliver_at_ms", "due", "entry", "failure", "first", "last", "over", "parts",
        "piece", "txn",
    )  # fmt: skip

    def __init__(
        self, txn: TransactionImpl | None, deadline: Deadline, size: int = 0, piece: Piece | None = None
    ) -> None:
        self.txn = txn
        self.deadline = deadline
        self.bytes = size
        """Its size in the producer's buffer."""
        self.due = 0.0
        """When lingering ends, on the loop's clock; 0: it is sent at the end of this turn."""
        self.piece = piece
        """Chunk id -1 marks the first piece of its value, which is named by that piece's sequence id."""
        self.deliver_at_ms = 0
        """When queues deliver its messages; 0: at once."""
        self.entry = b""
        self.first = -1
        self.last = -1
        self.parts: Sequence[Batch] = ()
        """The batches it was divided into when its segment was sealed; it ends when they end."""
        self.failure: TxnError | None = None
        """Why it is not stored, or not known to be; also None if its transaction aborted before it was sent."""
        self.over = False
        """Whether it is stored, failed, withdrawn or divided."""
        self._end: asyncio.Future[None] | None = None

    @property
    def count(self) -> int:
        raise NotImplementedError

    @property
    def numbers(self) -> Numbers | None:
        """The ids that its messages have in their source, if its producer is a numbered one."""
        return None

    def take_columns(self) -> Columns:
        """The messages, which the batch then drops."""
        raise NotImplementedError

    def take_back(self) -> Columns:
        """The messages, out of the entry if there is one. The batch is as if never closed, and is sent again with new
        sequence ids. `take_columns` returns them again."""
        columns = decode_block(self.entry).columns() if self.entry else self.take_columns()
        self.entry = b""
        self.first = self.last = -1
        self._take(columns)
        return columns

    def _take(self, columns: Columns) -> None:
        raise NotImplementedError

    def divide(self, columns: Columns, groups: Sequence[Sequence[int]]) -> Sequence[Batch]:
        """Make one batch for each group of the messages taken back, given by their indexes."""
        sizes = [self.bytes * len(indexes) // self.count for indexes in groups]
        sizes[-1] = self.bytes - sum(sizes[:-1])
        self.parts = [
            self._part(columns.select(indexes), indexes, size) for indexes, size in zip(groups, sizes, strict=True)
        ]
        for part in self.parts:
            part.deliver_at_ms = self.deliver_at_ms
        self.ended()
        return self.parts

    def _part(self, columns: Columns, indexes: Sequence[int], size: int) -> Batch:
        raise NotImplementedError

    def leaves(self) -> Iterator[Batch]:
        """Itself, or all batches it was divided into."""
        if self.parts:
            for part in self.parts:
                yield from part.leaves()
        else:
            yield self

    def end(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
        """A future that is done once the batch is over; only a flush asks, so it is made on demand."""
        if self._end is None:
            self._end = loop.create_future()
        return self._end

    def ended(self) -> None:
        """Mark it as over; called once."""
        self.over = True
        if self._end is not None:
            self._end.set_result(None)

    def stored(self, segment: str, position: Position) -> None:
        raise NotImplementedError

    def failed(self, error: TxnError) -> Sequence[asyncio.Future[MessageId]]:
        """Fail it; returns the failed futures of messages sent one by one."""
        raise NotImplementedError

    def withdrawn(self, error: InvalidTxnState) -> None:
        """It is not sent, because its transaction ends without it."""
        raise NotImplementedError


class GatheringBatch(Batch):
    """Messages sent one by one, each with a future of its own."""

    __slots__ = ("_columns", "futures", "messages")

    def __init__(self, txn: TransactionImpl | None, deadline: Deadline, size: int = 0) -> None:
        super().__init__(txn, deadline, size)
        self.messages: list[OutgoingMessage] = []
        self.futures: list[asyncio.Future[MessageId]] = []
        self._columns: Columns | None = None

    @property
    def count(self) -> int:
        return len(self.futures)

    def add(self, message: OutgoingMessage, size: int, future: asyncio.Future[MessageId]) -> None:
        self.messages.append(message)
        self.futures.append(future)
        self.bytes += size

    def take_columns(self) -> Columns:
        columns = self._columns or Columns.of(self.messages)
        self._columns, self.messages = None, []
        return columns

    def _take(self, columns: Columns) -> None:
        self._columns = columns

    def _part(self, columns: Columns, indexes: Sequence[int], size: int) -> Batch:
        part = GatheringBatch(self.txn, self.deadline, size)
        part.futures = [self.futures[index] for index in indexes]
        part._take(columns)
        return part

    def stored(self, segment: str, position: Position) -> None:
        for index, future in enumerate(self.futures):
            if not future.done():
                future.set_result(MessageId(segment, position, index))
            elif self.txn is not None:
                # ▲ C1: a cancelled send has no result, so it must not count.
                self.txn.failed(cancelled_in(self.txn, "a send"))

    def failed(self, error: TxnError) -> Sequence[asyncio.Future[MessageId]]:
        self.failure = error
        failed = [future for future in self.futures if not future.done()]
        for future in failed:
            future.set_exception(again(error))
        return failed

    def withdrawn(self, error: InvalidTxnState) -> None:
        for future in self.futures:
            if not future.done():
                future.set_exception(again(error))
                future.exception()  # the caller that ended the transaction knows


class BulkBatch(Batch):
    """Messages that stay columns from the caller to the wire, with one future for all."""

    __slots__ = ("_columns", "_places", "count_", "segment", "settled")

    def __init__(
        self,
        columns: Columns,
        size: int,
        txn: TransactionImpl | None,
        deadline: Deadline,
        settled: asyncio.Future[Position],
        piece: Piece | None = None,
    ) -> None:
        super().__init__(txn, deadline, size, piece)
        self._columns: Columns | None = columns
        self.count_ = len(columns.values)
        self.segment = ""
        self.settled = settled
        self._places: dict[int, tuple[BulkBatch, int]] = {}
        """For each message, once divided: its part, and its index there."""

    @property
    def count(self) -> int:
        return self.count_

    def take_columns(self) -> Columns:
        columns, self._columns = self._columns, None
        if columns is None:
            raise RuntimeError("a batch is encoded once")
        return columns

    def _take(self, columns: Columns) -> None:
        self._columns = columns

    def _part(self, columns: Columns, indexes: Sequence[int], size: int) -> Batch:
        settled: asyncio.Future[Position] = self.settled.get_loop().create_future()
        settled.add_done_callback(self._part_settled)
        part = BulkBatch(columns, size, self.txn, self.deadline, settled)
        self._places |= {index: (part, rank) for rank, index in enumerate(indexes)}
        return part

    def _part_settled(self, part: asyncio.Future[Position]) -> None:
        """End it with its last part, with the first failure among them."""
        ends = [one.settled for one in self.parts if isinstance(one, BulkBatch)]
        if self.settled.done() or not all(end.done() for end in ends):
            return
        self._let_go()
        failures = [error for end in ends if (error := end.exception()) is not None]
        if failures:
            self.settled.set_exception(failures[0])
            self.settled.exception()
        else:
            self.settled.set_result(ends[0].result())

    def id_of(self, index: int) -> MessageId:
        """The id of one of its messages, once stored."""
        if self.parts:
            part, rank = self._places[index]
            return part.id_of(rank)
        return MessageId(self.segment, self.settled.result(), index)

    def stored(self, segment: str, position: Position) -> None:
        self._let_go()
        self.segment = segment
        self.settled.set_result(position)

    def failed(self, error: TxnError) -> Sequence[asyncio.Future[MessageId]]:
        self._let_go()
        self.failure = error
        self.settled.set_exception(again(error))
        self.settled.exception()  # its sender retrieves it unless it was cancelled
        return ()

    def withdrawn(self, error: InvalidTxnState) -> None:
        self._let_go()
        self.settled.set_exception(again(error))
        self.settled.exception()

    def _let_go(self) -> None:
        """Drop the messages: the sender may keep the ids of a bulk send, and so this batch, for long."""
        self.entry = b""
        self._columns = None
