"""Rules about the order in which readers get values. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import ChainMap, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from simulation.judges.anomalies.facts import (
    Anomaly,
    Facts,
    acked_values,
)
from simulation.judges.history import Operation, Place, Poll, ReadObservation


@dataclass(slots=True)
class _PolledKey:
    """How far one process has read one key under one assignment."""

    assignment: int
    highest: Place | None = None
    seen: dict[Place, None] = field(default_factory=dict)


def poll_order(facts: Facts) -> Iterator[Anomaly]:
    """poll skip and non-monotonic poll, within a poll and between polls of one process with unchanged assignment.

    A value that may have been acked need not come (again). One acked by a failed operation comes again, and by one of
    unknown outcome may come: a crash may forget plain acks (DESIGN §6). A writer's acks in a named transaction hold
    values back until it is decided, while that writer's process goes on. A process' acks in a transaction that it left
    open hold values back from this process (another holder waits for them). An operation does not get again what it has
    acked itself, even if the abort of another one restarts its consumer.
    """
    acked = acked_values(facts, "ok", "unknown")
    for operation in facts.history.operations:
        if operation.shared:
            for ack in operation.acks:
                acked[ack.subscription][ack.value] = None
    returning = acked_values(facts, "unknown", "failed")
    left_open = _left_open(facts)
    readings: dict[tuple[str, str | None, str | None, str], _PolledKey] = {}
    for index, operation in enumerate(facts.history.operations):
        for poll in operation.polls:
            subscription = poll.subscription or ""
            left = left_open[operation.process, subscription]
            away = ChainMap(
                acked[subscription],
                {value: None for value, at in left.items() if at <= poll.at},
                {ack.value: None for ack in operation.acks if ack.subscription == subscription and ack.at < poll.at},
            )
            for key, reads in poll.reads.items():
                reader = (operation.process, poll.subscription, poll.snapshot, key)
                reading = readings.get(reader)
                if reading is None or reading.assignment != poll.assignment:
                    # Values read before with acks that failed come again under the next assignment, too.
                    reading = readings[reader] = _PolledKey(
                        poll.assignment, seen={} if reading is None else reading.seen
                    )
                for read in reads:
                    repeatable = read.place in reading.seen and read.value in returning[subscription]
                    if reading.highest is not None and not repeatable:
                        # A snapshot skips what was pending in it, however that ended: see "torn snapshot".
                        anomalies = _judge_step(facts, index, key, reading.highest, read, away)
                        yield from (one for one in anomalies if poll.snapshot is None or one.kind != "poll skip")
                    reading.highest = max(reading.highest or read.place, read.place)
                    reading.seen[read.place] = None


def _left_open(facts: Facts) -> dict[tuple[str, str], dict[str, float]]:
    """(process, subscription) → value → when this process first acked it in a transaction that it left open."""
    left: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for operation in facts.history.operations:
        if operation.left:
            for ack in operation.acks:
                left[operation.process, ack.subscription].setdefault(ack.value, ack.at)
    return left


def _judge_step(
    facts: Facts, index: int, key: str, before: Place, read: ReadObservation, away: Mapping[str, None]
) -> Iterator[Anomaly]:
    if read.place <= before:
        yield Anomaly(
            "non-monotonic poll", f"{facts.name(index)} read {read.value} of {key} at {read.place} after {before}"
        )
        return
    order = facts.order[key]
    between = order[bisect_right(order, before) : bisect_right(order, read.place) - 1]
    skipped = [value for place in between if (value := facts.value_at(key, place)) not in away]
    if skipped:
        yield Anomaly(
            "poll skip",
            f"{facts.name(index)} went from {before} to {read.place} of {key} and passed over {', '.join(skipped)}",
        )


def holder_order(facts: Facts) -> Iterator[Anomaly]:
    """Non-monotonic poll between holders: a process reads on before its predecessor's acks in an open transaction are
    decided, and gets those values afterwards, when the transaction has failed (P12)."""
    failed_acks: dict[tuple[str, str], str] = {}
    forgettable = acked_values(facts, "unknown")
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


def parents_first(facts: Facts) -> Iterator[Anomaly]:
    """poll skip and non-monotonic poll over the segments of a key: a stream subscription gets a segment once everything
    before it is acked (S7), and then nothing of what stands before it ever again."""
    acked = _first_acks(facts)
    reads_of: dict[tuple[str, str], list[tuple[ReadObservation, Poll, int]]] = defaultdict(list)
    for index, operation in enumerate(facts.history.operations):
        for poll in operation.polls:
            if poll.subscription is not None:
                for key, reads in poll.reads.items():
                    reads_of[poll.subscription, key] += [(read, poll, index) for read in reads]
    for (subscription, key), found in reads_of.items():
        segments = sorted({place[0]: None for place in facts.order[key]})
        if len(segments) > 1:
            yield from _skipped_parents(facts, key, segments, acked[subscription], found)
            yield from _parents_again(facts, key, found)


def _first_acks(facts: Facts) -> dict[str, dict[str, float]]:
    """Subscription → value → time of its first ack that may have succeeded."""
    acked: dict[str, dict[str, float]] = defaultdict(dict)
    for operation in facts.history.operations:
        if operation.outcome != "failed":
            for ack in operation.acks:
                acked[ack.subscription][ack.value] = min(acked[ack.subscription].get(ack.value, ack.at), ack.at)
    return acked


def _skipped_parents(
    facts: Facts,
    key: str,
    segments: list[int],
    acked: Mapping[str, float],
    found: list[tuple[ReadObservation, Poll, int]],
) -> Iterator[Anomaly]:
    """Reads in a segment while something before it had not been acked. Values read at the drain are acked there,
    outside the history: `_parents_again` and "unseen" judge those."""
    last: dict[int, tuple[float, str]] = {}
    """segment → when the last value before it was acked, and which one that was"""
    latest = (float("-inf"), "")
    places = iter(facts.order[key])
    place = next(places, None)
    drained_by_drain = {read.value: poll.at for read, poll, index in found if _is_drain(facts, index)}
    for segment in segments:
        while place is not None and place[0] < segment:
            value = facts.value_at(key, place)
            at = min(acked.get(value, float("inf")), drained_by_drain.get(value, float("inf")))
            latest = max(latest, (at, value))
            place = next(places, None)
        last[segment] = latest
    for read, poll, index in found:
        at, value = last.get(read.place[0], (float("-inf"), ""))
        if poll.at < at:
            yield Anomaly(
                "poll skip",
                f"{facts.name(index)} was given {read.value} of {key} at {read.place}, before {value} of a segment "
                "before it was acked",
            )


def _is_drain(facts: Facts, index: int) -> bool:
    return facts.history.operations[index].name == "drain"


def _parents_again(facts: Facts, key: str, found: list[tuple[ReadObservation, Poll, int]]) -> Iterator[Anomaly]:
    first: dict[int, tuple[float, ReadObservation]] = {}
    """segment → when something of it was read first"""
    for read, poll, _ in found:
        if read.place[0] not in first or poll.at < first[read.place[0]][0]:
            first[read.place[0]] = (poll.at, read)
    for read, poll, index in found:
        behind = [seen for segment, seen in first.items() if segment > read.place[0]]
        if behind and poll.assigned_at > (earliest := min(behind, key=lambda seen: seen[0]))[0]:
            yield Anomaly(
                "non-monotonic poll",
                f"{facts.name(index)} was given {read.value} of {key} at {read.place} after {earliest[1].value} at "
                f"{earliest[1].place}, in a segment behind it",
            )


@dataclass(frozen=True, slots=True)
class _Owed:
    """Values acked by an operation that failed: due again before anything that stands behind them."""

    operation: int
    value: str
    place: Place
    told: float


def past_failed_acks(facts: Facts) -> Iterator[Anomaly]:
    """read past its own failed ack: a process reads past a value that its own transaction had acked before it learned
    of the failure, and that no consumer has got since. Its consumer must drop what it holds and go back (DESIGN §6).
    Values that another process has acked meanwhile are not due, nor those acked by a writer of a named transaction,
    whose end its process may not know."""
    gone = acked_values(facts, "ok", "unknown")
    given, acks = _given(facts), _acks(facts)
    owed: dict[tuple[str, str, str], list[_Owed]] = defaultdict(list)
    for index, operation in enumerate(facts.history.operations):
        for poll in operation.polls:
            if poll.subscription is None:
                continue
            for key, reads in poll.reads.items():
                reader = (operation.process, poll.subscription, key)
                kept = []
                for one in owed.get(reader, ()):
                    subject = (poll.subscription, one.value)
                    came = any(one.told < at <= poll.at for at in given[subject])
                    if came or any(who != one.operation and at <= poll.at for who, at in acks[subject]):
                        continue
                    beyond = next((read for read in reads if read.place > one.place and poll.at > one.told), None)
                    if beyond is None:
                        kept.append(one)
                        continue
                    yield Anomaly(
                        "read past its own failed ack",
                        f"{facts.name(index)} was given {beyond.value} of {key} at {beyond.place}, and not first "
                        f"{one.value} at {one.place}, which it had acked in {facts.name(one.operation)}, which failed",
                    )
                if reader in owed:
                    owed[reader] = kept
        for key, subscription, one in _owed_by(facts, index, operation):
            if one.value not in gone[subscription]:
                owed[operation.process, subscription, key].append(one)


def _owed_by(facts: Facts, index: int, operation: Operation) -> Iterator[tuple[str, str, _Owed]]:
    """(key, subscription, what is due)"""
    if operation.outcome != "failed" or operation.told is None or operation.shared:
        return
    where = {
        read.value: (key, read.place) for poll in operation.polls for key, reads in poll.reads.items() for read in reads
    }
    for ack in operation.acks:
        if ack.value in where:
            key, place = where[ack.value]
            yield key, ack.subscription, _Owed(index, ack.value, place, operation.told)


def _given(facts: Facts) -> dict[tuple[str, str], list[float]]:
    """(subscription, value) → when any consumer got it."""
    given: dict[tuple[str, str], list[float]] = defaultdict(list)
    for operation in facts.history.operations:
        for poll in operation.polls:
            if poll.subscription is not None:
                for reads in poll.reads.values():
                    for read in reads:
                        given[poll.subscription, read.value].append(poll.at)
    return given


def _acks(facts: Facts) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """(subscription, value) → the operations that acked it, and when."""
    acks: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    for index, operation in enumerate(facts.history.operations):
        for ack in operation.acks:
            acks[ack.subscription, ack.value].append((index, ack.at))
    return acks
