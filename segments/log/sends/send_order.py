"""Lists the steps of a send, and what must be durable before each, as data (DESIGN §7, "The order of a send").

1. A send reaches the stages of `Durable` one after the other. Each stage is reached on evidence alone: etcd's verdict
   on the op record, the entry id up to which the ledger's sync has reached, the lease, asked after that sync.
2. `SEND_ORDER` lists everything that a segment does with a send, in the order in which it does it, each with the stage
   that it needs. `Pipeline` and `Appender` do nothing with a send that is not listed.
3. `APPEND` is taken for each entry as soon as its stage allows, in its producer's order.
4. What follows it is taken for all entries of one sync: `SyncedEntries` says how far they are durable, and the appender
   carries out `AFTER_SYNC` on it, field by field. A step whose stage is not reached raises: the segment is given up,
   and its successor recovers what the ledger holds.
5. A repeat is answered from the dedup state, which only `ACK` extends. So a repeat gets no earlier answer.

Source: etcd's raft, `Ready`: what must be stable before what is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from txnwire.errors import InternalError

if TYPE_CHECKING:
    from segments.log.sends.sending import Item


class Durable(IntEnum):
    """How far a send has come. Each stage includes those before it."""

    NOTHING = 0
    """Admitted: in memory only."""
    OP = 1
    """Its op record stands in etcd, with the index key of its transaction. A send outside transactions needs none."""
    ENTRY = 2
    """Its entry is in the ledger, by fdatasync, and no fence stood beside the ledger after that."""
    OWNED = 3
    """The lease of its broker held after that sync."""


NOTHING: Final = Durable.NOTHING
OP: Final = Durable.OP
"""Looking up a member of an enum for each entry would cost more than the check."""


class SendStep(NamedTuple):
    """One step of a send. `name`: the appender's method for it. `told`: the information that it gives others.
    `without`: the failure if it comes before its stage ▲."""

    name: str
    needs: Durable
    told: str
    without: str


APPEND: Final = SendStep(
    "append",
    Durable.OP,
    "the entry is appended to the ledger",
    "a successor finds an entry of a transaction that has no op here: a decision in between is missed",
)
AFTER_SYNC: Final = (
    SendStep(
        "confirm",
        Durable.OWNED,
        "the last confirmed entry moves, for readers and snapshots",
        "a reader has seen what a crash takes back",
    ),
    SendStep("cache", Durable.OWNED, "the tail cache serves the entry", "as for `confirm`"),
    SendStep(
        "ack",
        Durable.OWNED,
        "the producer is acked, and its repeats from now on",
        "an acked entry is lost in a crash, or stands behind a fence, where the next owner does not count it (L5)",
    ),
    SendStep(
        "apply",
        Durable.OWNED,
        "a decision that waited for the send takes effect",
        "a transaction is visible here without one of its entries",
    ),
    SendStep("wake", Durable.OWNED, "readers and clean-up continue", "they look before there is anything to see"),
)
SEND_ORDER: Final = (APPEND, *AFTER_SYNC)


class SyncedEntries:
    """The entries that one sync covers, and how far they are durable."""

    __slots__ = ("durable", "items")

    def __init__(self, items: Sequence[Item]) -> None:
        self.items = items
        self.durable = APPEND.needs

    def synced(self, ledger_id: int, last_confirmed: int) -> None:
        """The sync of ledger `ledger_id` has reached `last_confirmed`. Raises `InternalError` if it covers less."""
        last = self.items[-1].position
        if (last.ledger_id, last.entry_id) > (ledger_id, last_confirmed):
            raise InternalError(f"a sync reached entry {last_confirmed} of ledger {ledger_id}, not {last}")
        self.durable = Durable.ENTRY

    def owned(self) -> None:
        """The lease holds, asked after the sync. Raises `InternalError` if there was no sync before."""
        if self.durable is not Durable.ENTRY:
            raise InternalError(f"ownership was asked for at stage {self.durable.name}, before the sync")
        self.durable = Durable.OWNED

    def expect(self, step: SendStep) -> None:
        """Raises `InternalError` if `step` may not be taken yet."""
        if self.durable < step.needs:
            raise InternalError(f"{step.name} needs {step.needs.name}, its entries are at {self.durable.name}")
