"""Decides which segments a broker claims, and which it gives to another. Pure: receives the time, does no I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from segments.broker.placement import place
from segments.layout.topology import SEALED, Topology

RETRY_S: Final = (0.05, 10.0)
"""Pause after a first failed take-over, and the longest after several."""
MAX_TAKING: Final = 32
"""Take-overs at once: each reads a ledger's tail."""
SEALED_BESIDE: Final = 2
"""Sealed segments taken at once beside active ones, unless a request waits for them: producers wait for active ones,
and a topic may have hundreds of sealed segments for each active one."""
MAX_YIELDING: Final = 4
"""Segments without an owner at once because they move to balance the brokers."""
KEEP_S: Final = (60.0, 3600.0)
"""How long a rescued segment, left unowned by its own broker, stays here: the first time, and at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """One broker's view of the cluster at a moment. `active`, `sealed`: paths of segments, a row per topic; `owners`:
    segment → broker id; `brokers`: the live ones that are not leaving."""

    active: Sequence[Sequence[str]]
    sealed: Sequence[Sequence[str]]
    owners: Mapping[str, str]
    brokers: Sequence[str]

    @staticmethod
    def of(topologies: Iterable[Topology], owners: Mapping[str, str], brokers: Sequence[str]) -> ClusterView:
        layouts = list(topologies)
        return ClusterView(
            active=[layout.active_paths for layout in layouts],
            sealed=[
                [path for id, path in layout.paths.items() if layout.segments[id].state == SEALED] for layout in layouts
            ],
            owners=owners,
            brokers=brokers,
        )

    def placement(self, me: str) -> dict[str, str]:
        """Segment → broker, active ones first; active and sealed ones are balanced separately. `me` counts as a broker
        even if the directory does not show it yet."""
        brokers = {*self.brokers, me}
        return place(self.active, self.owners, brokers) | place(self.sealed, self.owners, brokers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """The next moves, each list in the order of execution. `again_s`: ask again after at most this time."""

    take: Sequence[str]
    give_up: Sequence[str]
    release: Sequence[str]
    """Stale segments that are in no layout."""
    again_s: float | None


class Claims:
    """Decides the moves of one broker. `settle_s`: how long a segment must be in excess here before it moves, so that a
    restarting broker or a lagging directory moves nothing; also how long others leave a segment to its own broker."""

    def __init__(self, broker_id: str, *, settle_s: float) -> None:
        self._me = broker_id
        self._settle_s = settle_s
        self._failures: dict[str, tuple[int, float]] = {}
        """By segment: failed take-overs in a row, and the time of the next try."""
        self._excess_since: dict[str, float] = {}
        """Segments served here that another broker should own: since when."""
        self._unowned_since: dict[str, float] = {}
        self._rescuing: dict[str, None] = {}
        self._rescued: dict[str, tuple[int, float]] = {}
        """Segments taken for another broker: how many times, and until when they stay here at least."""

    def failed(self, segment: str, now_s: float) -> None:
        failures = self._failures.get(segment, (0, 0.0))[0] + 1
        first_s, longest_s = RETRY_S
        self._failures[segment] = (failures, now_s + min(longest_s, first_s * 2 ** (failures - 1)))

    def succeeded(self, segment: str, now_s: float) -> None:
        self._failures.pop(segment, None)
        if segment in self._rescuing:
            del self._rescuing[segment]
            times, _ = self._rescued.get(segment, (0, 0.0))
            first_s, longest_s = KEEP_S
            self._rescued[segment] = (times + 1, now_s + min(longest_s, first_s * 2**times))

    def next_moves(
        self,
        view: ClusterView,
        now_s: float,
        *,
        served: Collection[str],
        taking: Collection[str] = (),
        handing_over: Collection[str] = (),
        unfit: Collection[str] = (),
        stale: Collection[str] = (),
        wanted: Collection[str] = (),
    ) -> Moves:
        """`served`: served here now; `unfit`: never to be taken; `stale`: owned by this broker under a useless epoch,
        so no other broker can take them; `wanted`: requests wait for them here, so they go first."""
        placement = view.placement(self._me)
        self._forget(placement)
        self._note_unowned(placement, view.owners, now_s)
        busy = {**dict.fromkeys(taking), **dict.fromkeys(handing_over), **dict.fromkeys(served)}
        open_to_all = [one for one in placement if one not in busy and one not in unfit]
        mine = [one for one in open_to_all if one in stale or self._should_have(one, placement, view.owners)]
        mine.sort(key=lambda one: one not in wanted)
        if not taking and not any(now_s >= self._next_try_s(one) for one in mine):
            mine += self._left_unowned([one for one in open_to_all if one not in mine], now_s)
        due = _active_first(view, [one for one in mine if now_s >= self._next_try_s(one)], taking, wanted)
        take = due[: max(0, MAX_TAKING - len(taking))]
        later = [self._next_try_s(one) for one in mine if now_s < self._next_try_s(one)]
        moving = len(handing_over) + self._on_their_way(placement, now_s)
        return Moves(
            take=take,
            release=[one for one in stale if one not in placement and one not in busy],
            give_up=self._to_give_up(placement, served, moving, now_s),
            again_s=min(later) - now_s if later else None,
        )

    def _should_have(self, segment: str, placement: Mapping[str, str], owners: Mapping[str, str]) -> bool:
        # A segment owned under this broker's own name is one it lost, or one that a predecessor's lease still holds.
        return placement[segment] == self._me and owners.get(segment, self._me) == self._me

    def _next_try_s(self, segment: str) -> float:
        return self._failures.get(segment, (0, 0.0))[1]

    def _left_unowned(self, segments: Iterable[str], now_s: float) -> list[str]:
        """Segments that their own broker has left unowned for so long that it seems unable to take them. They stay here
        for a while, longer each time: otherwise a segment would move with each try of its own broker."""
        found = [one for one in segments if now_s - self._unowned_since.get(one, now_s) >= 2 * self._settle_s]
        self._rescuing = dict.fromkeys(found[:MAX_TAKING])
        return list(self._rescuing)

    def _on_their_way(self, placement: Mapping[str, str], now_s: float) -> int:
        """Number of segments that wait for another broker. Meanwhile it gets no more: it may be hung while its lease
        still holds, and all its segments would be unserved."""
        return sum(
            1
            for one, since_s in self._unowned_since.items()
            if placement[one] != self._me and now_s - since_s < 2 * self._settle_s
        )

    def _to_give_up(
        self, placement: Mapping[str, str], served: Collection[str], moving: int, now_s: float
    ) -> list[str]:
        excess = [one for one in placement if placement[one] != self._me and one in served]
        self._excess_since = {one: self._excess_since.get(one, now_s) for one in excess}
        settled = [
            one
            for one in excess
            if now_s - self._excess_since[one] >= self._settle_s and now_s >= self._rescued.get(one, (0, 0.0))[1]
        ]
        return settled[: max(0, MAX_YIELDING - moving)]

    def _note_unowned(self, placement: Mapping[str, str], owners: Mapping[str, str], now_s: float) -> None:
        self._unowned_since = {one: self._unowned_since.get(one, now_s) for one in placement if one not in owners}

    def _forget(self, placement: Mapping[str, str]) -> None:
        """Drop the state of segments that no longer exist."""
        for known in (self._failures, self._rescued):
            for segment in [one for one in known if one not in placement]:
                del known[segment]


def _active_first(view: ClusterView, due: Sequence[str], taking: Collection[str], wanted: Collection[str]) -> list[str]:
    """`due` without the sealed segments that can wait until the active ones are served."""
    active = dict.fromkeys(one for row in view.active for one in row)
    if not any(one in active for one in due) and not any(one in active for one in taking):
        return list(due)
    can_wait = [one for one in due if one not in active and one not in wanted]
    beside = SEALED_BESIDE - sum(one not in active for one in taking)
    waiting = dict.fromkeys(can_wait[max(0, beside) :])
    return [one for one in due if one not in waiting]
