"""The history checker: every anomaly of SCENARIOS, "The history checker", from what clients did and saw alone. Pure.

The rules are Jepsen's for transactional logs (its Kafka workload), extended by acks, snapshots and outcomes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from simulation.history import History, Operation, Outcome, Place, Poll, Read, Send


@dataclass(frozen=True, slots=True)
class Anomaly:
    """`kind` is the name in SCENARIOS' table; `detail` says which values, places and processes."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


@dataclass(frozen=True, slots=True)
class _Writer:
    """Who sent a value: the operation's index in the history and the send itself."""

    operation: int
    send: Send


@dataclass(slots=True)
class _Facts:
    """What the rules look things up in, gathered in one pass."""

    history: History
    writers: dict[str, _Writer] = field(default_factory=dict)
    claims: dict[str, dict[Place, dict[str, None]]] = field(default_factory=lambda: defaultdict(dict))
    """key → place → the values anybody saw there or was told are there, aborted ones too"""
    places: dict[str, dict[Place, dict[str, None]]] = field(default_factory=lambda: defaultdict(dict))
    """the same, without what is known by sends that did not commit: the versions of a key"""
    seen: dict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    """key → values that an ok poll returned"""
    highest: dict[str, Place] = field(default_factory=dict)
    """key → highest place an ok poll read"""
    committed: dict[int, None] = field(default_factory=dict)
    """operations that must have committed"""
    order: dict[str, list[Place]] = field(default_factory=dict)
    """key → places of its versions, rising"""

    def value_at(self, key: str, place: Place) -> str:
        return next(iter(self.places[key][place]))

    def name(self, index: int) -> str:
        operation = self.history.operations[index]
        return f"{operation.process}#{index}" + (f" ({operation.name})" if operation.name else "")


def _gather(history: History) -> _Facts:
    facts = _Facts(history)
    for index, operation in enumerate(history.operations):
        for send in operation.sends:
            facts.writers.setdefault(send.value, _Writer(index, send))
            if send.place is not None:
                facts.claims[send.key].setdefault(send.place, {})[send.value] = None
        for poll in operation.polls:
            _gather_poll(facts, poll)
    _find_committed(facts)
    for index in facts.committed:
        for send in history.operations[index].sends:
            if send.place is not None:
                facts.places[send.key].setdefault(send.place, {})[send.value] = None
    facts.order = {key: sorted(places) for key, places in facts.places.items()}
    return facts


def _gather_poll(facts: _Facts, poll: Poll) -> None:
    for key, reads in poll.reads.items():
        for read in reads:
            facts.claims[key].setdefault(read.place, {})[read.value] = None
            facts.places[key].setdefault(read.place, {})[read.value] = None
            facts.seen[key][read.value] = None
            facts.highest[key] = max(facts.highest.get(key, read.place), read.place)


def _find_committed(facts: _Facts) -> None:
    for index, operation in enumerate(facts.history.operations):
        seen = any(send.value in facts.seen[send.key] for send in operation.sends)
        if operation.outcome == "ok" or (operation.outcome == "unknown" and (seen or "committed" in operation.reports)):
            facts.committed[index] = None


def _committed_sends(facts: _Facts) -> Iterator[tuple[int, Send]]:
    for index in facts.committed:
        for send in facts.history.operations[index].sends:
            yield index, send


def _inconsistent_positions(facts: _Facts) -> Iterator[Anomaly]:
    for key, places in facts.claims.items():
        for place, values in places.items():
            if len(values) > 1:
                yield Anomaly("inconsistent positions", f"{key} at {place} holds {', '.join(values)}")


def _duplicate(facts: _Facts) -> Iterator[Anomaly]:
    for key, places in facts.claims.items():
        at: dict[str, list[Place]] = defaultdict(list)
        for place, values in places.items():
            for value in values:
                at[value].append(place)
        for value, found in at.items():
            if len(found) > 1:
                yield Anomaly("duplicate", f"{value} stands in {key} at {' and '.join(map(str, sorted(found)))}")


