"""A queue with a real cursor and real pending acks over a log in memory, driven step by step without a broker."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from segments.log.tail_cache import LargeValueKey, LogEntry
from segments.subscription.cursors.cursor import Cursor
from segments.subscription.queueing.queue import Handout, Queue, QueueBounds, QueueConsumer
from tests.segments.ledger_lengths import LedgerLengths
from txnwire.ids import EARLIEST, Position, TxnId
from watchers.acks import AckPosition, Block
from watchers.outcomes import Decision
from watchers.pending_acks import PendingAcks

BOUNDS = QueueBounds(places=1000, unacked=1000, blocks=8)


class Taker(QueueConsumer):
    """`got`: (position, index, redelivery count) of everything it was given."""

    __slots__ = ("got", "name")

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.got: list[tuple[Position, int, int]] = []

    def __repr__(self) -> str:
        return self.name

    @property
    def entries(self) -> list[Position]:
        return [position for position, _, _ in self.got]


@dataclass
class Rig:
    """Implements `queue.Acks` and `queue.Outcomes`."""

    bounds: QueueBounds = BOUNDS
    max_blocks: int = 32
    max_partial: int = 4096
    log: dict[Position, LogEntry] = field(default_factory=dict)
    lengths: LedgerLengths = field(default_factory=lambda: LedgerLengths({1: 0}))
    now_s: float = 0.0
    open: dict[TxnId, None] = field(default_factory=dict)
    aborted: dict[TxnId, None] = field(default_factory=dict)
    losers: dict[tuple[TxnId, int], None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.cursor = Cursor(self.lengths, EARLIEST, max_blocks=self.max_blocks, max_partial=self.max_partial)
        self.pending = PendingAcks("segment", "queue", self.cursor)
        self.begin_anew()

    def begin_anew(self) -> None:
        """As the next owner would, from the cursor."""
        next_read = self.following(self.cursor.mark_delete)
        self.queue: Queue[Taker] = Queue(self, self, next_read, self.bounds)

    # ---- the log

    def append(
        self,
        messages: int = 1,
        txn: TxnId | None = None,
        *,
        writer: int = 0,
        large_value: LargeValueKey | None = None,
        later_s: float = 0.0,
    ) -> Position:
        ledger_id = max(self.lengths.lengths)
        position = Position(ledger_id, self.lengths.lengths[ledger_id])
        self.lengths.lengths[ledger_id] += 1
        if txn is not None:
            self.open[txn] = None
        deliver_at_ms = int((self.now_s + later_s) * 1000) if later_s else 0
        self.log[position] = LogEntry(position, b"", messages, txn, writer, large_value, deliver_at_ms)
        return position

    def roll(self) -> None:
        self.lengths.lengths[max(self.lengths.lengths) + 1] = 0
        self.cursor.advance()

    def decide(self, txn: TxnId, *, committed: bool) -> None:
        del self.open[txn]
        if not committed:
            self.aborted[txn] = None
        self.queue.decided(txn, committed=committed)

    # ---- queue.Acks, queue.Outcomes

    def has_room(self, position: Position) -> bool:
        return self.cursor.has_room(position)

    def promise(self, position: Position, messages: int) -> None:
        self.cursor.promise(position, messages)

    def withdraw(self, position: Position) -> None:
        self.cursor.withdraw(position)

    def skip(self, position: Position, messages: int = 0) -> int:
        return self.pending.skip(position, messages)

    def blocks(self) -> Collection[Block]:
        return self.cursor.blocks()

    def acked(self, position: Position) -> int:
        return self.cursor.acked(position)

    def pass_over(self, position: Position, messages: int) -> None:
        self.pending.pass_over(position)

    @property
    def mark_delete(self) -> Position:
        return self.cursor.mark_delete

    def next_unacked(self, position: Position) -> Position:
        return self.cursor.next_unacked(position)

    def following(self, position: Position) -> Position:
        return self.lengths.next_after(position)

    def pins(self, txn_id: TxnId) -> bool:
        return txn_id in self.open

    def is_aborted(self, txn_id: TxnId, writer: int) -> bool:
        return txn_id in self.aborted or (txn_id, writer) in self.losers

    # ---- consumers

    def taker(self, name: str = "t", permits: int = 1000) -> Taker:
        taker = Taker(name)
        self.permit(taker, permits)
        return taker

    def permit(self, taker: Taker, permits: int) -> None:
        taker.permits += permits
        self.queue.update(taker)

    def step(self) -> bool:
        """One entry, as the shell would: what is due first. Returns whether there was one."""
        queue = self.queue
        queue.pass_over(1000)
        if queue.turn is None:
            return False
        if (position := queue.next_due()) is not None:
            queue.due_done()
        elif (position := queue.next_ahead(self.end)) is not None:
            queue.ahead_done()
        else:
            return False
        entry = self.log[position]
        due_s = entry.deliver_at_ms / 1000
        handout = queue.offer(entry, due_s if due_s > self.now_s else None)
        if handout is not None:
            _take(entry, handout)
        return True

    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.queue.expire(self.now_s)

    @property
    def end(self) -> Position:
        return next(reversed(self.log), EARLIEST)

    def run(self) -> None:
        while self.step():
            pass

    def ack(self, *acks: AckPosition) -> None:
        self.pending.ack(acks)
        self.queue.settled(acks)

    def ack_in(self, txn: TxnId, *acks: AckPosition) -> None:
        reservation = self.pending.reserve(txn, 0, acks, cumulative=False)
        self.queue.settled(acks)
        assert self.pending.confirmed(reservation) is None

    def end_acks(self, txn: TxnId, *, committed: bool) -> None:
        applied = self.pending.decided(Decision(txn, committed, 1))
        assert applied is not None
        self.queue.settled(applied.acked)
        self.queue.given_back(applied.released)


def _take(entry: LogEntry, handout: Handout[Taker]) -> None:
    for skip, count in handout.parts:
        shown = [index for index in range(entry.messages) if not skip >> index & 1]
        assert shown
        handout.consumer.got += [(entry.position, index, count) for index in shown]
