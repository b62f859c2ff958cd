"""Which ids of a numbered producer are stored, under way, or may be sent again. Pure (DESIGN §7, "Numbered producers").

    new ──give──► waiting ──placed──► under way ──stored──► stored
                     └──owe──► owed ──give──► …      its sender gave up before there was room for it

▲ Each entry carries `all_below`, which tells the next life the ids that it need not send. So it never passes a given id
that is not stored, whatever result the sender has received.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from enum import Enum
from typing import Final

from txnwire.errors import InvalidArgument

MOST_AHEAD: Final = 20_000
"""Ids that may be placed from the lowest one that is not stored on. A segment keeps as many at most."""
MOST_REMEMBERED: Final = 20_000
"""Stored ids of this life that are told from ones that were passed over."""
LARGEST_ID: Final = (1 << 62) - 1


class Standing(Enum):
    NEW = "not given yet"
    OWED = "given, and not placed: it may be given again"
    UNDER_WAY = "its outcome is awaited, or it waits for room"
    STORED = "stored before"


_WAITING, _PLACED, _OWED = range(3)


class SourceIds:
    """The ids of one life. `done`: the source knows that every id up to it is stored, -1 for none."""

    def __init__(self, done: int) -> None:
        self._below = done + 1
        """Every id below it was stored before this life."""
        self._before: dict[int, None] = {}
        """The other ids that were stored before this life."""
        self._given: deque[int] = deque()
        """In order: from the lowest one that is not stored on."""
        self._unstored: dict[int, int] = {}
        """The given ids that are not stored, and where they are."""
        self._not_placed = 0
        """How many of these wait or are owed."""
        self._remembered: OrderedDict[int, None] = OrderedDict()
        self._highest = -1
        self._through = done

    def learn(self, all_below: int, ids: Iterable[int]) -> None:
        """A segment tells what it holds, before the first id is given."""
        self._below = max(self._below, all_below)
        self._before.update(dict.fromkeys(ids))
        self._before = {one: None for one in self._before if one >= self._below}
        self._through = self._below - 1
        while self._through + 1 in self._before:
            self._through += 1

    @property
    def last_sequence_id(self) -> int:
        """The source may go on behind it: every id up to it is stored; -1 for none."""
        return self._through

    @property
    def all_below(self) -> int:
        """For an entry: every id of the source below it is stored."""
        return self._given[0] if self._given else self._through + 1

    @property
    def has_room(self) -> bool:
        """Whether one more id may be placed. ▲ Ids that wait do not count: they would wait for each other."""
        return len(self._given) - self._not_placed < MOST_AHEAD

    def standing(self, sequence_id: int) -> Standing:
        """Raises `InvalidArgument` for a value that is no id, and for an id that this life has passed over."""
        if type(sequence_id) is not int or not 0 <= sequence_id <= LARGEST_ID:
            raise InvalidArgument(f"sequence_id {sequence_id!r}: expected a whole number from 0 to {LARGEST_ID}")
        place = self._unstored.get(sequence_id)
        if place is not None:
            return Standing.OWED if place == _OWED else Standing.UNDER_WAY
        if sequence_id < self._below or sequence_id in self._before or sequence_id in self._remembered:
            return Standing.STORED
        if sequence_id <= self._highest:
            # ▲ It must not count as stored: it may have been passed over, and would be lost.
            raise InvalidArgument(
                f"sequence_id {sequence_id} after {self._highest}: ids ascend in the life of a producer, and it is not "
                f"among the last {MOST_REMEMBERED}; to go back, close the producer and open it again"
            )
        return Standing.NEW

    def give(self, sequence_id: int) -> None:
        """A new or owed id is to be placed."""
        if sequence_id not in self._unstored:
            self._given.append(sequence_id)
            self._highest = sequence_id
            self._not_placed += 1
        self._unstored[sequence_id] = _WAITING

    def placed(self, sequence_id: int) -> None:
        """It is in a batch, and will be sent until it is stored."""
        self._unstored[sequence_id] = _PLACED
        self._not_placed -= 1

    def owe(self, sequence_id: int) -> None:
        """The sender of this id gives up before it was placed. ▲ The id still holds `all_below` back: another life may
        send it."""
        self._unstored[sequence_id] = _OWED

    def stored(self, ids: Iterable[int]) -> None:
        """▲ Call it only after the broker has acked them."""
        for one in ids:
            if self._unstored.pop(one, None) is not None:
                self._remembered[one] = None
        while self._given and self._given[0] not in self._unstored:
            self._through = max(self._through, self._given.popleft())
        while len(self._remembered) > MOST_REMEMBERED + len(self._given):
            self._remembered.popitem(last=False)
