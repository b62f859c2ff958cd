"""Finds entries before a batch's start that the batch may show: those of transactions that were open at the start.

    between two cuts ──► heads of (resolved, end] of the start, each once ──► the backlog tells what to read again

Without this a batch would read again everything since the oldest open transaction began, whenever any other has
committed. Heads are small, and are requested only if something may have committed.
"""

from __future__ import annotations

from collections.abc import Container
from contextlib import closing

from pyspark_txnstore.shared.offsets import may_have_committed
from pyspark_txnstore.source.cuts import Cuts
from pyspark_txnstore.source.limits import Backlog
from txnclient.reading.snapshot import Snapshot
from txnwire.errors import DataTrimmed
from txnwire.ids import TxnId


def pair_to_plan(cuts: Cuts, start: Snapshot | None, end: Snapshot, known: Backlog) -> tuple[Snapshot | None, Snapshot]:
    """Like `Cuts.between`; `known` says what to read again. Raises as `Cuts.between`.

    ▲ What to read depends on the two cuts and on outcomes, which never change. Other knowledge only narrows the ranges,
    and drops only what no run of the batch shows."""
    start, end = cuts.between(start, end)
    if start is None or not may_have_committed(start, end):
        return start, end
    try:
        _look_again(cuts, end, known, besides=_scan(cuts, start, end, known))
    except DataTrimmed:
        if (settled := cuts.settled(start, end)) is None:
            raise
        return settled
    return start, end


def _scan(cuts: Cuts, start: Snapshot, end: Snapshot, known: Backlog) -> dict[TxnId, None]:
    """Scans what is not known yet. Returns the transactions that had entries and have not aborted."""
    found: dict[TxnId, None] = {}
    for part in known.unknown_before(start, end):
        with closing(cuts.heads(part.segment, part.after, part.end, end.revision)) as pages:
            for page in pages:
                # Of the entries before the start only these may be shown: the others need not be kept until then.
                held = [head for head in page if head.txn_id is not None and start.is_pending(head.txn_id)]
                known.add(part, held)
                # ▲ Aborted entries are left out: retention may have taken those that were known before.
                found.update((head.txn_id, None) for head in held if head.txn_id is not None and not head.aborted)
        known.done(part)
    return found


def _look_again(cuts: Cuts, end: Snapshot, known: Backlog, *, besides: Container[TxnId]) -> None:
    """▲ Heads scanned while a transaction was open do not show that it has aborted. Retention may have taken its
    entries since, so they must not be read."""
    for part in known.known_before(end, besides):
        with closing(cuts.heads(part.segment, part.after, part.end, end.revision)) as pages:
            for page in pages:
                known.hide(part, page)
