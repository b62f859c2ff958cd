"""Questions about transactions, answered from the store alone: the four indexes, listings, outcomes, what hangs.

The four named queries stand behind PIP-471's secondary indexes; index *keys* exist only where key order does not already
answer (DESIGN §4). Everything here is for operators and tools: read-only, no coordinator needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from txnstore.records import Header, Op
from txnstore.store import MetadataStore
from txnstore.transitions import Decision
from txnwire.ids import TxnId


@dataclass(frozen=True, slots=True)
class TransactionRecord:
    """A header as it stands in the store; `revision` is that of its decision, 0 while it is OPEN."""

    txn_id: TxnId
    header: Header
    revision: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """`record` is None where the header is gone or never was; `outcome` then tells what is known (None: nothing)."""

    txn_id: TxnId
    record: TransactionRecord | None
    outcome: Decision | None
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Hanging:
    """A transaction that holds something back: open, or decided with ops that no participant has cleaned up.

    `writes` and `acks` count its op records by segment path and by (segment path, subscription); `ownerless` are those
    of its segments that nobody owns at this moment."""

    record: TransactionRecord
    writes: dict[str, int]
    acks: dict[tuple[str, str], int]
    ownerless: tuple[str, ...]


async def writes_by_segment(store: MetadataStore, segment: str) -> list[TxnId]:
    """`idx:writes-by-segment`: transactions with write ops in a segment (path form), in id order."""
    raise NotImplementedError


async def acks_by_segment_subscription(store: MetadataStore, segment: str, subscription: str) -> list[TxnId]:
    """`idx:acks-by-segment-subscription`: transactions with ack ops there, in id order."""
    raise NotImplementedError


async def txns_by_deadline(store: MetadataStore, *, until_ms: int) -> list[tuple[int, TxnId]]:
    """`idx:txn-by-deadline`: (deadline, transaction) at or before `until_ms` (epoch ms), earliest first.

    Only transactions that were open for longer than a second have a key."""
    raise NotImplementedError


async def txns_by_final_state(
    store: MetadataStore, state: str, *, after: TxnId | None = None, limit: int = 1000
) -> list[TransactionRecord]:
    """`idx:txn-by-final-state`: headers in `state`, in id order, by walking headers; `after` pages on."""
    raise NotImplementedError


def headers(store: MetadataStore) -> AsyncIterator[TransactionRecord]:
    """Every header, in id order, in bounded pages, each page at its own revision."""
    raise NotImplementedError


async def list_transactions(
    store: MetadataStore,
    *,
    now_ms: int,
    state: str | None = None,
    older_than_ms: int = 0,
    owner: str | None = None,
    segment: str | None = None,
    limit: int = 1000,
) -> list[TransactionRecord]:
    """Headers that match all that is given, in id order; `segment` (path form): with ops in it."""
    raise NotImplementedError


async def describe_transaction(store: MetadataStore, txn_id: TxnId, *, ops_limit: int = 1000) -> TransactionDescription:
    """Header, ops (the first `ops_limit` in key order) and outcome of one transaction."""
    raise NotImplementedError


async def outcomes(store: MetadataStore, txn_ids: Sequence[TxnId]) -> list[Decision | None]:
    """The decision of each, from its header or its collected outcome; None: open, unknown or never given out."""
    raise NotImplementedError


async def hanging(store: MetadataStore, *, now_ms: int, older_than_ms: int, limit: int = 100) -> list[Hanging]:
    """What has been open, or decided and not cleaned up, for longer than `older_than_ms`; oldest first."""
    raise NotImplementedError
