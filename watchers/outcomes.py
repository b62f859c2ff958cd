"""A decision as participants see it, and the error for a late operation of a decided transaction. Pure."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from txnstore import records
from txnstore.records import NO_WRITER as NO_WRITER
from txnstore.records import Header
from txnstore.writes import writer_lists
from txnwire.errors import DataCorrupt, ExpiredTransaction, TxnConflict
from txnwire.ids import TxnId


class Decision(NamedTuple):
    """`revision`: the header's mod revision, which orders decisions. `writers`: None counts all, a set only these.
    `decided_ms`: epoch milliseconds by the coordinator's clock, for measuring only; 0 if unknown."""

    txn_id: TxnId
    committed: bool
    revision: int
    writers: frozenset[int] | None = None
    reason: str | None = None
    decided_ms: int = 0

    def counts(self, writer: int) -> bool:
        """Whether the decision commits the writes and acks of `writer`."""
        return self.committed and (self.writers is None or writer in self.writers)

    @staticmethod
    def from_header(txn_id: TxnId, header: Header, revision: int) -> Decision:
        """Raises `DataCorrupt` if the header is still OPEN or in a state unknown to this version."""
        if header.state not in (records.COMMITTED, records.ABORTED):
            raise DataCorrupt(f"/txn/{txn_id} was rewritten with state {header.state!r}: expected COMMITTED or ABORTED")
        writers = None if header.writers is None else frozenset(writer_lists.numbers(header.writers))
        return Decision(
            txn_id, header.state == records.COMMITTED, revision, writers, header.reason, header.finalized_ms
        )


class Participant(Protocol):
    """Holds transactions open in this process and follows their decisions: a segment."""

    def decide(self, decision: Decision) -> None:
        """Called once per decision of a transaction held here, in revision order. Must not block or raise."""

    def header_absent(self, txn_id: TxnId) -> None:
        """▲ The header of a transaction held open was not found: it stays pinned, and the participant checks that it
        still owns its segment (DESIGN §6). Never a decision."""


def refusal(decision: Decision) -> TxnConflict | ExpiredTransaction:
    """The error for an operation after `decision`, the same as a lost compare in etcd gives."""
    if decision.reason == records.REASON_FENCED:
        return ExpiredTransaction(f"transaction {decision.txn_id} was fenced by a newer holder of its transaction key")
    state = records.COMMITTED if decision.committed else records.ABORTED
    why = f" (reason: {decision.reason})" if decision.reason else ""
    return TxnConflict(f"transaction {decision.txn_id} is {state}{why}: it takes no further operations")
