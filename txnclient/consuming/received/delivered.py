"""Records the unacked messages of a stream consumer in hand-out order. Pure.

Every hand-out has its place in one order over all segments of the consumer. Each segment keeps runs: how far it had
been handed out at which place; fully acked runs are dropped. So a cumulative ack of one message finds the messages
handed out before it in every other segment: each segment is handed out in its own order, so one position each is
enough.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from txnclient.consuming.received.message import Message, ReceivedEntry
from txnwire.errors import TxnConflict
from txnwire.ids import Position

FIRST_COMPACTION = 64
"""Number of runs at which acked runs are first removed."""

LOST_REMEMBERED = 1000
"""Most segments remembered as having lost unacked messages."""


class UpTo(NamedTuple):
    """A message of a segment, without its bytes: the entries it stands in, their messages, its index (`last`)."""

    positions: tuple[Position, ...]
    messages: int
    last: int

    @staticmethod
    def of(message: Message[Any]) -> UpTo:
        return UpTo(message.entry.positions, message.entry.count, message.index)


class _MessageRun(NamedTuple):
    """Messages `first` to `last` of the entry at `position`, handed out at one place. `up_to`: the furthest message of
    the segment until then, a different one after a redelivery."""

    place: int
    position: Position
    first: int
    last: int
    up_to: UpTo


class _Runs:
    """The runs of one segment, in the order of their places, a list for each field. A consumer that acks late has a run
    for each entry: the garbage collector would visit an object for each of them, again and again."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self._positions: list[Position] = []
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._messages: list[int] = []
        """For each run, the number of messages in the entry of `up_to`."""
        self._further: dict[int, UpTo] = {}
        """`up_to` by place, unless it is the last message of the run, of an entry with one position."""

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, at: int) -> _MessageRun:
        place, position, last = self.places[at], self._positions[at], self._lasts[at]
        up_to = self._further.get(place) or UpTo((position,), self._messages[at], last)
        return _MessageRun(place, position, self._firsts[at], last, up_to)

    def __iter__(self) -> Iterator[_MessageRun]:
        return (self[at] for at in range(len(self)))

    def append(self, run: _MessageRun) -> None:
        self.places.append(run.place)
        self._positions.append(run.position)
        self._firsts.append(run.first)
        self._lasts.append(run.last)
        self._messages.append(run.up_to.messages)
        if run.up_to.positions != (run.position,) or run.up_to.last != run.last:
            self._further[run.place] = run.up_to

    def remove(self, start: int, end: int) -> None:
        for place in self.places[start:end]:
            self._further.pop(place, None)
        for field in (self.places, self._positions, self._firsts, self._lasts, self._messages):
            del field[start:end]

    def clear(self) -> None:
        self.remove(0, len(self))


class DeliveryOrder:
    """Numbers one consumer's hand-outs and remembers where it lost unacked messages."""

    def __init__(self) -> None:
        self.place = 0
        """The last place given out."""
        self._lost: dict[str, int] = {}
        """Segments that have left or are delivered again: the first place of their unacked messages."""
        self._given_back: dict[str, tuple[int, float]] = {}
        """The same for segments redelivered by this client's own aborts, with the time of the latest."""

    def next(self) -> int:
        self.place += 1
        return self.place

    def lost(self, segment: str, place: int) -> None:
        self._lost[segment] = min(place, self._lost.get(segment, place))
        if len(self._lost) > LOST_REMEMBERED:
            del self._lost[next(iter(self._lost))]

    def given_back(self, segment: str, place: int | None, now_s: float) -> None:
        """The application's own abort causes redelivery: transactions begun from now on receive the messages again.
        This includes earlier losses of the segment, e.g. by the broker's rewind for the same abort. `place`: None if
        there is nothing else."""
        places = [one for one in (place, self._lost.pop(segment, None)) if one is not None]
        if not places:
            return
        if segment in self._given_back:
            places.append(self._given_back[segment][0])
        self._given_back[segment] = min(places), now_s
        if len(self._given_back) > LOST_REMEMBERED:
            del self._given_back[next(iter(self._given_back))]

    def forget_lost(self, before: int | None = None) -> None:
        """Forget losses before that place (None: all), because the application knows of them."""
        if before is None:
            self._lost, self._given_back = {}, {}
        else:
            self._lost = {name: at for name, at in self._lost.items() if at >= before}

    def check_nothing_lost(self, before: int, *, begun_s: float) -> None:
        """Raises `TxnConflict` if some message handed out before that place cannot be acked here: once for a loss that
        the application did not cause. ▲ For messages redelivered by an abort, only in transactions begun before it: the
        abort of a refused one redelivers too, and would make the next one fail, for ever."""
        found = [segment for segment, place in self._lost.items() if place < before]
        found += [name for name, (place, at_s) in self._given_back.items() if place < before and begun_s <= at_s]
        if found:
            self.forget_lost(before)
            raise TxnConflict(
                f"segment://{found[0]} was delivered in part before this message, and is delivered again or by another "
                "consumer now: its messages cannot be acked in this transaction, abort it and receive again"
            )


