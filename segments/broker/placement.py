"""Places segments on brokers: balanced, sticky, and the same result from the same records (DESIGN §7). Pure.

Counts differ by at most one, and the fewest segments move that this allows. Carrying out part of a placement, in any
order, does not change the rest of it: brokers that learn of each other's claims at different times still work towards
one goal, without a coordinator. (Rendezvous hashing alone leaves 4 segments on 2 brokers 4 to 0 once in eight times.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import xxhash


def place(rows: Sequence[Sequence[str]], owners: Mapping[str, str], brokers: Collection[str]) -> dict[str, str]:
    """Segment → broker for every segment in `rows`; empty without brokers.

    `rows`: segments to spread over brokers, one row per topic, in an order that all brokers share; `owners`: the known
    owner of each segment now. An owner that is not in `brokers` counts as none. The result does not depend on the order
    of `rows`, `owners` or `brokers`.
    """
    if not brokers:
        return {}
    seats = _Seats(rows, sorted(brokers))
    kept = seats.held(owners)
    quotas = _quotas({broker: len(held) for broker, held in kept.items()}, len(seats))
    placed: dict[str, str] = {}
    for broker, held in kept.items():
        if len(held) > quotas[broker]:
            held.sort(key=lambda segment: seats.distance(segment, broker))
            del held[quotas[broker] :]
        placed.update(dict.fromkeys(held, broker))
    room = {broker: quotas[broker] - len(held) for broker, held in kept.items()}
    for segment, broker in seats.wishes([segment for segment in seats if segment not in placed]):
        if segment not in placed and room[broker] > 0:
            placed[segment] = broker
            room[broker] -= 1
    return placed


class _Seats:
    """Ranks brokers and segments for each other. The brokers form a ring; a hash of a row's topic gives the first
    segment's broker, and each next segment begins one broker further. This spreads the segments of one topic.

    Segments rank brokers, and brokers rank segments, by the same number: such preferences have one stable matching, and
    removing matched pairs does not change the rest.
    """

    def __init__(self, rows: Sequence[Sequence[str]], brokers: Sequence[str]) -> None:
        self._brokers = brokers
        self._index = {broker: index for index, broker in enumerate(brokers)}
        self._home: dict[str, int] = {}
        for row in sorted(list(row) for row in rows if row):
            start = xxhash.xxh3_64_intdigest(row[0].rpartition("/")[0].encode())
            for offset, segment in enumerate(row):
                self._home[segment] = (start + offset) % len(brokers)

    def __len__(self) -> int:
        return len(self._home)

    def __iter__(self) -> Iterator[str]:
        """Iterates in the order of topics, and of the segments in each."""
        return iter(self._home)

    def held(self, owners: Mapping[str, str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {broker: [] for broker in self._brokers}
        for segment in self._home:
            if (held := found.get(owners.get(segment, ""))) is not None:
                held.append(segment)
        return found

    def distance(self, segment: str, broker: str) -> int:
        return (self._index[broker] - self._home[segment]) % len(self._brokers)

    def wishes(self, segments: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Pairs of a segment and a broker, the best first."""
        for distance in range(len(self._brokers)):
            for segment in segments:
                yield segment, self._brokers[(self._home[segment] + distance) % len(self._brokers)]


def _quotas(held: Mapping[str, int], segments: int) -> dict[str, int]:
    """The number of segments for each broker. The larger shares go first to brokers that hold more than the smaller
    share, which saves a move each, then by name: carrying out the placement must not change this order."""
    share, larger = divmod(segments, len(held))
    ranked = sorted(held, key=lambda broker: (held[broker] <= share, broker))
    return {broker: share + (rank < larger) for rank, broker in enumerate(ranked)}
