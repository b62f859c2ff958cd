"""Orders one producer's entries to one segment, and decides which are sent again. Pure.

▲ Each frame names its predecessor's sequence id in this segment, and the owner admits it only right after that entry; a
failure fails all entries after it (DESIGN §7, "Dedup and order"). So after any failure the chain continues from the
last entry that the owner reports as stored. An entry keeps its sequence id in every resend, so the owner can tell a
resend from a new entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

NONE_STORED = -1


class Sequenced(Protocol):
    """An entry: its messages have the sequence ids `first` to `last`, inclusive."""

    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...


E = TypeVar("E", bound=Sequenced)


class EntryOutbox(Generic[E]):
    """Keeps entries waiting to be written, and entries written but not settled yet, both in order.

    A written entry is awaited until it is settled (stored, or refused for good) or interrupted (it must be written
    again). An interruption breaks the chain: nothing is written before `reopened`.
    """

    def __init__(self) -> None:
        self._waiting: deque[E] = deque()
        self._written: dict[int, E] = {}
        """Written entries by first sequence id, in order."""
        self._awaited = 0
        self._predecessor = NONE_STORED
        self._broken = True
        self._ever_written = NONE_STORED
        """First sequence id of the last written entry, while the segment has not reported its final content."""

    def __len__(self) -> int:
        return len(self._waiting) + len(self._written)

    def __iter__(self) -> Iterator[E]:
        yield from self._written.values()
        yield from self._waiting

    @property
    def awaited(self) -> int:
        """Entries written and neither settled nor interrupted yet."""
        return self._awaited

    @property
    def waiting_first(self) -> E | None:
        """The entry to be written next, if any waits."""
        return self._waiting[0] if self._waiting else None

    @property
    def may_reopen(self) -> bool:
        """Whether the chain is broken and all answers are in, so the owner's report of stored entries is final."""
        return self._broken and not self._awaited

    @property
    def in_doubt(self) -> bool:
        """Whether a written entry's fate is unknown: it may be stored, or on its way. Written entries come before
        unwritten ones, so the first one tells."""
        first = next(iter(self), None)
        return first is not None and first.first <= self._ever_written

    def add(self, entry: E) -> None:
        """Append after all others; its sequence ids are above theirs."""
        self._waiting.append(entry)

    def next_to_write(self) -> tuple[E, int] | None:
        """The next entry and its predecessor's last sequence id, counted as written; None if nothing may be written."""
        if self._broken or not self._waiting:
            return None
        entry = self._waiting.popleft()
        predecessor, self._predecessor = self._predecessor, entry.last
        self._written[entry.first] = entry
        self._ever_written = max(self._ever_written, entry.first)
        self._awaited += 1
        return entry, predecessor

    def _answered(self) -> None:
        if not self._awaited:
            raise RuntimeError("an answer came that was not awaited: to a connection that has been given up")
        self._awaited -= 1

    def settle(self, entry: E) -> None:
        """A written entry has its final answer."""
        self._answered()
        del self._written[entry.first]

    def interrupt(self) -> None:
        """A written entry got a transient error; it and all after it must be written again."""
        self._answered()
        self._broken = True

    def break_chain(self) -> None:
        """The owner will refuse the entries that follow."""
        self._broken = True

    def give_up_answers(self) -> None:
        """No more answers will come for written entries."""
        self._awaited = 0
        self._broken = True

    def reopened(self, last_stored: int) -> list[E]:
        """The owner has stored everything up to `last_stored` and nothing after it; returns the entries now done, in
        order."""
        done = self._picked_up(last_stored)
        self._predecessor = last_stored
        self._broken = False
        return done

    def sealed(self, last_stored: int) -> list[E]:
        """▲ The sealed segment holds everything up to `last_stored` and will never hold more: the rest is no longer in
        doubt and may be sent elsewhere. Returns the entries now done, in order. The chain stays broken; if the seal is
        undone, `reopened` continues it."""
        done = self._picked_up(last_stored)
        self._ever_written = NONE_STORED
        self._broken = True
        return done

    def _picked_up(self, last_stored: int) -> list[E]:
        if self._awaited:
            raise RuntimeError(f"the chain was picked up with {self._awaited} answers still to come")
        self._waiting.extendleft(reversed(self._written.values()))
        self._written.clear()
        done: list[E] = []
        while self._waiting and self._waiting[0].last <= last_stored:
            done.append(self._waiting.popleft())
        return done

    def take_doubtful(self) -> list[E]:
        """Take out the entries in doubt, in order: their fate will never be known."""
        self.give_up_answers()
        last = self._ever_written
        return self.remove(lambda entry: entry.first <= last)

    def remove(self, doomed: Callable[[E], bool]) -> list[E]:
        """Take out and return the `doomed` entries, in order, except entries that wait for their answer."""
        out = [entry for entry in self._waiting if doomed(entry)]
        self._waiting = deque(entry for entry in self._waiting if not doomed(entry))
        if self._broken and not self._awaited:
            interrupted = [entry for entry in self._written.values() if doomed(entry)]
            for entry in interrupted:
                del self._written[entry.first]
            out = interrupted + out
        return out

    def clear(self) -> list[E]:
        """Take out everything."""
        everything = list(self)
        self._written.clear()
        self._waiting.clear()
        self.give_up_answers()
        return everything
