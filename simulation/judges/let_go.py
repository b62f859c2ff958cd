"""Judges transactions that their callers have let go: a cancelled `begin`, a block of `client.transaction()` left by an
exception or cancelled at its commit. None may stay open until its deadline (C5).

The caller of a cancelled `begin` does not know its transaction. So each gets a unique lifetime, which identifies its
header.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulation.judges.invariants import AFTERMATH_S
from txnstore import keys
from txnstore.records import OPEN, Header, decode
from txnstore.store import Event, EventKind
from txnwire.ids import TxnId

SHORTEST_MS = 12_001
LIFETIMES = 1_900
"""Lifetimes after which they repeat."""
ENDED_S = 6.0
"""Longest time from the release to the end without obstacles: about half of a lifetime."""


@dataclass(slots=True)
class Lifetimes:
    """The callers' knowledge. `let_go`: lifetime in ms → when its transaction was let go."""

    let_go: dict[int, float] = field(default_factory=dict)
    _given: int = 0

    def next_s(self) -> float:
        """A lifetime that no open transaction has."""
        lifetime_ms = SHORTEST_MS + self._given % LIFETIMES
        self._given += 1
        self.let_go.pop(lifetime_ms, None)
        return lifetime_ms / 1000

    def end(self, lifetime_s: float, now: float) -> None:
        """Its caller has let go of it."""
        self.let_go[round(lifetime_s * 1000)] = now


class LetGoJudge:
    """Call it with every change and, now and then, the time. `findings`: one per transaction. `calm_since`: when the
    last fault ended. `ended`: how many of the released ones were open and have ended."""

    def __init__(self, lifetimes: Lifetimes, calm_since: Callable[[], float]) -> None:
        self._lifetimes = lifetimes
        self._calm_since = calm_since
        self._open: dict[TxnId, tuple[int, float]] = {}
        self._found: dict[TxnId, str] = {}
        self.ended = 0

    @property
    def findings(self) -> list[str]:
        return list(self._found.values())

    def saw(self, at: float, events: Sequence[Event]) -> None:
        for event in events:
            if event.record.key.startswith(keys.TXN) and event.kind is EventKind.PUT:
                self._saw_header(at, keys.txn_of(event.record.key), event.record.value, event.record.key)

    def _saw_header(self, at: float, txn_id: TxnId, value: bytes, key: bytes) -> None:
        header = decode(Header, value, key=key)
        lifetime_ms = header.timeout_ms - header.created_ms
        if header.state != OPEN:
            self.ended += self._open.pop(txn_id, (0, 0.0))[0] in self._lifetimes.let_go
        elif SHORTEST_MS <= lifetime_ms < SHORTEST_MS + LIFETIMES:
            self._open[txn_id] = (lifetime_ms, at)

    def look_at_the_time(self, at: float) -> None:
        calm = self._calm_since() + AFTERMATH_S
        for txn_id, (lifetime_ms, opened) in self._open.items():
            let_go = self._lifetimes.let_go.get(lifetime_ms)
            if let_go is not None and at > max(let_go, opened, calm) + ENDED_S:
                self._found.setdefault(
                    txn_id, f"{txn_id}, begun at {opened:.3f} and let go of at {let_go:.3f}, is still open at {at:.1f}"
                )
