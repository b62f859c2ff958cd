"""Records the parts that clients have in shared named transactions."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulation.clients.recorder import Draft, Recorder
from txnclient.transactions.transaction import Transaction, TransactionState
from txnwire.ids import TxnId


@dataclass(slots=True)
class SharedParts:
    """What one process' clients know of their parts in named transactions."""

    recorder: Recorder
    parts: dict[TxnId, dict[int, Draft]] = field(default_factory=dict)
    complete: dict[TxnId, list[int]] = field(default_factory=dict)
    """Writers whose sends and acks are complete: only these may be counted."""

    def begin(self, process: str, txn: Transaction) -> Draft:
        draft = self.recorder.begin(process, f"writer {txn.writer_id:016x}")
        draft.shared = shared_name(txn)
        draft.changed(draft)  # a journal has to know it, even if the part fails
        self.parts.setdefault(txn.id, {})[txn.writer_id] = draft
        return draft

    def decided(self, txn: Transaction) -> None:
        """Records in every part how it ended; with two contradicting outcomes, records both."""
        for writer, draft in self.parts.get(txn.id, {}).items():
            counted = counts(txn, writer)
            draft.reported("committed" if counted else "aborted")
            if draft.outcome == "unknown":
                self.recorder.end(draft, "ok" if counted else "failed")


def shared_name(txn: Transaction) -> str:
    return f"{txn.name} {txn.id}"


def counts(txn: Transaction, writer: int) -> bool:
    """Whether a part of this decided transaction has happened."""
    return txn.state is TransactionState.COMMITTED and (txn.writers is None or writer in txn.writers)
