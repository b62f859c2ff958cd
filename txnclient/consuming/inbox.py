"""What one consumed segment has delivered: what waits, what the application holds, what may be asked for. Pure.

Permits are messages. The broker counts those it shows (an entry's, less its skip bitmap), so does this side: the same
number is granted again once they have left the buffer, in steps of half a window.

The application's hold on a message lasts from hand-out until an ack of it has been answered. While it does, a copy that
comes again (the broker starts at the earliest unacked message whenever a consumer attaches) is not handed out, or one
transaction could process a message twice. A rewind ends every hold: the copies are delivered again, and what the
application still has of them is stale (`epoch`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from txnclient.consuming.delivered import Delivered, UpTo
from txnclient.consuming.message import Message, ReceivedEntry, Under
from txnclient.consuming.pieces import LargeEntry, Pieces
from txnwire.entry import piece_of
from txnwire.ids import Position

UNBOUNDED_BYTES = 1 << 62

FIRST_AVERAGE_BYTES = 256 * 1024
"""Taken for a message's size until some have come. Large, so that the first grant of a few dozen messages is bounded
even if they are large; small ones raise it as soon as they come."""


class _Waiting:
    """An entry in the buffer and the indexes of it that are still to be handed out."""

    __slots__ = ("at", "entry", "indexes")

    def __init__(self, entry: ReceivedEntry, indexes: range | list[int]) -> None:
        self.entry = entry
        self.indexes = indexes
        self.at = 0

    def left(self) -> int:
        return len(self.indexes) - self.at


def bits_of(indexes: Iterable[int]) -> int:
    """The bitmap of these indexes."""
    bits = 0
    for index in indexes:
        bits |= 1 << index
    return bits


def all_bits(count: int) -> int:
    return (1 << count) - 1


class Inbox:
    """The buffer of one segment. `keeps_holds`: False for readers, which do not ack."""

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
        """`window`: messages, `window_bytes`: bytes to keep in flight and in the buffer, about. `delivered`: is told of
        what is handed out, for cumulative acks."""
        self.delivered = delivered
        self._window = window
        self._keeps_holds = keeps_holds
        self._waiting: deque[_Waiting] = deque()
        self._buffered = 0
        self._spent = 0
        """Permits used up since the last grant whose messages are not in the buffer any more."""
        self._pieces = Pieces(in_order=self._in_order)
        self._large: dict[Position, LargeEntry] = {}
        """Values that came in pieces, waiting or held, by their first position."""
        self._dropped: dict[Position, None] = {}
        """First positions of values that had begun to come, and come again."""
        self._held: dict[Position, int] = {}
        """Handed out and not acked."""
        self._counts: dict[Position, int] = {}
        """Messages in the entries that are held."""
        self._acking: dict[Position, int] = {}
        """Handed out, an ack is under way."""
        self.epoch = 0
        """Counts the rewinds."""
        self.under: Under | None = None
        """What entries arrive under; None until there is a broker that has said so, and for readers."""
        self._window_bytes = window_bytes
        self._average_bytes: float = FIRST_AVERAGE_BYTES
        self._granted_window = self._bounded_window()

    @property
    def buffered(self) -> int:
        """Messages waiting to be handed out."""
        return self._buffered

    def arrived(self, entry: ReceivedEntry, skip: bytes) -> None:
        """An entry was delivered; `skip`: bitmap, LSB first, of messages not meant. Raises `DataCorrupt`,
        `Overloaded`."""
        unwanted = int.from_bytes(skip, "little")
        if self._keeps_holds and (self._held or self._acking):
            held = self._held_bits(entry.position) & ~unwanted
            self._spent += held.bit_count()
            unwanted |= held
        indexes: range | list[int] = range(entry.count)
        if unwanted:
            indexes = [index for index in indexes if not unwanted >> index & 1]
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
        """A piece gives its permit back at once, or a value of more pieces than permits would never be whole. The last
        one's stands for the message while it is in the buffer."""
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
        """Pieces that have come and will never make a whole: nobody will ever ack them."""
        passed = self._pieces.passed
        if passed:
            self._pieces.passed = []
            for position in passed:
                self._dropped.pop(position, None)
        return passed

    def ended(self) -> None:
        """All of the segment has come, for good."""
        self._pieces.ended()

    def left_out(self, entry: ReceivedEntry, skip: bytes) -> None:
        """An entry was delivered that is not to be handed out; it has used up permits like any other."""
        self._spent += entry.count - int.from_bytes(skip, "little").bit_count()

    def _held_bits(self, position: Position) -> int:
        """Of an entry's messages those that are the application's already: no copy of them is handed out."""
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
        if self._keeps_holds:
            bits = all_bits(entry.count) if taken == entry.count else bits_of(indexes)
            for position in entry.positions:
                self._held[position] = self._held.get(position, 0) | bits
                self._counts[position] = entry.count
            if self.delivered is not None:
                self.delivered.taken(entry, indexes, bits)
        return [Message(entry, index) for index in indexes]

    # ---- permits ----------------------------------------------------------------------------------------------------

    def attached(self) -> int:
        """The first grant for a consumer that has just attached; nothing of an earlier one is in flight."""
        self._spent = 0
        return max(0, self._granted_window - self._buffered)

    def permits_due(self) -> int:
        """Permits to grant now, 0 while less than half a window has been used up."""
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
        return max(1, min(self._window, int(self._window_bytes / self._average_bytes)))

    def _weigh(self, entry: ReceivedEntry) -> None:
        """Permits are messages: how many keep to the bytes follows from the sizes that come. Larger ones count at once,
        smaller ones little by little."""
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
        """The connection is lost; what was not handed out comes again."""
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
        """Everything that is not acked is delivered again, from the earliest on. `given_back_s`: when it was asked for
        here."""
        if self.delivered is not None:
            self.delivered.lost(self._held, given_back_s=given_back_s)
        self.drop_buffer()
        self._end_holds()
        self.epoch += 1

    def left(self) -> None:
        """Of what was handed out no cumulative ack of another segment's message can ack anything any more."""
        if self.delivered is not None:
            self.delivered.lost(self._held)

    def sought(self) -> None:
        """The subscription was sought elsewhere: what was received before can not be acked any more, nor need it be."""
        if self.delivered is not None:
            self.delivered.clear()
        self.rewound()

    def is_current(self, message: Message[Any]) -> bool:
        """Whether a transaction may ack it: it has not been, and will not be, delivered anew."""
        return message.entry.holder is self and message.entry.epoch == self.epoch

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
        """They are acked, or refused: a copy that comes from now on is meant."""
        for position, bits in acked.items():
            left = self._acking.get(position, 0) & ~bits
            if left:
                self._acking[position] = left
            else:
                self._acking.pop(position, None)

    def acked(self, acked: Mapping[Position, int], *, cumulative: bool) -> None:
        """The broker has said that they are."""
        if self.delivered is not None:
            self.delivered.acked(acked, cumulative=cumulative)

    def cumulative_ack_started(self, position: Position, bits: int) -> None:
        """Everything below `position` and `bits` of it are being acked: their holds end."""
        for held in [held for held in self._held if held < position]:
            self._release(held, self._held[held])
        self.ack_started({position: bits})

    def held_up_to(self, up_to: UpTo) -> list[tuple[Position, int, int]] | None:
        """What a cumulative ack up to it must name one by one (position, bitmap, messages in the entry); None where its
        position will do. ▲ A7: in between stand pieces of values that end behind it, which are not meant: acked
        with the others, they would be missing when the value is delivered again."""
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
    """Of a queue subscription. A hold ends with the connection, too: the broker then gives what was not acked to whom
    it likes. A copy is always handed out: somebody else's hold, or an earlier one of ours, has ended by then."""

    def __init__(self, window: int, *, window_bytes: int = UNBOUNDED_BYTES) -> None:
        super().__init__(window, keeps_holds=True, window_bytes=window_bytes)
        self._copies: dict[Position, dict[ReceivedEntry, int]] = {}
        """Whose the held bits of a position are: parts of an entry may have been delivered apart, and again."""

    _in_order = False

    def take(self, at_most: int) -> list[Message[Any]]:
        messages = super().take(at_most)
        if messages:
            entry = messages[0].entry
            copies = self._copies.setdefault(entry.position, {})
            copies[entry] = copies.get(entry, 0) | bits_of(message.index for message in messages)
        return messages

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
        """The connection is lost, and with it what was delivered over it."""
        self.drop_buffer()
        self._end_holds()

    def is_current(self, message: Message[Any]) -> bool:
        """▲ While it is held. Of all copies of a message one ack at most passes, so a transaction that has processed
        two of them cannot commit."""
        entry = message.entry
        return bool(self._copies.get(entry.position, {}).get(entry, 0) >> message.index & 1)

    @property
    def held(self) -> tuple[Mapping[Position, int], Mapping[Position, int]]:
        """Bitmaps of what was handed out and is not acked, and how many messages their entries have."""
        return self._held, self._counts

    def give_back(self, messages: Iterable[Message[Any]]) -> dict[Position, int]:
        """End the holds of these messages; the bitmaps of those that were held."""
        given: dict[Position, int] = {}
        for message in messages:
            if self.is_current(message):
                for position in message.entry.positions:
                    given[position] = given.get(position, 0) | 1 << message.index
                    self._release(position, 1 << message.index)
        return given

    def let_go(self, given: Mapping[Position, int]) -> None:
        """End the holds of these bitmaps."""
        for position, bits in given.items():
            self._release(position, bits)

    def put_aside(self, count: int) -> None:
        """So many of what was just taken are not the application's: their permits are kept until `set_free`."""
        self._spent -= count

    def set_free(self, count: int) -> None:
        self._spent += count
