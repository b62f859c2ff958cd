"""Rules about values: where they stand, who saw them, whether all of a transaction is there. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from simulation.judges.anomalies.facts import (
    Anomaly,
    Facts,
    committed_sends,
    is_lost,
    is_unseen,
    parts,
    topic_of,
)
from simulation.judges.history import Place, Send


def inconsistent_positions(facts: Facts) -> Iterator[Anomaly]:
    for key, places in facts.claims.items():
        for place, values in places.items():
            if len(values) > 1:
                yield Anomaly("inconsistent positions", f"{key} at {place} holds {', '.join(values)}")


def duplicate(facts: Facts) -> Iterator[Anomaly]:
    for key, places in facts.claims.items():
        at: dict[str, list[Place]] = defaultdict(list)
        for place, values in places.items():
            for value in values:
                at[value].append(place)
        for value, found in at.items():
            if len(found) > 1:
                yield Anomaly("duplicate", f"{value} stands in {key} at {' and '.join(map(str, sorted(found)))}")


def aborted_read(facts: Facts) -> Iterator[Anomaly]:
    for key, values in facts.seen.items():
        for value in values:
            writer = facts.writers.get(value)
            if writer is not None and facts.history.operations[writer.operation].outcome == "failed":
                yield Anomaly("aborted read", f"{value} of {key} was read; {facts.name(writer.operation)} had failed")


def lost_write(facts: Facts) -> Iterator[Anomaly]:
    for index, send in committed_sends(facts):
        if is_lost(facts, send):
            yield Anomaly(
                "lost write",
                f"{send.value} of {facts.name(index)} at {send.key} {send.place} was read by nobody, though "
                f"{facts.highest[send.key]} was",
            )


def unseen(facts: Facts) -> Iterator[Anomaly]:
    for index, send in committed_sends(facts):
        if is_unseen(facts, send):
            yield Anomaly(
                "unseen", f"{send.value} of {facts.name(index)} in {send.key} is still unread after the drain"
            )
    yield from _unseen_by_subscription(facts)


def _unseen_by_subscription(facts: Facts) -> Iterator[Anomaly]:
    """A value that one subscription never got, not even at the end. Read by others, it is lost only for this one, as
    when a segment is wrongly taken for drained."""
    if not facts.history.drained:
        return
    delivered, covers = _delivered(facts)
    for index, send in committed_sends(facts):
        for subscription, topics in covers.items():
            if topic_of(send.key) in topics and send.value not in delivered[subscription]:
                yield Anomaly(
                    "unseen", f"{send.value} of {facts.name(index)} in {send.key} never came to {subscription}"
                )


def _delivered(facts: Facts) -> tuple[dict[str, dict[str, None]], dict[str, dict[str, None]]]:
    """Subscription → values delivered on it, and → the topics it reads."""
    delivered: dict[str, dict[str, None]] = defaultdict(dict)
    covers: dict[str, dict[str, None]] = defaultdict(dict)
    for operation in facts.history.operations:
        for poll in operation.polls:
            if poll.subscription is not None:
                for key, reads in poll.reads.items():
                    covers[poll.subscription][topic_of(key)] = None
                    delivered[poll.subscription].update((read.value, None) for read in reads)
    return delivered, covers


def torn_transaction(facts: Facts) -> Iterator[Anomaly]:
    for indexes in parts(facts):
        sends = [send for index in indexes for send in facts.history.operations[index].sends]
        found = [send.value for send in sends if send.value in facts.seen[send.key]]
        gone = [send.value for send in sends if is_lost(facts, send) or is_unseen(facts, send)]
        if found and gone:
            who = ", ".join(facts.name(index) for index in indexes)
            yield Anomaly("torn transaction", f"{who}: {', '.join(found)} found, {', '.join(gone)} lost")


def non_monotonic_send(facts: Facts) -> Iterator[Anomaly]:
    last: dict[tuple[str, str], Send] = {}
    for operation in facts.history.operations:
        for send in operation.sends:
            place = _place_of(facts, send)
            if place is None:
                continue
            before = last.get((operation.process, send.key))
            before_place = None if before is None else _place_of(facts, before)
            if before is not None and before_place is not None and place < before_place:
                yield Anomaly(
                    "non-monotonic send",
                    f"{operation.process} sent {before.value} and then {send.value} to {send.key}; the log has them at "
                    f"{before_place} and {place}",
                )
            last[operation.process, send.key] = send


def _place_of(facts: Facts, send: Send) -> Place | None:
    if send.place is not None:
        return send.place
    return next((place for place, values in facts.places[send.key].items() if send.value in values), None)


def precommitted_read(facts: Facts) -> Iterator[Anomaly]:
    for index, operation in enumerate(facts.history.operations):
        own = {send.value: None for send in operation.sends}
        for poll in operation.polls:
            for key, reads in poll.reads.items():
                for read in reads:
                    if read.value in own:
                        yield Anomaly(
                            "precommitted read", f"{facts.name(index)} polled its own {read.value} from {key}"
                        )


def g1c(facts: Facts) -> Iterator[Anomaly]:
    """A cycle of "wrote before reader read" edges between operations that must have committed."""
    edges: dict[int, dict[int, None]] = {}
    for index in facts.committed:
        readers_of: dict[int, None] = edges.setdefault(index, {})
        for poll in facts.history.operations[index].polls:
            for reads in poll.reads.values():
                for read in reads:
                    writer = facts.writers.get(read.value)
                    if writer is not None and writer.operation != index and writer.operation in facts.committed:
                        readers_of[writer.operation] = None
    for cycle in _cycles(edges):
        yield Anomaly("G1c", " read from ".join(facts.name(index) for index in [*cycle, cycle[0]]))


def _cycles(edges: Mapping[int, Mapping[int, None]]) -> Iterator[list[int]]:
    """One cycle per back edge of a depth-first walk; none where there is no cycle."""
    done: dict[int, None] = {}
    for root in edges:
        if root in done:
            continue
        path: dict[int, Iterator[int]] = {root: iter(edges[root])}
        while path:
            node = next(reversed(path))
            target = next(path[node], None)
            if target is None:
                del path[node]
                done[node] = None
            elif target in path:
                nodes = list(path)
                yield nodes[nodes.index(target) :]
            elif target not in done:
                path[target] = iter(edges.get(target, {}))
