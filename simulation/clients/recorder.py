"""Records what clients do, outside of them: a killed client's begun work stays in the history.

In the simulation it is kept in memory beside the clients; real processes write every change of a draft to a journal
(`Recorder.changed`) before they go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from simulation.clients.careless import GivenUp
from simulation.judges.history import (
    Ack,
    Call,
    Ended,
    History,
    Operation,
    Outcome,
    Place,
    Poll,
    ReadObservation,
    Report,
    Send,
)
from txnclient.consuming.received.message import Message
from txnwire.ids import MessageId, TxnId
from txnwire.names import SegmentName


def place_of(message_id: MessageId) -> Place:
    """▲ A key moves to segments with ever higher ids: so the places of one key compare along the graph of segments."""
    segment = SegmentName.from_path(message_id.segment)
    return (segment.segment_id, *message_id.position, message_id.index)


def key_of(topic: str, key: bytes | None) -> str:
    return f"{topic.rpartition('/')[2]}/{(key or b'').decode()}"


@dataclass(slots=True)
class Draft:
    """An operation under way; unknown until its client says how it ended."""

    process: str
    invoked: float
    name: str
    completed: float | None = None
    outcome: Outcome = "unknown"
    sends: list[tuple[str, str]] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)
    polls: list[Poll] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    changed: Callable[[Draft], None] = lambda _: None
    shared: str = ""
    told: float | None = None
    left: bool = False
    calls: list[Call] = field(default_factory=list)
    asked: bool = False
    """Whether a request to commit it was sent."""

    def begun(self, txn_id: TxnId) -> None:
        self.name = f"{self.name} {txn_id}"
        self.changed(self)

    def sending(self, key: str, value: str) -> None:
        self.sends.append((key, value))
        self.changed(self)

    def stored(self, value: str, message_id: MessageId) -> None:
        if message_id.position.ledger_id:  # 0: stored by an earlier sending, its place is unknown
            self.places[value] = place_of(message_id)
            self.changed(self)

    def polled(self, polls: list[Poll]) -> None:
        self.polls += polls
        self.changed(self)

    def acking(self, acks: list[Ack]) -> None:
        self.acks += acks
        self.changed(self)

    def reported(self, report: Report) -> None:
        self.reports.append(report)
        self.changed(self)

    @contextmanager
    def call(self, what: str, values: Iterable[str] = ()) -> Iterator[None]:
        """A call whose promise is judged. It has no end if the process itself was cancelled during it."""
        number = len(self.calls)
        self.calls.append(Call(what=what, values=list(values)))
        self.changed(self)
        try:
            yield
        except Exception as error:
            self._call_ended(number, "cut" if isinstance(error, GivenUp) else "raised")
            raise
        self._call_ended(number, "returned")

    def _call_ended(self, number: int, ended: Ended) -> None:
        self.calls[number] = msgspec.structs.replace(self.calls[number], ended=ended)
        self.changed(self)

    def aborted(self, at: float) -> None:
        """Its process learned this at this time."""
        self.told = at
        self.reported("aborted")

    def operation(self) -> Operation:
        return Operation(
            process=self.process,
            invoked=self.invoked,
            completed=self.completed,
            outcome=self.outcome,
            sends=[Send(key=key, value=value, place=self.places.get(value)) for key, value in self.sends],
            polls=self.polls,
            acks=self.acks,
            reports=self.reports,
            name=self.name,
            shared=self.shared,
            told=self.told,
            left=self.left,
            calls=list(self.calls),
        )


class Recorder:
    """`changed` is called after every change of a draft, before its client goes on."""

    def __init__(self, now: Callable[[], float], changed: Callable[[Draft], None] = lambda _: None) -> None:
        self.now = now
        self.drafts: list[Draft] = []
        self._changed = changed

    def begin(self, process: str, name: str) -> Draft:
        draft = Draft(process, self.now(), name, changed=self._changed)
        self.drafts.append(draft)
        self._changed(draft)
        return draft

    def end(self, draft: Draft, outcome: Outcome) -> None:
        draft.outcome = outcome
        draft.completed = self.now()
        self._changed(draft)

    def history(self, *, drained: bool) -> History:
        return History(operations=[draft.operation() for draft in self.drafts], drained=drained)


class PolledPositions:
    """Separates one consumer's deliveries under different assignments and rewinds: order counts only within one
    (`Poll.assignment`), and none is older than when its predecessor was last seen. A reader (`subscription` None) has
    one, over all segments and their owners: it goes on where it is, parents first."""

    def __init__(self, now: Callable[[], float], subscription: str | None) -> None:
        self._now = now
        self._subscription = subscription
        self._current: dict[str, tuple[object, int, int, float]] = {}
        """segment → holder, epoch, number, earliest possible begin"""
        self._seen_at: dict[str, float] = {}
        self._opened_at = now()
        self._numbers = 0

    def polls(self, messages: Iterable[Message]) -> list[Poll]:
        """One poll per run of messages of one segment and assignment, in the order of receipt."""
        polls: list[Poll] = []
        for message in messages:
            assignment, since = self._assignment(message)
            if not polls or polls[-1].assignment != assignment:
                polls.append(
                    Poll(
                        reads={}, at=self._now(), assignment=assignment, assigned_at=since,
                        subscription=self._subscription,
                    )
                )  # fmt: skip
            key = key_of(message.topic, message.key)
            read = ReadObservation(place_of(message.id), message.value.decode())
            polls[-1].reads.setdefault(key, []).append(read)
        return polls

    def _assignment(self, message: Message) -> tuple[int, float]:
        if self._subscription is None:
            return 0, self._opened_at
        entry = message.entry
        known = self._current.get(entry.segment)
        if known is None or known[0] is not entry.holder or known[1] != entry.epoch:
            self._numbers += 1
            since = self._seen_at.get(entry.segment, self._opened_at)
            known = (entry.holder, entry.epoch, self._numbers, since)
            self._current[entry.segment] = known
        self._seen_at[entry.segment] = self._now()
        return known[2], known[3]