def _aborted_read(facts: _Facts) -> Iterator[Anomaly]:
    for key, values in facts.seen.items():
        for value in values:
            writer = facts.writers.get(value)
            if writer is not None and facts.history.operations[writer.operation].outcome == "failed":
                yield Anomaly("aborted read", f"{value} of {key} was read; {facts.name(writer.operation)} had failed")


def _is_lost(facts: _Facts, send: Send) -> bool:
    if send.value in facts.seen[send.key] or send.place is None:
        return False
    highest = facts.highest.get(send.key)
    return highest is not None and send.place <= highest


def _lost_write(facts: _Facts) -> Iterator[Anomaly]:
    for index, send in _committed_sends(facts):
        if _is_lost(facts, send):
            yield Anomaly(
                "lost write",
                f"{send.value} of {facts.name(index)} at {send.key} {send.place} was read by nobody, though "
                f"{facts.highest[send.key]} was",
            )


def _is_unseen(facts: _Facts, send: Send) -> bool:
    return facts.history.drained and send.value not in facts.seen[send.key]


def _unseen(facts: _Facts) -> Iterator[Anomaly]:
    for index, send in _committed_sends(facts):
        if _is_unseen(facts, send):
            yield Anomaly(
                "unseen", f"{send.value} of {facts.name(index)} in {send.key} is still unread after the drain"
            )


def _torn_transaction(facts: _Facts) -> Iterator[Anomaly]:
    for indexes in _parts(facts):
        sends = [send for index in indexes for send in facts.history.operations[index].sends]
        found = [send.value for send in sends if send.value in facts.seen[send.key]]
        gone = [send.value for send in sends if _is_lost(facts, send) or _is_unseen(facts, send)]
        if found and gone:
            who = ", ".join(facts.name(index) for index in indexes)
            yield Anomaly("torn transaction", f"{who}: {', '.join(found)} found, {', '.join(gone)} lost")


def _parts(facts: _Facts) -> Iterator[list[int]]:
    """The operations that must have committed, those of one transaction together."""
    shared: dict[str, list[int]] = {}
    for index in facts.committed:
        name = facts.history.operations[index].shared
        if name:
            shared.setdefault(name, []).append(index)
        else:
            yield [index]
    yield from shared.values()


def _acked_values(facts: _Facts, *outcomes: Outcome) -> dict[str, dict[str, None]]:
    """subscription → values acked by operations that ended so."""
    acked: dict[str, dict[str, None]] = defaultdict(dict)
    for operation in facts.history.operations:
        if operation.outcome in outcomes:
            for ack in operation.acks:
                acked[ack.subscription][ack.value] = None
    return acked


@dataclass(slots=True)
class _Reading:
    """How far one process has read one key under one assignment."""

    assignment: int
    highest: Place | None = None
    seen: dict[Place, None] = field(default_factory=dict)


def _poll_order(facts: _Facts) -> Iterator[Anomaly]:
    """poll skip and non-monotonic poll, within a poll and between polls of one process with unchanged assignment.

    What may have been acked need not come (again). What was acked by an operation that failed comes again, and by one
    of unknown outcome may do so: a crash may forget plain acks (DESIGN §6). What a writer has acked in a named
    transaction stays away until somebody decides it, while that writer's process goes on with other things.
    """
    acked = _acked_values(facts, "ok", "unknown")
    for operation in facts.history.operations:
        if operation.shared:
            for ack in operation.acks:
                acked[ack.subscription][ack.value] = None
    returning = _acked_values(facts, "unknown", "failed")
    readings: dict[tuple[str, str | None, str | None, str], _Reading] = {}
    for index, operation in enumerate(facts.history.operations):
        for poll in operation.polls:
            subscription = poll.subscription or ""
            for key, reads in poll.reads.items():
                reader = (operation.process, poll.subscription, poll.snapshot, key)
                reading = readings.get(reader)
                if reading is None or reading.assignment != poll.assignment:
                    # What it has read before and acked in vain comes again under the next assignment, too.
                    reading = readings[reader] = _Reading(poll.assignment, seen={} if reading is None else reading.seen)
                for read in reads:
                    repeatable = read.place in reading.seen and read.value in returning[subscription]
                    if reading.highest is not None and not repeatable:
                        # A snapshot passes over what was pending in it, whatever became of that: see "torn snapshot".
                        anomalies = _judge_step(facts, index, key, reading.highest, read, acked[subscription])
                        yield from (one for one in anomalies if poll.snapshot is None or one.kind != "poll skip")
                    reading.highest = max(reading.highest or read.place, read.place)
                    reading.seen[read.place] = None


