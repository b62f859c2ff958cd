"""Which segments a broker should claim, and which it should give to another. Pure: told the time, does no I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from segments.ownership import preferred_owner

RETRY_S: Final = (0.05, 10.0)
"""Pause after a first failed take-over, and the longest after several."""
MAX_TAKING: Final = 32
"""Take-overs at once: each reads a ledger's tail."""
MAX_YIELDING: Final = 4


class Claims:
    """`settle_s`: how long a broker must have been known before segments that would rather be its own move there."""

    def __init__(self, broker_id: str, *, settle_s: float) -> None:
        self._broker_id = broker_id
        self._settle_s = settle_s
        self._failures: dict[str, tuple[int, float]] = {}
        """Per segment: failed take-overs in a row, and the time of the next try."""
        self._known_since: dict[str, float] = {}

    def failed(self, segment: str, now_s: float) -> None:
        failures = self._failures.get(segment, (0, 0.0))[0] + 1
        first_s, longest_s = RETRY_S
        self._failures[segment] = (failures, now_s + min(longest_s, first_s * 2 ** (failures - 1)))

    def succeeded(self, segment: str) -> None:
        self._failures.pop(segment, None)

    def to_take(
        self,
        segments: Iterable[str],
        owners: Mapping[str, str],
        brokers: Sequence[str],
        busy: Sequence[str],
        now_s: float,
        *,
        stale: Collection[str] = (),
    ) -> list[str]:
        """Those of `segments` (neither served here nor given up) to take over now. `owners`: segment → broker id, as
        far as is known; `busy`: being taken over or handed over already; `stale`: owned by this broker under an epoch
        that is of no use any more, so that nobody else can take them, whoever would rather own them."""
        room = MAX_TAKING - len(busy)
        found: list[str] = []
        for segment in segments:
            if len(found) >= room:
                break
            if segment in busy or now_s < self._failures.get(segment, (0, 0.0))[1]:
                continue
            if segment in stale:
                found.append(segment)
                continue
            # A segment under this broker's own name is one it lost, or that a predecessor's lease still holds.
            free = owners.get(segment, self._broker_id) == self._broker_id
            if free and preferred_owner(segment, (*brokers, self._broker_id)) == self._broker_id:
                found.append(segment)
        return found

    def to_yield(self, served: Iterable[str], brokers: Sequence[str], now_s: float) -> list[str]:
        """Segments served here that another broker would rather own: after a restart of several, the first one up has
        claimed everything."""
        self._known_since = {broker: self._known_since.get(broker, now_s) for broker in brokers}
        settled = [broker for broker, since_s in self._known_since.items() if now_s - since_s >= self._settle_s]
        misplaced = (one for one in served if preferred_owner(one, (*settled, self._broker_id)) != self._broker_id)
        return [segment for segment, _ in zip(misplaced, range(MAX_YIELDING), strict=False)]
