"""Which broker should own which segment: balanced, sticky, the same for everybody who knows the same (DESIGN §7). Pure.

Counts differ by at most one, and as few segments move as that allows. Whoever carries out a part of a placement, in
whatever order, changes nothing about the rest of it: brokers that hear of each other's claims at different times still
work towards one goal, and none of them has to be asked. (Rendezvous hashing alone leaves 4 segments on 2 brokers 4 to 0
once in eight times.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import xxhash


def place(rows: Sequence[Sequence[str]], owners: Mapping[str, str], brokers: Collection[str]) -> dict[str, str]:
    """Segment → broker for every segment in `rows`; empty where there are no brokers.

    `rows`: segments that are to lie apart, one row a topic, in an order that everybody knows; `owners`: who owns what
    now, as far as is known. An owner that is none of `brokers` is as good as none. Nothing else counts: not the order
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
    """How gladly each broker would have each segment: the brokers stand in a ring, a row begins at a place that its
    first segment gives, and each next segment of it one place further. So the segments of one topic lie apart.

    All brokers rank one segment, and all segments one broker, by the same number: such preferences have one stable
    matching, and what is matched already can be taken out of it without changing the rest.
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
        """In the order of topics, and of the segments in each."""
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
    """How many each is to have. The larger shares go to those that hold more than the smaller one, each of which saves
    a move, then by name: by nothing that changes while segments are claimed and given up as this says."""
    share, larger = divmod(segments, len(held))
    ranked = sorted(held, key=lambda broker: (held[broker] <= share, broker))
    return {broker: share + (rank < larger) for rank, broker in enumerate(ranked)}
