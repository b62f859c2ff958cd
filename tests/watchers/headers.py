"""Headers written as the coordinator writes them, and a participant that notes what it is told."""

from __future__ import annotations

from txnstore import keys, records
from txnstore.records import Header
from txnstore.store import Commit, Delete, MetadataStore, Put, absent, version_is
from txnwire.ids import TxnId
from watchers.outcomes import Decision

DECIDED_MS = 2


async def begin(store: MetadataStore, txn_id: TxnId) -> None:
    key = keys.txn(txn_id)
    header = Header(state=records.OPEN, timeout_ms=1, created_ms=0)
    result = await store.commit(Commit(compares=(absent(key),), puts=(Put(key, records.encode(header)),)))
    assert result.succeeded


async def end(
    store: MetadataStore,
    txn_id: TxnId,
    *,
    commit: bool = True,
    writers: list[str] | None = None,
    reason: str | None = None,
) -> int:
    """Decide, and return the revision of the decision."""
    key = keys.txn(txn_id)
    state = records.COMMITTED if commit else records.ABORTED
    header = Header(state=state, timeout_ms=1, created_ms=0, finalized_ms=DECIDED_MS, writers=writers, reason=reason)
    result = await store.commit(Commit(compares=(version_is(key, 1),), puts=(Put(key, records.encode(header)),)))
    assert result.succeeded
    return result.revision


async def collect(store: MetadataStore, txn_id: TxnId) -> None:
    await store.commit(Commit(deletes=(Delete(keys.txn(txn_id)),)))


class Notes:
    """A `watchers.outcomes.Participant`."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.absent: list[TxnId] = []

    def decide(self, decision: Decision) -> None:
        self.decisions.append(decision)

    def header_absent(self, txn_id: TxnId) -> None:
        self.absent.append(txn_id)

    @property
    def told(self) -> list[TxnId]:
        return [decision.txn_id for decision in self.decisions]
