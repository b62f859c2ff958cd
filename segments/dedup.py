"""Deduplication and order of sends in one segment, as a pure core (DESIGN §7, "Dedup and order").

A producer is (name, random incarnation). Its entries form a chain: each send names its predecessor's last sequence id
here, and is admitted only right behind it ▲. So what is stored of a producer is always a prefix of what it sent, a
failure fails all behind it (L8), and a sequence id at or below the last stored one is surely a repeat.

    admit ──► Entry in flight ──► stored        acked, in order
                    └──────────► failed         with all behind it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from txnwire.ids import Position

WaiterT = TypeVar("WaiterT")


class Verdict(Enum):
    NEW = "store it"
    ATTACHED = "the same entry is on its way: its outcome is shared"
    STORED = "stored before: ack again"


class InFlight(Generic[WaiterT]):
    """An admitted entry that is not stored yet. `waiters`: everyone to be answered with its outcome, in order (the first
    send and its repeats). `failed`: it, or one before it, failed; it must not be appended."""

    __slots__ = ("failed", "first", "last", "producer", "waiters")

    first: int
    last: int
    waiters: list[WaiterT]
    failed: bool


class Admission(NamedTuple, Generic[WaiterT]):
    """`entry` for NEW and ATTACHED. `position` for STORED: None where it is not known any more."""

    verdict: Verdict
    entry: InFlight[WaiterT] | None = None
    position: Position | None = None


class Connected(NamedTuple):
    """`token` names this connection of the producer in `admit`; `fenced` is the one it has taken the place of."""

    token: int
    last_sequence_id: int
    fenced: int | None


@dataclass(frozen=True, slots=True)
class DedupStatistics:
    producers: int
    connected: int
    in_flight: int


class Dedup(Generic[WaiterT]):
    """`idle_s`: how long a producer without a connection is remembered. Times are monotonic seconds."""

    def __init__(self, *, idle_s: float) -> None:
        raise NotImplementedError

    # ---- connections

    def connect(self, name: str, incarnation: int, now_s: float) -> Connected:
        """▲ One live connection per name: a second one, of whatever incarnation, fences the first."""
        raise NotImplementedError

    def disconnect(self, token: int, now_s: float) -> None:
        """Entries in flight go on. Idempotent."""
        raise NotImplementedError

    # ---- sends

    def admit(
        self, token: int, sequence_id: int, count: int, previous_sequence_id: int, waiter: WaiterT
    ) -> Admission[WaiterT]:
        """Raises `ProducerFenced`; `SequenceGap` where the predecessor is not the last one here; `InvalidArgument` where
        the ids are impossible, or overlap with an entry of another extent (same id, other content)."""
        raise NotImplementedError

    def stored(self, entry: InFlight[WaiterT], position: Position, now_s: float) -> Sequence[WaiterT]:
        """Durable. Called in order per producer. Returns who is to be acked."""
        raise NotImplementedError

    def failed(self, entry: InFlight[WaiterT]) -> Sequence[InFlight[WaiterT]]:
        """▲ It and everything admitted behind it have failed: returned in order, marked `failed`, for their waiters."""
        raise NotImplementedError

    def last_sequence_id(self, name: str, incarnation: int) -> int:
        """Of the last stored entry, -1 for none."""
        raise NotImplementedError

    # ---- recovery and housekeeping

    def replay(self, name: str, incarnation: int, sequence_id: int, count: int, position: Position, now_s: float) -> None:
        """An entry found in the ledger tail behind the snapshot, in order."""
        raise NotImplementedError

    def snapshot(self, now_s: float) -> bytes:
        """Of everything stored so far, for a ledger's footer: one-line JSON with `"v":1`."""
        raise NotImplementedError

    def restore(self, snapshot: bytes, now_s: float) -> None:
        """Raises `DataCorrupt`."""
        raise NotImplementedError

    def expire(self, now_s: float) -> int:
        """Forget producers idle for longer than `idle_s`; returns how many. O(producers)."""
        raise NotImplementedError

    def statistics(self) -> DedupStatistics:
        raise NotImplementedError
