"""Facts of a history, gathered in one pass for lookups by the rules. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from simulation.judges.history import History, Outcome, Place, Poll, Send


@dataclass(frozen=True, slots=True)
class Anomaly:
    """`kind` is the name in SCENARIOS' table; `detail` says which values, places and processes."""

    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Writer:
    """Who sent a value: the operation's index in the history and the send itself."""

    operation: int
    send: Send


@dataclass(slots=True)
class Facts:
    """Facts for lookups by the rules, gathered in one pass."""

    history: History
    writers: dict[str, Writer] = field(default_factory=dict)
    claims: dict[str, dict[Place, dict[str, None]]] = field(default_factory=lambda: defaultdict(dict))
    """key → place → the values seen or reported there, aborted ones too"""
    places: dict[str, dict[Place, dict[str, None]]] = field(default_factory=lambda: defaultdict(dict))
    """the same, without values known only by sends that did not commit: the versions of a key"""
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


def gather(history: History) -> Facts:
    facts = Facts(history)
    for index, operation in enumerate(history.operations):
        for send in operation.sends:
            facts.writers.setdefault(send.value, Writer(index, send))
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


def _gather_poll(facts: Facts, poll: Poll) -> None:
    for key, reads in poll.reads.items():
        for read in reads:
            facts.claims[key].setdefault(read.place, {})[read.value] = None
            facts.places[key].setdefault(read.place, {})[read.value] = None
            facts.seen[key][read.value] = None
            facts.highest[key] = max(facts.highest.get(key, read.place), read.place)


def _find_committed(facts: Facts) -> None:
    for index, operation in enumerate(facts.history.operations):
        seen = any(send.value in facts.seen[send.key] for send in operation.sends)
        if operation.outcome == "ok" or (operation.outcome == "unknown" and (seen or "committed" in operation.reports)):
            facts.committed[index] = None


def committed_sends(facts: Facts) -> Iterator[tuple[int, Send]]:
    for index in facts.committed:
        for send in facts.history.operations[index].sends:
            yield index, send


def is_lost(facts: Facts, send: Send) -> bool:
    if send.value in facts.seen[send.key] or send.place is None:
        return False
    highest = facts.highest.get(send.key)
    return highest is not None and send.place <= highest


def is_unseen(facts: Facts, send: Send) -> bool:
    return facts.history.drained and send.value not in facts.seen[send.key]


def topic_of(key: str) -> str:
    return key.partition("/")[0]


def parts(facts: Facts) -> Iterator[list[int]]:
    """The operations that must have committed, grouped by transaction."""
    shared: dict[str, list[int]] = {}
    for index in facts.committed:
        name = facts.history.operations[index].shared
        if name:
            shared.setdefault(name, []).append(index)
        else:
            yield [index]
    yield from shared.values()


def acked_values(facts: Facts, *outcomes: Outcome) -> dict[str, dict[str, None]]:
    """subscription → values acked by operations that ended so."""
    acked: dict[str, dict[str, None]] = defaultdict(dict)
    for operation in facts.history.operations:
        if operation.outcome in outcomes:
            for ack in operation.acks:
                acked[ack.subscription][ack.value] = None
    return acked
