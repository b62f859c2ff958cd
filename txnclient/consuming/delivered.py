"""What a consumer of a stream was delivered and has not acked, in the order in which it was. Pure.

Every hand-out has its place in one order over all segments of the consumer. Of each segment is kept, run by run, how
far it had been handed out at which place; runs of which everything is acked are dropped. So a cumulative ack of one
message finds what was handed out before it in every other segment: a segment is handed out in its own order, hence one
position each.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from txnclient.consuming.message import Message, ReceivedEntry
from txnwire.errors import TxnConflict
from txnwire.ids import Position

FIRST_COMPACTION = 64
"""Runs from which on those that are done with are looked for."""

LOST_REMEMBERED = 1000
"""Segments of which it is known that something unacked was lost."""


class UpTo(NamedTuple):
    """A message of a segment, without its bytes: the entries it stands in, their messages, its index (`last`)."""

    positions: tuple[Position, ...]
    messages: int
    last: int

    @staticmethod
    def of(message: Message[Any]) -> UpTo:
        return UpTo(message.entry.positions, message.entry.count, message.index)


class _Run(NamedTuple):
    """Messages `first` to `last` of the entry at `position`, handed out at one place; `up_to`: the furthest message of
    the segment until then, which is another one where this one has come again."""

    place: int
    position: Position
    first: int
    last: int
    up_to: UpTo


class DeliveryOrder:
    """The order of one consumer's hand-outs, and what was taken from it unacked."""

    def __init__(self) -> None:
        self.place = 0
        """The last one."""
        self._lost: dict[str, int] = {}
        """Segments that have left, or that are delivered anew: the first place of what was not acked by then."""
        self._given_back: dict[str, tuple[int, float]] = {}
        """The same of segments that an abort of our own has had delivered anew, with the latest time of one."""

    def next(self) -> int:
        self.place += 1
        return self.place

    def lost(self, segment: str, place: int) -> None:
        self._lost[segment] = min(place, self._lost.get(segment, place))
        if len(self._lost) > LOST_REMEMBERED:
            del self._lost[next(iter(self._lost))]

    def given_back(self, segment: str, place: int | None, now_s: float) -> None:
        """By an abort that the application has asked for: whatever it begins from now on, it receives anew. So it does
        what was lost of the segment before, as by the broker's rewind for that very abort. `place`: None for no more
        than that."""
        places = [one for one in (place, self._lost.pop(segment, None)) if one is not None]
        if not places:
            return
        if segment in self._given_back:
            places.append(self._given_back[segment][0])
        self._given_back[segment] = min(places), now_s
        if len(self._given_back) > LOST_REMEMBERED:
            del self._given_back[next(iter(self._given_back))]

    def forget_lost(self, before: int | None = None) -> None:
        """The application knows what has become of it, as far as it was handed out before that place; None: of all."""
        if before is None:
            self._lost, self._given_back = {}, {}
        else:
            self._lost = {name: at for name, at in self._lost.items() if at >= before}

    def check_nothing_lost(self, before: int, *, begun_s: float) -> None:
        """Raises `TxnConflict` where not all that was handed out before that place can be acked here: once for what
        was lost without the application's doing. For what an abort has brought back ▲ to the transactions that had
        begun by then, and to no other: the abort of one that was refused brings back what comes behind it, and would
        have the next one refused, for ever."""
        found = [segment for segment, place in self._lost.items() if place < before]
        found += [name for name, (place, at_s) in self._given_back.items() if place < before and begun_s <= at_s]
        if found:
            self.forget_lost(before)
            raise TxnConflict(
                f"segment://{found[0]} was delivered in part before this message, and is delivered again or by another "
                "consumer now: its messages cannot be acked in this transaction, abort it and receive again"
            )


def place_of(message: Message[Any]) -> int:
    """Its place in the order of the consumer that it was handed out by; 0: none."""
    places = message.entry.places
    found = bisect_left(places, (message.index, 0))
    return places[found][1] if found < len(places) else 0


class Delivered:
    """Of one segment."""

    def __init__(self, order: DeliveryOrder, segment: str) -> None:
        self.order = order
        self._segment = segment
        self._runs: list[_Run] = []
        self._unacked: dict[Position, int] = {}
        """By the last position of their entry, bitmaps of what was handed out."""
        self._compact_at = FIRST_COMPACTION

    def __len__(self) -> int:
        return len(self._runs)

    def taken(self, entry: ReceivedEntry, indexes: Sequence[int], bits: int) -> None:
        """They are being handed out."""
        position, first, last = entry.positions[-1], indexes[0], indexes[-1]
        self._unacked[position] = self._unacked.get(position, 0) | bits
        up_to = UpTo(entry.positions, entry.count, last)
        before = self._runs[-1] if self._runs else None
        if before is not None and (before.up_to.positions[-1], before.up_to.last) > (position, last):
            up_to = before.up_to
        places = entry.places
        if before is not None and places and places[-1][1] == before.place == self.order.place:
            self._runs[-1] = before._replace(last=last, up_to=up_to)  # nothing else was handed out in between
            places[-1] = (last, before.place)
            return
        place = self.order.next()
        places.append((last, place))
        self._runs.append(_Run(place, position, first, last, up_to))
        if len(self._runs) >= self._compact_at:
            self._runs = [run for run in self._runs if _names(self._unacked, run)]
            self._compact_at = 2 * len(self._runs) + FIRST_COMPACTION

    def before(self, place: int) -> UpTo | None:
        """How far it was handed out before that place; None where all of that is acked."""
        at = end = bisect_left(self._runs, place, key=lambda run: run.place)
        while at and not _names(self._unacked, self._runs[at - 1]):
            at -= 1
        del self._runs[at:end]
        return self._runs[at - 1].up_to if at else None

    def acked(self, acked: Mapping[Position, int], *, cumulative: bool) -> None:
        """▲ The broker has said so: of an ack that has failed nothing is forgotten, or it could not be repeated."""
        for position, bits in acked.items():
            if cumulative:
                # Not one by one from the front: each look for the first would pass all that are gone.
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
        """It is delivered anew, or is not this consumer's any more; `held`: bitmaps of what no ack was sent of.
        `given_back_s`: when an abort of our own did that; None: that was not it."""
        first = next((run.place for run in self._runs if _names(held, run)), None)
        if given_back_s is not None:
            self.order.given_back(self._segment, first, given_back_s)
        elif first is not None:
            self.order.lost(self._segment, first)
        self.clear()

    def clear(self) -> None:
        """Nothing of it can be acked any more."""
        self._runs.clear()
        self._unacked.clear()


def _names(named: Mapping[Position, int], run: _Run) -> bool:
    """Whether these bitmaps name any of its messages."""
    bits = named.get(run.position, 0)
    return bool(bits and bits >> run.first & (1 << run.last - run.first + 1) - 1)