def place_of(message: Message[Any]) -> int:
    """Its place in the hand-out order of its consumer; 0: none."""
    places = message.entry.places
    found = bisect_left(places, (message.index, 0))
    return places[found][1] if found < len(places) else 0


class Delivered:
    """Records the unacked hand-outs of one segment."""

    def __init__(self, order: DeliveryOrder, segment: str) -> None:
        self.order = order
        self._segment = segment
        self._runs = _Runs()
        self._unacked: dict[Position, int] = {}
        """Bitmaps of the messages handed out, by the last position of their entry."""
        self._compact_at = FIRST_COMPACTION

    def __len__(self) -> int:
        return len(self._runs)

    def taken(self, entry: ReceivedEntry, indexes: Sequence[int], bits: int) -> None:
        """Record messages that are being handed out."""
        position, first, last = entry.positions[-1], indexes[0], indexes[-1]
        self._unacked[position] = self._unacked.get(position, 0) | bits
        up_to = UpTo(entry.positions, entry.count, last)
        before = self._runs[-1] if self._runs else None
        if before is not None and (before.up_to.positions[-1], before.up_to.last) > (position, last):
            up_to = before.up_to
        places = entry.places
        if before is not None and places and places[-1][1] == before.place == self.order.place:
            self._runs.remove(len(self._runs) - 1, len(self._runs))  # nothing else was handed out in between
            self._runs.append(before._replace(last=last, up_to=up_to))
            places[-1] = (last, before.place)
            return
        place = self.order.next()
        places.append((last, place))
        self._runs.append(_MessageRun(place, position, first, last, up_to))
        if len(self._runs) >= self._compact_at:
            runs, self._runs = self._runs, _Runs()
            for run in runs:
                if _names(self._unacked, run):
                    self._runs.append(run)
            self._compact_at = 2 * len(self._runs) + FIRST_COMPACTION

    def before(self, place: int) -> UpTo | None:
        """How far the segment was handed out before that place; None if all of that is acked."""
        at = end = bisect_left(self._runs.places, place)
        while at and not _names(self._unacked, self._runs[at - 1]):
            at -= 1
        self._runs.remove(at, end)
        return self._runs[at - 1].up_to if at else None

    def acked(self, acked: Mapping[Position, int], *, cumulative: bool) -> None:
        """Forget acks that the broker has confirmed. ▲ A failed ack forgets nothing, or it could not be repeated."""
        for position, bits in acked.items():
            if cumulative:
                # Not one by one from the front: each lookup of the first key would scan all deleted ones.
                for passed in list(takewhile(position.__gt__, self._unacked)):
                    del self._unacked[passed]
            left = self._unacked.get(position, 0) & ~bits
            if left:
                self._unacked[position] = left
            else:
                self._unacked.pop(position, None)
        if not self._unacked:
            self._runs.clear()

    def lost(self, held: Mapping[Position, int], *, given_back_s: float | None = None) -> None:
        """The segment is delivered again or has left this consumer. `held`: bitmaps of messages without a sent ack.
        `given_back_s`: the time of the client's own abort that caused it; None: another cause."""
        first = next((run.place for run in self._runs if _names(held, run)), None)
        if given_back_s is not None:
            self.order.given_back(self._segment, first, given_back_s)
        elif first is not None:
            self.order.lost(self._segment, first)
        self.clear()

    def clear(self) -> None:
        """Forget everything: none of it can be acked any more."""
        self._runs.clear()
        self._unacked.clear()


def _names(named: Mapping[Position, int], run: _MessageRun) -> bool:
    """Whether these bitmaps name any of its messages."""
    bits = named.get(run.position, 0)
    return bool(bits and bits >> run.first & (1 << run.last - run.first + 1) - 1)
