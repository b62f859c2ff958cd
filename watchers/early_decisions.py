"""Keeps decided headers that come while segments load, until these know what they hold. Pure.

Until a segment has read its state, its transactions are unknown, so every decision is kept: one list for
all loading segments, back to the start of the oldest one. Once its state is read, only decisions on the transactions it
found open are kept: ▲ no other transaction of it can be decided before it serves.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable
from itertools import chain

from txnstore.store import KeyValue


class EarlyDecisions:
    """`len` is the number of headers kept for segments that have not read their state."""

    def __init__(self) -> None:
        self._reading: dict[Hashable, int] = {}
        """Segments that have yet to read their state, each with the number of decisions that came before it began."""
        self._expecting: dict[Hashable, dict[bytes, KeyValue | None]] = {}
        self._kept: OrderedDict[bytes, tuple[int, KeyValue]] = OrderedDict()
        self._came = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __bool__(self) -> bool:
        """Whether any segment loads."""
        return bool(self._reading or self._expecting)

    @property
    def reading(self) -> bool:
        """Whether any segment has yet to read its state: what it holds is unknown."""
        return bool(self._reading)

    def expected(self) -> Iterable[bytes]:
        """The keys of the headers that loading segments expect."""
        return chain.from_iterable(self._expecting.values())

    def begin(self, who: Hashable) -> None:
        self._reading[who] = self._came

    def is_reading(self, who: Hashable) -> bool:
        """Whether `who` has not called `expect` yet."""
        return who in self._reading

    def note(self, header: KeyValue) -> None:
        """Keep a decision. O(segments that load)."""
        if self._reading:
            self._came += 1
            self._kept[header.key] = (self._came, header)
            self._kept.move_to_end(header.key)
        for expected in self._expecting.values():
            if header.key in expected:
                expected[header.key] = header

    def expect(self, who: Hashable, keys: Iterable[bytes]) -> None:
        """`who` has read its state: from now on keep only the headers under these `keys` for it. O(keys), much less
        each if `keys` is a dict, and O(kept)."""
        if who in self._reading:
            expected: dict[bytes, KeyValue | None] = dict.fromkeys(keys)
            for key, (_, header) in self._kept.items():
                if key in expected:
                    expected[key] = header
            self._expecting[who] = expected
            self._end_reading(who)

    def awaits(self, who: Hashable, key: bytes) -> bool:
        """Whether `who` expects the header under `key`, and it has not come."""
        expected = self._expecting.get(who, {})
        return key in expected and expected[key] is None

    def take(self, who: Hashable) -> list[KeyValue]:
        """The expected headers that were decided since `who` began, or since the last call, in the order of their
        decisions."""
        expected = self._expecting.get(who, {})
        found = [header for header in expected.values() if header is not None]
        for header in found:
            del expected[header.key]
        return sorted(found, key=lambda header: header.mod_revision)

    def leave(self, who: Hashable) -> None:
        """`who` serves, or never will. Idempotent."""
        self._expecting.pop(who, None)
        self._end_reading(who)

    def _end_reading(self, who: Hashable) -> None:
        self._reading.pop(who, None)
        oldest = next(iter(self._reading.values()), None)
        while self._kept and (oldest is None or next(iter(self._kept.values()))[0] <= oldest):
            self._kept.popitem(last=False)
