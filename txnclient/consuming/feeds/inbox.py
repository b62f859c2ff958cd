"""Tracks one consumed segment's deliveries: buffered messages, messages the application holds, permits. Pure.

Permits are messages. Both sides count the messages of an entry less its skip bitmap. The inbox grants the same number
again once they have left the buffer, in steps of half a window.

The application's hold on a message lasts from hand-out until an ack of it has been answered. Meanwhile a redelivered
copy is not handed out, or one transaction could process a message twice: the broker starts at the earliest unacked
message whenever a consumer attaches. A rewind ends every hold: the copies are handed out again, and messages that the
application still has are stale (`epoch`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from txnclient.consuming.feeds.pace import QueuePace, Wait
from txnclient.consuming.received.bits import all_bits, bits_of, indexes_of
from txnclient.consuming.received.by_segment import by_entry
from txnclient.consuming.received.delivered import Delivered, UpTo
from txnclient.consuming.received.message import Message, ReceivedEntry, Under
from txnclient.consuming.received.pieces import LargeEntry, Pieces
from txnwire.entry import piece_of
from txnwire.ids import Position

UNBOUNDED_BYTES = 1 << 62

LARGEST_WINDOW = 1_000_000_000
"""Messages. ▲ C6: a window is granted in parts, all in one turn of the loop: with the largest number that there is for
both bounds, as some give it for none, the parts would never end."""

FIRST_AVERAGE_BYTES = 256 * 1024
"""Assumed message size until some have come. Large, to bound the first grant (a few dozen messages) even if they are
large; small messages raise the window as soon as they come."""


class _Waiting:
    """An entry in the buffer and the indexes still to be handed out."""

    __slots__ = ("at", "entry", "indexes")

    def __init__(self, entry: ReceivedEntry, indexes: Sequence[int]) -> None:
        self.entry = entry
        self.indexes = indexes
        self.at = 0

    def left(self) -> int:
        return len(self.indexes) - self.at


class Inbox:
    """Buffers one segment's deliveries. `keeps_holds`: False for readers, which do not ack."""

    _in_order = True
    """Whether the segment is delivered in its order."""

    def __init__(
        self,
        window: int,
        *,
        keeps_holds: bool,
        window_bytes: int = UNBOUNDED_BYTES,
        delivered: Delivered | None = None,
    ) -> None:
        """`window` and `window_bytes`: about how many messages and bytes to keep in flight and in the buffer.
        `delivered` records hand-outs for cumulative acks."""
        self.delivered = delivered
        self._window = window
        self._keeps_holds = keeps_holds
        self._waiting: deque[_Waiting] = deque()
        self._buffered = 0
        self._spent = 0
        """Permits used since the last grant whose messages have left the buffer."""
        self._pieces = Pieces(in_order=self._in_order)
        self._large: dict[Position, LargeEntry] = {}
        """Values that came in pieces, waiting or held, by their first position."""
        self._dropped: dict[Position, None] = {}
        """First positions of values that were partly delivered and come again."""
        self._held: dict[Position, int] = {}
        """Handed out and not acked."""
        self._counts: dict[Position, int] = {}
        """Number of messages in each held entry."""
        self._acking: dict[Position, int] = {}
        """Handed out, with an ack under way."""
        self.epoch = 0
        """Number of rewinds."""
        self.under: Under | None = None
        """The subscription that entries arrive under; None for readers, and until a broker has named it."""
        self._window_bytes = window_bytes
        self._average_bytes: float = FIRST_AVERAGE_BYTES
        self._granted_window = self._bounded_window()

    @property
    def buffered(self) -> int:
        """Messages waiting to be handed out."""
        return self._buffered

    def arrived(self, entry: ReceivedEntry, skip: bytes) -> None:
        """Take in a delivered entry; `skip`: bitmap, LSB first, of messages to leave out. Raises `DataCorrupt`,
        `Overloaded`."""
        unwanted = int.from_bytes(skip, "little")
        if self._keeps_holds and (self._held or self._acking):
            held = self._held_bits(entry.position) & ~unwanted
            self._spent += held.bit_count()
            unwanted |= held
        indexes: Sequence[int] = range(entry.count)
        if unwanted:
            indexes = indexes_of(all_bits(entry.count) & ~unwanted)
        if indexes:
            entry.epoch = self.epoch
            entry.under = self.under
            if self._window_bytes != UNBOUNDED_BYTES:
                self._weigh(entry)
            if entry.metadata.chunk_count:
                self._piece_arrived(entry)
                return
            self._waiting.append(_Waiting(entry, indexes))
            self._buffered += len(indexes)

    def _piece_arrived(self, entry: ReceivedEntry) -> None:
        """Take in a piece. It returns its permit at once: a value of more pieces than permits could never complete. The
        last piece's permit stands for the message while it is in the buffer."""
        piece = piece_of(entry.metadata)
        whole = None if piece is None else self._pieces.add(entry, piece)
        if whole is None:
            self._spent += 1
            return
        self._large[whole.position] = whole
        self._dropped.pop(whole.position, None)
        self._waiting.append(_Waiting(whole, range(1)))
        self._buffered += 1

    def take_passed(self) -> list[Position]:
        """Take the pieces that will never be complete, which the application never acks."""
        passed = self._pieces.passed
        if passed:
            self._pieces.passed = []
            for position in passed:
                self._dropped.pop(position, None)
        return passed

    def ended(self) -> None:
        """All entries of the segment have come; no more follow."""
        self._pieces.ended()

    def left_out(self, entry: ReceivedEntry, skip: bytes) -> None:
        """Count the permits of a delivered entry that is not handed out."""
        self._spent += entry.count - int.from_bytes(skip, "little").bit_count()

    @property
    def begun(self) -> Position | None:
        """The first piece of the large values that have come in part, or are not handed out; None if there is none."""
        waiting = (position for position in self._large if position not in self._held)
        return min((*self._pieces, *waiting), default=None)

    def _held_bits(self, position: Position) -> int:
        """Bitmap of an entry's messages that the application already has: no copy of them is handed out."""
        return self._held.get(position, 0) | self._acking.get(position, 0)

    def take(self, at_most: int) -> list[Message[Any]]:
        """Hand out the next messages, of one entry at most."""
        if not self._waiting:
            return []
        waiting = self._waiting[0]
        indexes = waiting.indexes[waiting.at : waiting.at + at_most]
        waiting.at += len(indexes)
        if waiting.at >= len(waiting.indexes):
            self._waiting.popleft()
        taken = len(indexes)
        self._buffered -= taken
        self._spent += taken
        entry = waiting.entry
        if not self._keeps_holds:
            self._large.pop(entry.position, None)
        else:
            bits = all_bits(entry.count) if taken == entry.count else bits_of(indexes)
            for position in entry.positions:
                self._held[position] = self._held.get(position, 0) | bits
                self._counts[position] = entry.count
            self._handed_out(entry, indexes, bits)
        return entry.messages(indexes)

    def _handed_out(self, entry: ReceivedEntry, indexes: Sequence[int], bits: int) -> None:
        """`bits`: the bitmap of `indexes`."""
        if self.delivered is not None:
            self.delivered.taken(entry, indexes, bits)

    # ---- permits ----------------------------------------------------------------------------------------------------

    def attached(self) -> int:
        """The first grant of a consumer that has just attached: nothing is in flight."""
        self._spent = 0
        return max(0, self._granted_window - self._buffered)

    def permits_due(self) -> int:
        """Permits to grant now; 0 while less than half a window is used."""
        if self._spent <= 0 or self._spent * 2 < self._granted_window:
            return 0
        due, self._spent = self._spent, 0
        return due

    def set_window(self, window: int, window_bytes: int | None = None) -> None:
        """From now on keep up to `window` messages, and about `window_bytes` (None: as before), in flight and in the
        buffer."""
        self._window = window
        self._window_bytes = self._window_bytes if window_bytes is None else window_bytes
        self._adjust()

    def _bounded_window(self) -> int:
        in_bytes = int(min(self._window_bytes, UNBOUNDED_BYTES) / self._average_bytes)
        return max(1, min(self._window, in_bytes, LARGEST_WINDOW))

    def _weigh(self, entry: ReceivedEntry) -> None:
        """Adjust the average size, which converts the byte window into permits. Larger messages count at once, smaller
        ones gradually."""
        bytes_each = max(1.0, len(entry.raw) / entry.count)
        if self._average_bytes == FIRST_AVERAGE_BYTES or bytes_each > self._average_bytes:
            self._average_bytes = bytes_each
        else:
            self._average_bytes += (bytes_each - self._average_bytes) / 8
        self._adjust()

    def _adjust(self) -> None:
        window = self._bounded_window()
        self._spent += window - self._granted_window
        self._granted_window = window

    # ---- starting again ---------------------------------------------------------------------------------------------

    def drop_buffer(self) -> None:
        """The connection is lost: drop the buffer, which comes again."""
        self._spent += self._buffered
        self._buffered = 0
        self._waiting.clear()
        begun = [*self._pieces, *(position for position in self._large if position not in self._held)]
        if begun:
            self._pieces.clear()
            for position in begun:
                self._large.pop(position, None)
            if self._in_order:
                self._dropped.update(dict.fromkeys(begun))

    def _end_holds(self) -> None:
        self._held.clear()
        self._counts.clear()
        self._large.clear()

    def rewound(self, *, given_back_s: float | None = None) -> None:
        """Everything unacked is delivered again, from the earliest on. `given_back_s`: when this client asked for
        it."""
        if self.delivered is not None:
            self.delivered.lost(self._held, given_back_s=given_back_s)
        self.drop_buffer()
        self._end_holds()
        self.epoch += 1

    def left(self) -> None:
        """The segment has left: cumulative acks through other segments no longer cover its messages."""
        if self.delivered is not None:
            self.delivered.lost(self._held)

    def sought(self) -> None:
        """The subscription was moved by a seek: messages received before it can no longer be acked, and need not be."""
        if self.delivered is not None:
            self.delivered.clear()
        self.rewound()

    def current(self, entry: ReceivedEntry) -> int:
        """Bitmap of the messages that a transaction may ack: they were not, and will not be, delivered again."""
        return all_bits(entry.count) if entry.holder is self and entry.epoch == self.epoch else 0

    # ---- acks -------------------------------------------------------------------------------------------------------

    def ack_started(self, acked: Mapping[Position, int]) -> None:
        """Acks of these bitmaps are under way."""
        for position, bits in acked.items():
            self._release(position, bits)
            self._acking[position] = self._acking.get(position, 0) | bits

    def _release(self, position: Position, bits: int) -> None:
        left = self._held.get(position, 0) & ~bits
        if left:
            self._held[position] = left
        else:
            self._held.pop(position, None)
            self._counts.pop(position, None)
            if self._large:
                self._large.pop(position, None)

    def ack_answered(self, acked: Mapping[Position, int]) -> None:
        """They are acked or refused: copies that come from now on are handed out."""
        for position, bits in acked.items():
            left = self._acking.get(position, 0) & ~bits
            if left:
                self._acking[position] = left
            else:
                self._acking.pop(position, None)

    def acked(self, acked: Mapping[Position, int], *, cumulative: bool) -> None:
        """The broker has confirmed the acks."""
        if self.delivered is not None:
            self.delivered.acked(acked, cumulative=cumulative)

    def cumulative_ack_started(self, position: Position, bits: int) -> None:
        """Acks of everything below `position`, and of `bits` at it, are under way: their holds end."""
        for held in [held for held in self._held if held < position]:
            self._release(held, self._held[held])
        self.ack_started({position: bits})

    def held_up_to(self, up_to: UpTo) -> list[tuple[Position, int, int]] | None:
        """Entries that a cumulative ack must list one by one (position, bitmap, messages); None if its position is
        enough. ▲ A7: pieces of values that end behind it may lie below it: if acked too, they would be missing when
        the value is delivered again."""
        target = up_to.positions[-1]
        ahead: dict[Position, None] = {}
        for large in self._large.values():
            if large.positions[-1] > target:
                ahead.update(dict.fromkeys(large.positions))
        if not any(position < target for position in (*ahead, *self._pieces, *self._dropped)):
            return None
        named = [
            (position, bits, self._counts[position])
            for position, bits in self._held.items()
            if position < target and position not in ahead and position not in up_to.positions
        ]
        for position in up_to.positions:
            named.append((position, all_bits(up_to.last + 1), up_to.messages))
        return named


