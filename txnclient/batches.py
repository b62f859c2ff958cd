"""What leaves as one entry: messages that gathered one by one, a part of a bulk send, or a piece of a large value."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from txnclient.deadlines import Deadline
from txnclient.transaction import Transaction
from txnwire.entry import Columns, OutgoingMessage, Piece, decode_block
from txnwire.errors import TxnError
from txnwire.ids import MessageId, Position


class Batch:
    """Messages of one transaction (or of none) for one segment. A subclass holds them and tells their senders."""

    __slots__ = ("bytes", "deadline", "due", "entry", "first", "last", "parts", "piece", "txn")

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
        self.parts: Sequence[Batch] = ()
        """What it was divided into when its segment was sealed: their ends are its end."""

    @property
    def count(self) -> int:
        raise NotImplementedError

    def take_columns(self) -> Columns:
        """The messages, which are forgotten here."""
        raise NotImplementedError

    def take_back(self) -> Columns:
        """The messages, out of the entry if there is one: it is as if it had never been closed, and to be sent anew,
        with sequence ids of its own. `take_columns` gives them again."""
        columns = decode_block(self.entry).columns() if self.entry else self.take_columns()
        self.entry = b""
        self.first = self.last = -1
        self._take(columns)
        return columns

    def _take(self, columns: Columns) -> None:
        raise NotImplementedError

    def divide(self, columns: Columns, groups: Sequence[Sequence[int]]) -> Sequence[Batch]:
        """One batch for each group of the messages that were taken back, by their indexes."""
        sizes = [self.bytes * len(indexes) // self.count for indexes in groups]
        sizes[-1] = self.bytes - sum(sizes[:-1])
        self.parts = [
            self._part(columns.select(indexes), indexes, size) for indexes, size in zip(groups, sizes, strict=True)
        ]
        return self.parts

    def _part(self, columns: Columns, indexes: Sequence[int], size: int) -> Batch:
        raise NotImplementedError

    def unsettled(self) -> Sequence[asyncio.Future[MessageId] | asyncio.Future[Position]]:
        """Futures that end with this batch, none where nobody waits for it any more."""
        if self.parts:
            return [future for part in self.parts for future in part.unsettled()]
        own = self._unsettled()
        return () if own is None else (own,)

    def _unsettled(self) -> asyncio.Future[MessageId] | asyncio.Future[Position] | None:
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

    __slots__ = ("_columns", "futures", "messages")

    def __init__(self, txn: Transaction | None, deadline: Deadline, size: int = 0) -> None:
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

    def _unsettled(self) -> asyncio.Future[MessageId] | None:
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

    __slots__ = ("_columns", "_places", "count_", "segment", "settled")

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
        self._places: dict[int, tuple[BulkBatch, int]] = {}
        """Of each message, once divided: in which part, and its index there."""

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
        """It ends with the last of its parts, like the first of those that failed; one that was withdrawn stands for
        all, as its transaction aborts."""
        ends = [one.settled for one in self.parts if isinstance(one, BulkBatch)]
        if self.settled.done() or not all(end.done() for end in ends):
            return
        if any(end.cancelled() for end in ends):
            self.settled.cancel()
            return
        failures = [error for end in ends if (error := end.exception()) is not None]
        if failures:
            self.settled.set_exception(failures[0])
            self.settled.exception()
        else:
            self.settled.set_result(ends[0].result())

    def id_of(self, index: int) -> MessageId:
        """Of one of its messages, once it is stored."""
        if self.parts:
            part, rank = self._places[index]
            return part.id_of(rank)
        return MessageId(self.segment, self.settled.result(), index)

    def _unsettled(self) -> asyncio.Future[Position] | None:
        return None if self.settled.done() else self.settled

    def stored(self, segment: str, position: Position) -> None:
        self.segment = segment
        self.settled.set_result(position)

    def failed(self, error: TxnError) -> None:
        self.settled.set_exception(error)
        self.settled.exception()  # its sender looks at it, unless it was cancelled itself

    def cancelled(self) -> None:
        self.settled.cancel()
