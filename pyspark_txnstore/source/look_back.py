"""What stands before a batch's start and may be shown by it: where the transactions that were open there have entries.

    between two cuts ──► heads of (resolved, end] of the start, each once ──► the backlog tells what to read again

Without it a batch would read again all that was written since the oldest open transaction began, whenever any other
has committed. Heads are small, and are asked for only where something may have committed.
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
    """As `Cuts.between`, and `known` tells what is to be read again. Raises as `Cuts.between`.

    ▲ What is to be read hangs on the two cuts and on outcomes, which never change. What is known besides makes only the
    ranges narrower, and leaves out of them what no run of the batch shows."""
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
    """What is not known yet. Of which transactions there was something that has not aborted."""
    found: dict[TxnId, None] = {}
    for part in known.unknown_before(start, end):
        with closing(cuts.heads(part.segment, part.after, part.end, end.revision)) as pages:
            for page in pages:
                # Of what stands before the start only this may be shown: the rest need not be kept until then.
                held = [head for head in page if head.txn_id is not None and start.is_pending(head.txn_id)]
                known.add(part, held)
                # ▲ Not what has aborted: retention may have taken what was known of it before.
                found.update((head.txn_id, None) for head in held if head.txn_id is not None and not head.aborted)
        known.done(part)
    return found


def _look_again(cuts: Cuts, end: Snapshot, known: Backlog, *, besides: Container[TxnId]) -> None:
    """▲ Heads that were scanned while a transaction was open do not tell that it has aborted, so that retention may
    have taken its entries: they must not be read."""
    for part in known.known_before(end, besides):
        with closing(cuts.heads(part.segment, part.after, part.end, end.revision)) as pages:
            for page in pages:
                known.hide(part, page)