class QueueInbox(Inbox):
    """Buffers a queue subscription's deliveries. A hold also ends with the connection: the broker then redelivers the
    unacked messages to any consumer. A copy is always handed out: every earlier hold on it has ended by then."""

    def __init__(self, window: int, *, window_bytes: int = UNBOUNDED_BYTES) -> None:
        self.pace = QueuePace()
        self._outstanding = 0
        """Permits that the broker has not used yet; below 0: it has sent more."""
        self._aside = 0
        """Messages put aside and not set free: they use permits, whatever becomes of the connection."""
        super().__init__(window, keeps_holds=True, window_bytes=window_bytes)
        self._copies: dict[Position, dict[ReceivedEntry, int]] = {}
        """Which copy holds which bits of a position: parts of an entry may be delivered separately, and again."""

    _in_order = False

    # ---- sharing ----------------------------------------------------------------------------------------------------

    def _bounded_window(self) -> int:
        window, bound = super()._bounded_window(), self.pace.window
        return window if bound is None else min(window, bound)

    def attached(self) -> int:
        super().attached()
        # ▲ What is set aside comes free later, and is granted then: here it would be granted twice.
        free = self._granted_window - self._buffered - self._aside
        due = 0 if self.pace.idle else max(0, free)
        self._spent = free - due
        self._outstanding = due
        return due

    def permits_due(self) -> int:
        due = 0 if self.pace.idle else super().permits_due()
        self._outstanding += due
        return due

    def arrived(self, entry: ReceivedEntry, skip: bytes) -> None:
        self._outstanding -= entry.count - int.from_bytes(skip, "little").bit_count()
        super().arrived(entry, skip)

    def told_sharing(self, sharing: int) -> None:
        """See `QueuePace.told`. All permits are void: `grant_anew`, behind `take_back`."""
        self.pace.told(sharing)
        self._adjust()

    def grant_anew(self) -> int:
        """The permits to grant where the broker has none."""
        return self.attached()

    def look(self, asks: int) -> Wait:
        """See `QueuePace.look`."""
        found = self.pace.look(asks)
        self._adjust()
        return found

    def starved(self) -> None:
        """A delivery has come while the application waits for one."""
        if self.pace.shares and self._outstanding <= 0:
            self.pace.starved(self._window)
            self._adjust()

    def asked_for(self, at_once: int) -> None:
        self.pace.asked_for(at_once)
        if self.pace.shares:
            self._adjust()

    @property
    def window(self) -> int:
        return self._granted_window

    @property
    def unbegun(self) -> bool:
        """Whether there is something that `take_back` would take."""
        return bool(self._buffered or len(self._pieces))

    def take_back(self, *, keep: int) -> tuple[dict[Position, int], dict[Position, int]]:
        """Remove from the buffer all but the first `keep` messages; with `keep` 0 the pieces of incomplete values, too.
        Returns bitmaps of the removed messages, and the number of messages in their entries."""
        bits: dict[Position, int] = {}
        counts: dict[Position, int] = {}
        while self._waiting and self._buffered > keep:
            waiting = self._waiting[-1]
            removed = min(waiting.left(), self._buffered - keep)
            at = len(waiting.indexes) - removed
            for position in waiting.entry.positions:
                bits[position] = bits.get(position, 0) | bits_of(waiting.indexes[at:])
                counts[position] = waiting.entry.count
            self._large.pop(waiting.entry.position, None)
            waiting.indexes = waiting.indexes[:at]
            if not waiting.left():
                self._waiting.pop()
            self._buffered -= removed
            self._spent += removed
        if not keep:
            for position in self._pieces.take_all():
                bits[position] = counts[position] = 1
        return bits, counts

    # ---- handing out ------------------------------------------------------------------------------------------------

    def _handed_out(self, entry: ReceivedEntry, indexes: Sequence[int], bits: int) -> None:
        self.pace.taken(len(indexes))
        copies = self._copies.setdefault(entry.position, {})
        copies[entry] = copies.get(entry, 0) | bits

    def _release(self, position: Position, bits: int) -> None:
        super()._release(position, bits)
        copies = self._copies.pop(position, {})
        left = {entry: held & ~bits for entry, held in copies.items() if held & ~bits}
        if left:
            self._copies[position] = left

    def _end_holds(self) -> None:
        super()._end_holds()
        self._copies.clear()

    def _held_bits(self, position: Position) -> int:
        return 0

    def detached(self) -> None:
        """The connection is lost: drop the buffer and end all holds."""
        self.pace.told(0)
        self._adjust()
        self.drop_buffer()
        self._end_holds()

    def current(self, entry: ReceivedEntry) -> int:
        """The messages of `entry` that are held, as a bitmap. ▲ At most one ack of all copies of a message succeeds, so
        a transaction that has processed two copies cannot commit."""
        return self._copies.get(entry.position, {}).get(entry, 0)

    @property
    def copies(self) -> Mapping[Position, Mapping[ReceivedEntry, int]]:
        """Bitmaps of unacked hand-outs, by position and copy."""
        return self._copies

    @property
    def held(self) -> tuple[Mapping[Position, int], Mapping[Position, int]]:
        """Bitmaps of unacked hand-outs, and the number of messages in their entries."""
        return self._held, self._counts

    def give_back(self, messages: Iterable[Message[Any]]) -> dict[Position, int]:
        """End the holds of these messages; returns the bitmaps of those that were held."""
        given: dict[Position, int] = {}
        for entry, bits in by_entry(messages):
            # A copy that was pickled is none of those handed out, and stands for them.
            carried = entry.holder is None and entry.under is not None and entry.under == self.under
            if held := bits & (self._held.get(entry.position, 0) if carried else self.current(entry)):
                for position in entry.positions:
                    given[position] = given.get(position, 0) | held
                    self._release(position, held)
        return given

    def let_go(self, given: Mapping[Position, int]) -> None:
        """End the holds of these bitmaps."""
        for position, bits in given.items():
            self._release(position, bits)

    def put_aside(self, count: int) -> None:
        """Keep the permits of `count` messages just taken, which are not for the application, until `set_free`."""
        self._aside += count
        self._spent -= count

    def set_free(self, count: int) -> None:
        self._aside -= count
        self._spent += count
