"""Assigns segments to the consumers of a stream subscription: sticky, balanced, deterministic (DESIGN §8). Pure."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence

from segments.layout.topology import SEALED, Topology


def consumer_id(name: str, incarnation: int) -> str:
    """The consumer's id in `/assignment` records: `name@incarnation` (16 hex digits)."""
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

    ▲ Only sealed segments count as drained: a layout older than `drained` must not lose its active segments."""
    return tuple(
        topology.paths[entry.id]
        for entry in topology.segments.values()
        if entry.state != SEALED or entry.id not in drained
    )


def assignable(topology: Topology, drained: Container[int] = ()) -> tuple[str, ...]:
    """Paths of the segments that may be read now, in id order: undrained segments whose ancestors are all drained.
    A child is thus read only after its parents, which keeps order per key (DESIGN §8)."""
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
    """Distribute `segments` over `consumers`, starting from the `previous` assignment.

    Every segment has exactly one consumer (none if there are no consumers); counts differ by at most one; as few
    segments move as that allows; the result depends only on the arguments. Consumers are sorted, and each consumer's
    segments follow the order of `segments`.
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
    """The segments that each consumer held before and may keep. If two consumers held one segment (no writer of ours
    does that), the first keeps it."""
    taken: dict[str, None] = {}
    kept: dict[str, list[str]] = {}
    for consumer in consumers:
        mine = sorted((s for s in dict.fromkeys(previous.get(consumer, ())) if s in order), key=order.__getitem__)
        kept[consumer] = [segment for segment in mine if segment not in taken]
        taken.update(dict.fromkeys(kept[consumer]))
    return kept


def _quotas(kept: Mapping[str, Sequence[str]], segments: int) -> dict[str, int]:
    """The number of segments for each consumer. Those that hold most get the larger shares: each saves one move."""
    if not kept:
        return {}
    share, larger = divmod(segments, len(kept))
    by_held = sorted(kept, key=lambda consumer: -len(kept[consumer]))
    return {consumer: share + (rank < larger) for rank, consumer in enumerate(by_held)}
