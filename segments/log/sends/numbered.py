"""The state of numbered producers in one segment, as a pure core (DESIGN §7, "Numbered producers").

A numbered producer gives its messages ids of its own and sends them again after a restart, as a new *life* of its name.
For each name a segment knows

- the latest life that has taken it here, as (epoch, incarnation): a *fence* against all earlier ones,
- the ids stored here, from the greatest `all_below` of its stored entries on: everything below is stored, here or in
  another segment.

An id is stored if it is below the greatest `all_below` of any segment, or among the ids of any segment. ▲ The highest
id alone would not tell: another segment may have stored a higher one before the owner of this one crashed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

import msgspec

from txnwire.errors import InvalidArgument, NotOwner, ProducerFenced
from txnwire.numbers import Numbers

MOST_IDS_KEPT: Final = 100_000
"""Ids of one name that a segment keeps; a client sends far fewer ahead of the lowest one that is not stored."""


class KnownIds(NamedTuple):
    """The ids of a name that are stored: all below `all_below`, and `ids`, in order."""

    all_below: int = 0
    ids: Sequence[int] = ()


class StoredName(msgspec.Struct, frozen=True, array_like=True):
    """One name in a dedup snapshot."""

    name: str
    epoch: int
    incarnation: int
    all_below: int
    ids: list[int]
    idle_s: float


class _Name:
    """`ids`: a heap. `durable`: whether a successor of this owner would know the fence."""

    __slots__ = ("active_s", "all_below", "durable", "ids", "life")

    def __init__(self, life: tuple[int, int], active_s: float) -> None:
        self.life = life
        self.all_below = 0
        self.ids: list[int] = []
        self.durable = False
        self.active_s = active_s


class NumberedNames:
    """All names of numbered producers in one segment; remembers each for `idle_s` after its last use. Times are
    monotonic seconds."""

    def __init__(self, *, idle_s: float) -> None:
        self._idle_s = idle_s
        self._names: OrderedDict[str, _Name] = OrderedDict()
        """In the order of their last use."""

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    # ---- lives ------------------------------------------------------------------------------------------------------

    def take(self, name: str, epoch: int, incarnation: int, now_s: float) -> bool:
        """Let this life have the name, ▲ and no earlier one any more. False if a later life has it."""
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = _Name((epoch, incarnation), now_s)
        elif (epoch, incarnation) < known.life:
            return False
        elif (epoch, incarnation) > known.life:
            known.life, known.durable = (epoch, incarnation), False
        self._used(name, known, now_s)
        return True

    def is_fenced(self, name: str, epoch: int, incarnation: int) -> bool:
        """Whether a later life has taken the name."""
        known = self._names.get(name)
        return known is not None and (epoch, incarnation) < known.life

    def epoch_of(self, name: str) -> int:
        """The epoch of the latest life; 0 for none."""
        known = self._names.get(name)
        return 0 if known is None else known.life[0]

    def expect(self, name: str, epoch: int, incarnation: int) -> None:
        """Raises `ProducerFenced` if a later life has the name, `NotOwner` if this one has not taken it."""
        known = self._names.get(name)
        if known is None or (epoch, incarnation) > known.life:
            raise NotOwner(f"producer {name} has not taken its name here: take it, then open again")
        if (epoch, incarnation) < known.life:
            raise fenced(name)

    def is_durable(self, name: str) -> bool:
        known = self._names.get(name)
        return known is not None and known.durable

    def made_durable(self, name: str, epoch: int, incarnation: int) -> None:
        """A snapshot that holds this life stands beside the ledger."""
        known = self._names.get(name)
        if known is not None and known.life == (epoch, incarnation):
            known.durable = True

    # ---- ids --------------------------------------------------------------------------------------------------------

    def known(self, name: str) -> KnownIds:
        known = self._names.get(name)
        return KnownIds() if known is None else KnownIds(known.all_below, sorted(known.ids))

    def expect_room(self, name: str, numbers: Numbers) -> None:
        """Raises `InvalidArgument` for more ids than a name may have here beyond `all_below`."""
        known = self._names.get(name)
        if known is not None and len(known.ids) + len(numbers.ids) > MOST_IDS_KEPT:
            raise InvalidArgument(
                f"producer {name} has stored {len(known.ids)} ids beyond {known.all_below}, which it does not report "
                f"as stored: at most {MOST_IDS_KEPT}"
            )

    def stored(self, name: str, incarnation: int, numbers: Numbers, now_s: float) -> None:
        """Record an entry that is durable; also one found in the ledger."""
        life = (numbers.name_epoch, incarnation)
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = _Name(life, now_s)
            known.durable = True  # by the entry
        elif life > known.life:
            known.life, known.durable = life, True
        ids = known.ids
        for one in numbers.ids:
            heappush(ids, one)
        known.all_below = max(known.all_below, numbers.all_below)
        while ids and ids[0] < known.all_below:
            heappop(ids)
        self._used(name, known, now_s)

    # ---- recovery and housekeeping ----------------------------------------------------------------------------------

    def rows(self, now_s: float) -> Iterator[StoredName]:
        """Yields the rows of a snapshot on demand. Nothing may be stored meanwhile."""
        for name, one in list(self._names.items()):
            epoch, incarnation = one.life
            idle_s = max(now_s - one.active_s, 0.0)
            yield StoredName(name, epoch, incarnation, one.all_below, sorted(one.ids), idle_s)

    def restore(self, rows: Iterable[StoredName], now_s: float) -> None:
        for row in sorted(rows, key=lambda stored: -stored.idle_s):
            one = self._names[row.name] = _Name((row.epoch, row.incarnation), now_s - row.idle_s)
            one.all_below, one.ids, one.durable = row.all_below, row.ids, True

    def expire(self, now_s: float, connected: Container[str], *, limit: int) -> int:
        """Forget names unused for longer than `idle_s`, `limit` at most; returns how many. O(forgotten), except for
        `connected` ones, which count as used."""
        forgotten = 0
        while self._names and forgotten < limit:
            name, one = next(iter(self._names.items()))
            if now_s - one.active_s <= self._idle_s:
                break
            if name in connected:
                self._used(name, one, now_s)
                continue
            del self._names[name]
            forgotten += 1
        return forgotten

    def _used(self, name: str, one: _Name, now_s: float) -> None:
        one.active_s = now_s
        self._names.move_to_end(name)


def fenced(name: str) -> ProducerFenced:
    return ProducerFenced(f"a newer producer named {name} has taken the name: one may send at a time")