def _holder_order(facts: _Facts) -> Iterator[Anomaly]:
    """Non-monotonic poll between holders: a process reads on before what its predecessor had acked in an open
    transaction was decided, and is given it afterwards, when that has failed (P12)."""
    failed_acks: dict[tuple[str, str], str] = {}
    forgettable = _acked_values(facts, "unknown")
    for operation in facts.history.operations:
        if operation.outcome == "failed":
            for ack in operation.acks:
                failed_acks[ack.subscription, ack.value] = operation.process
    seen: dict[tuple[str, str, str], dict[Place, None]] = defaultdict(dict)
    for index, operation in enumerate(facts.history.operations):
        for poll in operation.polls:
            if poll.subscription is None:
                continue
            for key, reads in poll.reads.items():
                before = seen[operation.process, poll.subscription, key]
                for read in reads:
                    predecessor = failed_acks.get((poll.subscription, read.value), operation.process)
                    late = predecessor != operation.process and read.value not in forgettable[poll.subscription]
                    if late and before and read.place < max(before) and read.place not in before:
                        yield Anomaly(
                            "non-monotonic poll",
                            f"{facts.name(index)} was given {read.value} of {key} at {read.place} after {max(before)}: "
                            f"{predecessor} had acked it in a transaction that failed",
                        )
                    before[read.place] = None


def _judge_step(
    facts: _Facts, index: int, key: str, before: Place, read: Read, acked: Mapping[str, None]
) -> Iterator[Anomaly]:
    if read.place <= before:
        yield Anomaly(
            "non-monotonic poll", f"{facts.name(index)} read {read.value} of {key} at {read.place} after {before}"
        )
        return
    order = facts.order[key]
    between = order[bisect_right(order, before) : bisect_right(order, read.place) - 1]
    skipped = [value for place in between if (value := facts.value_at(key, place)) not in acked]
    if skipped:
        yield Anomaly(
            "poll skip",
            f"{facts.name(index)} went from {before} to {read.place} of {key} and passed over {', '.join(skipped)}",
        )


def _non_monotonic_send(facts: _Facts) -> Iterator[Anomaly]:
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


def _place_of(facts: _Facts, send: Send) -> Place | None:
    if send.place is not None:
        return send.place
    return next((place for place, values in facts.places[send.key].items() if send.value in values), None)


def _precommitted_read(facts: _Facts) -> Iterator[Anomaly]:
    for index, operation in enumerate(facts.history.operations):
        own = {send.value: None for send in operation.sends}
        for poll in operation.polls:
            for key, reads in poll.reads.items():
                for read in reads:
                    if read.value in own:
                        yield Anomaly(
                            "precommitted read", f"{facts.name(index)} polled its own {read.value} from {key}"
                        )


def _g1c(facts: _Facts) -> Iterator[Anomaly]:
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


def _two_outcomes(facts: _Facts) -> Iterator[Anomaly]:
    for index, operation in enumerate(facts.history.operations):
        committed = operation.outcome == "ok" or "committed" in operation.reports
        aborted = operation.outcome == "failed" or "aborted" in operation.reports
        if committed and aborted:
            told = ", ".join(operation.reports) or "nothing else"
            yield Anomaly("two outcomes", f"{facts.name(index)} ended {operation.outcome} and was reported {told}")


@dataclass(frozen=True, slots=True)
class _Delivery:
    operation: int
    poll: Poll


