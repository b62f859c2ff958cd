"""Defines the values of a segment's pipeline: a sent entry, the caller that waits for it, and its state."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple, Protocol

from segments.log.sends.dedup import InFlight
from segments.log.sends.send_order import NOTHING, OP, Durable
from segments.log.tail_cache import LargeValueKey
from txnwire.errors import TxnError
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.numbers import Numbers
from watchers.visibility import Applied


class SendReply(Protocol):
    """Receives the outcome of one send: exactly one of the two methods is called, once."""

    def stored(self, position: Position | None, *, duplicate: bool) -> None: ...
    def failed(self, error: TxnError) -> None: ...


class IncomingEntry(NamedTuple):
    """One entry as its producer sent it, already checked against its own metadata. Its messages have the sequence ids
    from `sequence_id` on; `previous` is the last id of this producer's preceding entry here, -1 for none."""

    producer: str
    sequence_id: int
    messages: int
    previous: int
    txn_id: TxnId | None
    writer: int
    data: bytes
    publish_time_ms: int
    large_value: LargeValueKey | None = None
    numbers: Numbers | None = None
    """Set by numbered producers only."""

    deliver_at_ms: int = 0


class ProducerLine:
    """Queues one producer's admitted entries until they are appended. It outlives its connections (`users`)."""

    __slots__ = ("items", "key", "users")

    def __init__(self, key: tuple[str, int]) -> None:
        self.key = key
        self.items: deque[Item] = deque()
        self.users = 0


class Item:
    """An admitted entry, until it is acked or failed. `durable`: NOTHING, or OP once it may be appended, if it is first
    in its line; `SyncedEntries` knows the later stages. `admitted_s`: when it was admitted, by the monotonic clock."""

    __slots__ = ("admitted", "admitted_s", "durable", "entry", "line", "position")

    def __init__(
        self, entry: IncomingEntry, admitted: InFlight[SendReply], line: ProducerLine, admitted_s: float
    ) -> None:
        self.entry = entry
        self.admitted = admitted
        self.admitted_s = admitted_s
        self.line = line
        self.durable: Durable = OP if entry.txn_id is None else NOTHING
        self.position = EARLIEST


class Budget:
    """Counts bytes admitted but not yet stored, over all segments of a broker."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0


class SendsInFlight:
    """Counts what one segment has in flight; its bytes count in the broker's `budget`, too."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.entries = 0
        """Admitted, and neither acked nor failed."""
        self.bytes = 0
        """Of those, and of what is held back during a seal."""
        self.idle = asyncio.Event()
        """Set while no entry is in flight."""
        self.idle.set()

    def count(self, entries: int, size: int) -> None:
        self.entries += entries
        self.bytes += size
        self.budget.bytes += size
        if self.entries == 0:
            self.idle.set()
        else:
            self.idle.clear()


class PipelineEvents(Protocol):
    """Informs the segment of events in its pipeline."""

    def hold(self, txn_id: TxnId) -> None:
        """▲ Called before the first op of a transaction is sent: its decision must not be missed."""

    def let_go(self, txn_id: TxnId) -> None:
        """An op was refused; if nothing else of the transaction is held here, stop awaiting its decision."""

    def applied(self, applied: Applied) -> None:
        """A decision remembered while ops were in flight has taken effect."""

    def confirmed(self) -> None:
        """New entries are durable: readers may continue."""

    def rolled(self) -> None:
        """A ledger was closed and the next one opened."""

    def may_ack(self) -> bool:
        """Whether the broker's lease certainly holds."""

    def lost(self, error: TxnError) -> None:
        """The segment cannot continue here: ownership or the ledger is lost. May be called any number of times."""
