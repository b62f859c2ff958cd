"""Which consumer of a stream subscription reads which segments: sticky, balanced, deterministic (DESIGN §8). Pure."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence

from segments.layout.topology import SEALED, Topology


def consumer_id(name: str, incarnation: int) -> str:
    """How a consumer stands in `/assignment` records: `name@incarnation` (16 hex digits)."""
    return f"{name}@{incarnation:016x}"


def parse_consumer_id(consumer: str) -> tuple[str, int]:
    """Name and incarnation."""
    name, _, incarnation = consumer.partition("@")
    return name, int(incarnation, 16)


def consumer_name(consumer: str) -> str:
    """The name in a `consumer_id`; names hold no `@`."""
    return consumer.partition("@")[0]


def undrained(topology: Topology, drained: Container[int] = ()) -> tuple[str, ...]:
    """Paths of the segments that a subscription has not drained, in id order.

    ▲ Only what is sealed counts as drained: a layout that lags behind `drained` must not lose its active segments."""
    return tuple(
        topology.paths[entry.id]
        for entry in topology.segments.values()
        if entry.state != SEALED or entry.id not in drained
    )


def assignable(topology: Topology, drained: Container[int] = ()) -> tuple[str, ...]:
    """Paths of the segments that may be read now, in id order: those the subscription has not drained yet but whose
    ancestors it all has. A child is thus read only after its parents, which keeps order per key (DESIGN §8)."""
    behind: dict[int, None] = {}
    found = []
    for entry in topology.segments.values():  # parents before children
        waits = any(parent in behind for parent in entry.parents)
        done = entry.state == SEALED and entry.id in drained
        if waits or not done:
            behind[entry.id] = None
        if not waits and not done:
            found.append(topology.paths[entry.id])
    return tuple(found)


def assign(
    consumers: Collection[str], segments: Sequence[str], previous: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Share `segments` out to `consumers`, given who held what before.

    Every segment has exactly one consumer (none if there are no consumers); counts differ by at most one; as few
    segments move as that allows; the result depends on nothing but the arguments' contents. Consumers come out sorted,
    their segments in the order of `segments`.
    """
    order = {segment: index for index, segment in enumerate(segments)}
    kept = _still_held(sorted(consumers), order, previous)
    quotas = _quotas(kept, len(segments))
    pool = dict.fromkeys(segments)
    for consumer, held in kept.items():
        del held[quotas[consumer] :]
        for segment in held:
            del pool[segment]
    free = iter(pool)
    for consumer, held in kept.items():
        held.extend(next(free) for _ in range(quotas[consumer] - len(held)))
        held.sort(key=order.__getitem__)
    return kept


def _still_held(
    consumers: Sequence[str], order: Mapping[str, int], previous: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """What each consumer held before and could keep. A segment that two held (which no writer of ours makes) counts for
    the first."""
    taken: dict[str, None] = {}
    kept: dict[str, list[str]] = {}
    for consumer in consumers:
        mine = sorted((s for s in dict.fromkeys(previous.get(consumer, ())) if s in order), key=order.__getitem__)
        kept[consumer] = [segment for segment in mine if segment not in taken]
        taken.update(dict.fromkeys(kept[consumer]))
    return kept


def _quotas(kept: Mapping[str, Sequence[str]], segments: int) -> dict[str, int]:
    """How many each is to have. The larger shares go to those that hold most: each of them saves one move."""
    if not kept:
        return {}
    share, larger = divmod(segments, len(kept))
    by_held = sorted(kept, key=lambda consumer: -len(kept[consumer]))
    return {consumer: share + (rank < larger) for rank, consumer in enumerate(by_held)}