def _ack_leak(facts: _Facts) -> Iterator[Anomaly]:
    deliveries: dict[tuple[str, str], list[_Delivery]] = defaultdict(list)
    for index, operation in enumerate(facts.history.operations):
        for poll in operation.polls:
            if poll.subscription is not None:
                for reads in poll.reads.values():
                    for read in reads:
                        deliveries[poll.subscription, read.value].append(_Delivery(index, poll))
    # What another operation acks needs not come again to one that failed later, out of a buffer gone stale meanwhile.
    gone = _acked_values(facts, "ok", "unknown")
    taken: dict[tuple[str, str], int] = {}
    for index, operation in enumerate(facts.history.operations):
        for ack in operation.acks:
            subject = (ack.subscription, ack.value)
            if index in facts.committed:
                if subject in taken:
                    yield Anomaly(
                        "ack leak",
                        f"{ack.value} was acked on {ack.subscription} by {facts.name(taken[subject])} and by "
                        f"{facts.name(index)}, which both committed",
                    )
                taken[subject] = index
                yield from _delivered_again(facts, index, operation, ack.value, deliveries[subject])
            elif (
                operation.outcome == "failed"
                and ack.value not in gone[ack.subscription]
                and _never_again(facts, deliveries[subject], ack.at)
            ):
                yield Anomaly(
                    "ack leak",
                    f"{ack.value} was acked on {ack.subscription} by {facts.name(index)}, which failed, and was "
                    "never delivered again",
                )


def _never_again(facts: _Facts, deliveries: list[_Delivery], since: float) -> bool:
    return facts.history.drained and not any(delivery.poll.at > since for delivery in deliveries)


def _delivered_again(
    facts: _Facts, index: int, operation: Operation, value: str, deliveries: list[_Delivery]
) -> Iterator[Anomaly]:
    if operation.completed is None or operation.outcome != "ok":
        return
    for delivery in deliveries:
        if delivery.poll.assigned_at > operation.completed:
            yield Anomaly(
                "ack leak",
                f"{value} was acked by {facts.name(index)}, which committed, and was delivered again to "
                f"{facts.name(delivery.operation)}",
            )


def _torn_snapshot(facts: _Facts) -> Iterator[Anomaly]:
    values: dict[str, dict[str, None]] = defaultdict(dict)
    covered: dict[str, dict[str, None]] = defaultdict(dict)
    for operation in facts.history.operations:
        for poll in operation.polls:
            if poll.snapshot is not None:
                for key, reads in poll.reads.items():
                    covered[poll.snapshot][key] = None
                    values[poll.snapshot].update((read.value, None) for read in reads)
    for snapshot, held in values.items():
        for indexes in _parts(facts):
            sends = [send for index in indexes for send in facts.history.operations[index].sends]
            sends = [send for send in sends if send.key in covered[snapshot]]
            missing = [send.value for send in sends if send.value not in held]
            if missing and len(missing) < len(sends):
                who = ", ".join(facts.name(index) for index in indexes)
                yield Anomaly("torn snapshot", f"{snapshot} holds {who} without {', '.join(missing)}")


RULES: dict[str, Callable[[_Facts], Iterator[Anomaly]]] = {
    "inconsistent positions": _inconsistent_positions,
    "duplicate": _duplicate,
    "aborted read": _aborted_read,
    "lost write": _lost_write,
    "torn transaction": _torn_transaction,
    "unseen": _unseen,
    "poll skip / non-monotonic poll": _poll_order,
    "non-monotonic poll": _holder_order,
    "non-monotonic send": _non_monotonic_send,
    "precommitted read": _precommitted_read,
    "G1c": _g1c,
    "two outcomes": _two_outcomes,
    "ack leak": _ack_leak,
    "torn snapshot": _torn_snapshot,
}


def check(history: History) -> list[Anomaly]:
    """Every anomaly of `history`, in the order of SCENARIOS' table. An empty list: nothing is wrong with it."""
    facts = _gather(history)
    return [anomaly for rule in RULES.values() for anomaly in rule(facts)]
