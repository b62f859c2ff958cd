"""Chooses the queue consumer for each delivery and redelivery (DESIGN §7, "Dispatch"; §8, "A queue's entries"). Pure.

Theory of operation:

1. A queue promises no order, so no message waits behind an open transaction. Every unacked message behind the
   mark-delete position is in one of these places, and stays in none for ever:

       ahead ──► set aside, while its transaction is open ──commit──► due        (abort: passed over)
         ├─────► delayed, if it was sent to be delivered later ──its time──► due
         └─────► delivered to one consumer ──ack──► acked, or pending in a transaction ──abort──► due
                     ▲         └──nack, consumer gone──► (delayed) ──► due
                     └───────────────────────────────────────────────── due, lowest position first

2. Places are kept as positions or intervals of them, never as data, and their number is bounded: past the bound the
   queue reads no further ahead, which loses nothing. ▲ Nor does it read further than the cursor has room for acks.
3. Only the subscription knows whether a message is acked or pending. A place may be stale (the message was acked
   meanwhile), so it is checked when its turn comes. The outcome of a transaction is asked for then, too.
4. Consumers take turns, each as long as it has permits. Due entries go first, then those ahead. ▲ Among several
   consumers permits divide an entry: each gets no more messages than it has permits, and the rest is due for the next
   one. Otherwise what one producer sent together would all wait for one consumer.
5. All pieces of one chunked value go to one consumer, otherwise no consumer could assemble it.
6. An ack takes its messages from every place, whichever consumer sent it. All other ends cause a redelivery with a
   higher redelivery count: a nack, a refused ack, an aborted transaction, a lost consumer.

Source: Pulsar's `PersistentDispatcherMultipleConsumers` (round robin by permits, replay set, delayed delivery).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from heapq import heappop, heappush, heapreplace
from itertools import islice
from typing import Final, Generic, NamedTuple, TypeVar

from segments.log.tail_cache import LargeValueKey, LogEntry
from segments.subscription.queueing.ack_span import AckSpan
from segments.subscription.queueing.delays import MessageDelays
from segments.subscription.queueing.queue_ports import QueueAcks, QueueBounds, QueueOutcomes, QueueStatistics
from segments.subscription.queueing.redelivery_counts import RedeliveryCounts
from segments.subscription.queueing.set_aside import Interval, SetAside, intervals_of
from txnwire.ids import Position, TxnId
from txnwire.turns import turn_size
from watchers.acks import WHOLE, AckPosition, lowest

__all__ = [
    "Handout",
    "Queue",
    "QueueAcks",
    "QueueBounds",
    "QueueConsumer",
    "QueueOutcomes",
    "QueueStatistics",
]

PASSED_AT_ONCE: Final = 5000
"""Acked or pending entries passed in one turn; there may be a hundred thousand."""


class QueueConsumer:
    """Holds the queue's state of one consumer. `blocked`: it receives nothing despite its permits. `shares`: entries
    are divided by its permits. Equality is identity."""

    __slots__ = ("__weakref__", "blocked", "held", "kept", "permits", "shares")

    def __init__(self) -> None:
        self.permits = 0
        self.blocked = False
        self.shares = False
        self.held: dict[Position, None] = {}
        """Entries with messages that it has."""
        self.kept: dict[Position, LargeValueKey] = {}
        """Pieces reserved for it, as it has other pieces of the value, until it can take them."""


ConsumerT = TypeVar("ConsumerT", bound=QueueConsumer)


class Handout(NamedTuple, Generic[ConsumerT]):
    """`parts`: (indexes not to deliver, redelivery count) per delivery: several if counts differ within the entry.
    `divided`: other messages of the entry are due for the next consumer."""

    consumer: ConsumerT
    parts: tuple[tuple[int, int], ...]
    divided: bool = False


class _ValueAtConsumer(Generic[ConsumerT]):
    """A chunked value with pieces at `consumer`, or kept for it."""

    __slots__ = ("consumer", "key", "pieces")

    def __init__(self, key: LargeValueKey, consumer: ConsumerT) -> None:
        self.key = key
        self.consumer = consumer
        self.pieces = 0


class _Out(Generic[ConsumerT]):
    """Messages of one entry that one consumer has; a linked list if several consumers have some."""

    __slots__ = ("consumer", "indexes", "next", "value")

    def __init__(
        self,
        consumer: ConsumerT,
        indexes: int,
        value: _ValueAtConsumer[ConsumerT] | None,
        behind: _Out[ConsumerT] | None,
    ) -> None:
        self.consumer = consumer
        self.indexes = indexes
        self.value = value
        self.next = behind


class Queue(Generic[ConsumerT]):
    def __init__(self, acks: QueueAcks, outcomes: QueueOutcomes, next_read: Position, bounds: QueueBounds) -> None:
        self._acks = acks
        self._outcomes = outcomes
        self._bounds = bounds
        self.uncommitted = False
        self.cut_short = False
        """Set if `next_due` or `next_ahead` has more to pass than one call passes: call again after other work."""
        self._next_read = next_read
        self._span = AckSpan(acks.blocks(), most=bounds.blocks)
        self._ready: OrderedDict[ConsumerT, None] = OrderedDict()
        """Consumers that can take an entry, in the order of their turns."""
        self._out: dict[Position, _Out[ConsumerT]] = {}
        self._promised: dict[Position, None] = {}
        """Entries of `_out` or `_divided` with room promised, as they may be acked in part."""
        self._divided: dict[Position, None] = {}
        """Entries with some messages given out and the others due."""
        self._due: list[Interval] = []
        """Heap. Intervals may overlap, or name entries that have left for another place."""
        self._set_aside = SetAside()
        self._passing: deque[Interval] = deque()
        """Intervals of aborted transactions, to pass over."""
        self._delays = MessageDelays()
        self._later: dict[Position, None] = {}
        """Entries of `_delays` that have reserved room and are not delivered yet."""
        self._counts = RedeliveryCounts()
        self._values: dict[LargeValueKey, _ValueAtConsumer[ConsumerT]] = {}

    # ---- consumers --------------------------------------------------------------------------------------------------

    @property
    def turn(self) -> ConsumerT | None:
        """The next of the consumers that can take an entry."""
        return next(iter(self._ready), None)

    def update(self, consumer: ConsumerT) -> None:
        """Call after its permits or `blocked` have changed; also adds a new consumer."""
        if consumer.permits > 0 and not consumer.blocked:
            for position in consumer.kept:
                heappush(self._due, (position, position))
            consumer.kept.clear()
            if len(consumer.held) < self._bounds.unacked:
                self._ready[consumer] = None
                return
        self._ready.pop(consumer, None)

    def leave(self, consumer: ConsumerT, *, counted: bool = True) -> None:
        """Remove a consumer: its unacked messages are due; `counted` raises their redelivery count."""
        consumer.blocked = True
        self._ready.pop(consumer, None)
        positions = [*consumer.held]
        for position in positions:
            taken = self._take_out(position, consumer, WHOLE)
            if counted:
                self._counts.given_back(position, taken)
        self._make_due([*positions, *consumer.kept])
        consumer.kept.clear()

    # ---- next entries -----------------------------------------------------------------------------------------------

    def next_due(self) -> Position | None:
        """The first entry that is due again, or whose transaction has committed. `offer` it, then `due_done`. None also
        after passing many entries acked meanwhile: see `cut_short`."""
        for _ in range(turn_size(PASSED_AT_ONCE)):
            if not self._due:
                return None
            first = self._due[0][0]
            if self._acks.skip(first) != WHOLE:
                return first
            self._forget_if_acked(first)
            self.due_done()
        self.cut_short = True
        return None

    def due_run(self) -> Position:
        """The last position of the interval that `next_due` begins: a read may extend to it."""
        return self._due[0][1]

    def due_done(self) -> None:
        """Remove the entry `next_due` from the due ones."""
        first, last = self._due[0]
        if first in self._divided or (first in self._later and not self._delays.of(first)):
            self._divided.pop(first, None)
            self._later.pop(first, None)
            self._withdraw(first)
        if first == last:
            heappop(self._due)
        else:
            heapreplace(self._due, (Position(first.ledger_id, first.entry_id + 1), last))

    def next_ahead(self, limit: Position) -> Position | None:
        """The first entry not read yet, up to `limit`: `offer` it, then `ahead_done`. None also while the bound is
        reached. Passes acked and pending entries without reading them; None also after many: see `cut_short`."""
        acks = self._acks
        at = acks.next_unacked(acks.following(_before(self._next_read)))
        passed = 0
        while at <= limit and acks.skip(at) == WHOLE:
            at = acks.next_unacked(acks.following(at))
            passed += 1
            if passed >= turn_size(PASSED_AT_ONCE):
                self._next_read, self.cut_short = at, True
                return None
        self._next_read = at
        if at > limit or self.places >= self._bounds.places or not self._has_room(at):
            return None
        return at

    def ahead_done(self) -> None:
        self._next_read = self._acks.following(self._next_read)

    def _has_room(self, position: Position) -> bool:
        """▲ Whether the cursor can hold an ack there, also of single messages, in any order of acks. Otherwise read no
        further: acks of delivered messages would be refused."""
        if self._promised and not self._acks.has_room(position):
            # With no entry promised, the next one is always given out: a queue taken over with a full cursor would
            # never read the entry whose ack frees room.
            return False
        if position in self._span:
            return True
        return self._span.admits(position, self._acks.following(self._acks.mark_delete))

    @property
    def places(self) -> int:
        """Number of positions and intervals in memory."""
        return len(self._out) + len(self._due) + self._set_aside.intervals + len(self._passing) + len(self._delays)

    def all_given_out(self, end: Position) -> bool:
        """Whether every message up to `end` is acked or with a consumer, which may still give it back."""
        given = not (self._due or self._set_aside or self._passing or self._delays)
        return given and self._acks.next_unacked(self._acks.following(_before(self._next_read))) > end

    def may_complete(self, consumer: ConsumerT) -> bool:
        """Whether `consumer` has all pieces of a chunked value, and may give some back, or pieces are kept for it.
        For a segment given out to its end."""
        if consumer.kept:
            return True
        return any(value.consumer is consumer and value.pieces >= key.pieces for key, value in self._values.items())

    # ---- giving out -------------------------------------------------------------------------------------------------

    def offer(self, entry: LogEntry, due_s: float | None = None) -> Handout[ConsumerT] | None:
        """Place the entry: with the consumer whose turn it is (returned), or elsewhere (None). A consumer must be
        ready. `due_s`: it was sent to be delivered then, on the clock of `expire`."""
        position, txn_id = entry.position, entry.txn_id
        if txn_id is not None and not self.uncommitted:
            # V8: ask for the outcome now, not when the entry became due or its read began.
            if self._outcomes.pins(txn_id):
                self._set_aside.put(txn_id, position)
                return None
            if self._outcomes.is_aborted(txn_id, entry.writer):
                self._pass_over(position, entry.messages)
                return None
        everything = (1 << entry.messages) - 1  # the producer's send bounds it
        free = everything & ~self._elsewhere(position, entry.messages)
        if not free:
            return None
        if due_s is not None:
            self._delay(position, entry.messages, free, due_s)
            return None
        value = None if entry.large_value is None else self._values.get(entry.large_value)
        if value is None:
            consumer = next(iter(self._ready))
            if entry.large_value is not None:
                value = self._values[entry.large_value] = _ValueAtConsumer(entry.large_value, consumer)
        elif value.consumer.permits > 0 and not value.consumer.blocked:
            consumer = value.consumer
        else:
            value.consumer.kept[position] = value.key
            return None
        handed = lowest(free, consumer.permits) if consumer.shares else free
        self._hand(consumer, entry, handed, value)
        if handed != free:
            # ▲ Its room stays promised: while the rest is read, entries ahead could take the room, and the cursor would
            # outgrow its bound with the rest.
            self._divided[position] = None
            heappush(self._due, (position, position))
        return Handout(consumer, self._counts.parts(position, everything, handed), handed != free)

    def _delay(self, position: Position, messages: int, indexes: int, due_s: float) -> None:
        self._delays.put(position, indexes, due_s)
        if messages > 1:
            # ▲ Entries ahead could take its room, and it is given out at its time: the cursor would outgrow its bound.
            self._later[position] = None
            self._promise(position, messages)

    def _promise(self, position: Position, messages: int) -> None:
        if position not in self._promised:
            self._promised[position] = None
            self._acks.promise(position, messages)

    def _hand(
        self, consumer: ConsumerT, entry: LogEntry, indexes: int, value: _ValueAtConsumer[ConsumerT] | None
    ) -> None:
        position, messages = entry.position, entry.messages
        out = self._out.get(position)
        mine = out
        while mine is not None and mine.consumer is not consumer:
            mine = mine.next
        if mine is not None:
            mine.indexes |= indexes
        else:
            self._out[position] = _Out(consumer, indexes, value, out)
            if messages > 1:
                # ▲ Also for redeliveries: a consumer may ack its messages one by one while others fill the cursor.
                self._promise(position, messages)
            consumer.held[position] = None
            if value is not None:
                value.pieces += 1
        consumer.permits -= indexes.bit_count()
        if consumer.permits <= 0 or len(consumer.held) >= self._bounds.unacked:
            self._ready.pop(consumer, None)
        elif consumer in self._ready:
            self._ready.move_to_end(consumer)

    def _elsewhere(self, position: Position, messages: int) -> int:
        """Indexes that are acked, pending, with a consumer or delayed."""
        indexes = self._acks.skip(position, messages) | self._delays.of(position)
        out = self._out.get(position)
        while out is not None:
            indexes |= out.indexes
            out = out.next
        return indexes

    # ---- acks and nacks ---------------------------------------------------------------------------------------------

    def holds(self, position: Position) -> bool:
        """Whether a consumer has messages of the entry."""
        return position in self._out

    def settled(self, acks: Iterable[AckPosition]) -> None:
        """`acks` are applied, or pending in a transaction: take their messages from every consumer."""
        for ack in acks:
            if ack.position in self._out:
                self._take_out(ack.position, None, ack.indexes)
            if self._counts:
                self._forget_if_acked(ack.position)

    def given_back(
        self,
        acks: Iterable[AckPosition],
        consumer: ConsumerT | None = None,
        *,
        due_s: float | None = None,
        counted: bool = True,
    ) -> None:
        """Redeliver messages at `due_s` or at once: those of `acks` that `consumer` has (a nack, an ack refused before
        it was recorded); without a consumer all of them (released pending acks). `counted` raises their redelivery
        count."""
        positions = []
        for ack in acks:
            position, indexes = ack.position, ack.indexes
            if consumer is not None:
                indexes = self._take_out(position, consumer, indexes)
            if not indexes:
                continue
            if counted:
                self._counts.given_back(position, indexes)
            if due_s is None:
                positions.append(position)
            else:
                self._delays.put(position, indexes, due_s)
        self._make_due(positions)

    def next_expiry_s(self) -> float | None:
        return self._delays.next_s

    def expire(self, now_s: float) -> None:
        """Make due the messages delayed up to `now_s`, at most one turn of them: very many may share one time."""
        self._make_due(islice(self._delays.over(now_s), turn_size(PASSED_AT_ONCE)))

    def _take_out(self, position: Position, consumer: ConsumerT | None, indexes: int) -> int:
        """Take `indexes` of an entry from `consumer`, or from all consumers. Returns the indexes taken."""
        taken = 0
        kept: _Out[ConsumerT] | None = None
        out = self._out.get(position)
        while out is not None:
            behind = out.next
            if consumer is None or out.consumer is consumer:
                taken |= out.indexes & indexes
                out.indexes &= ~indexes
            if out.indexes:
                out.next, kept = kept, out
            else:
                self._returned(out, position)
            out = behind
        if kept is None:
            self._out.pop(position, None)
            self._withdraw(position)
        else:
            self._out[position] = kept
        return taken

    def _withdraw(self, position: Position) -> None:
        """Release the room of an entry, unless a consumer holds messages of it, or others are due or delayed."""
        kept = position in self._out or position in self._divided or position in self._later
        if position in self._promised and not kept:
            del self._promised[position]
            self._acks.withdraw(position)

    def give_up(self) -> None:
        """The queue ends: release all its room."""
        while self._promised:
            self._acks.withdraw(self._promised.popitem()[0])

    def _returned(self, out: _Out[ConsumerT], position: Position) -> None:
        consumer, value = out.consumer, out.value
        del consumer.held[position]
        if value is not None:
            value.pieces -= 1
            if not value.pieces:
                del self._values[value.key]
                # ▲ Pieces kept for a consumer that has given the others back would wait for its permits, which may
                # never come: all of the value goes to the next consumer.
                free = [kept for kept, key in consumer.kept.items() if key == value.key]
                for kept in free:
                    del consumer.kept[kept]
                self._make_due(free)
        self.update(consumer)

    def _forget_if_acked(self, position: Position) -> None:
        if position <= self._acks.mark_delete or self._acks.acked(position) == WHOLE:
            self._counts.forget(position)

    def _make_due(self, positions: Iterable[Position]) -> None:
        # ▲ Skip a divided entry, which is due already: otherwise each redelivery of its messages would add a place,
        # until the queue has no place left to read on.
        for interval in intervals_of(sorted(one for one in positions if one not in self._divided)):
            heappush(self._due, interval)

    # ---- transactions -----------------------------------------------------------------------------------------------

    def aside(self, position: Position) -> bool:
        """Whether the entry is set aside."""
        return self._set_aside.contains(position)

    def decided(self, txn_id: TxnId, *, committed: bool) -> None:
        """A transaction's entries here are visible now, or never will be. `offer` leaves out writers that do not
        count."""
        intervals = self._set_aside.take(txn_id)
        if not committed:
            self._passing.extend(intervals)
            return
        for interval in intervals:
            heappush(self._due, interval)

    def read_uncommitted(self, uncommitted: bool) -> None:
        """Set the consumers' isolation. Uncommitted reads make due all that was set aside."""
        self.uncommitted = uncommitted
        if uncommitted:
            for txn_id in self._set_aside.transactions():
                self.decided(txn_id, committed=True)

    def pass_over(self, limit: int) -> bool:
        """Mark up to `limit` entries of aborted transactions as acked. Returns whether some are left."""
        while self._passing and limit > 0:
            first, last = self._passing.popleft()
            end = min(last.entry_id, first.entry_id + limit - 1)
            for entry_id in range(first.entry_id, end + 1):
                self._pass_over(Position(first.ledger_id, entry_id), 0)
            limit -= end + 1 - first.entry_id
            if end < last.entry_id:
                self._passing.appendleft((Position(first.ledger_id, end + 1), last))
        return bool(self._passing)

    def _pass_over(self, position: Position, messages: int) -> None:
        self._acks.pass_over(position, messages)
        self._counts.forget(position)

    # ---- the rest ---------------------------------------------------------------------------------------------------

    def statistics(self) -> QueueStatistics:
        return QueueStatistics(
            unacked=len(self._out),
            set_aside=self._set_aside.entries,
            set_aside_transactions=len(self._set_aside),
            delayed=self._delays.entries,
            due=len(self._due),
            redelivered=len(self._counts),
        )


def _before(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id - 1)
