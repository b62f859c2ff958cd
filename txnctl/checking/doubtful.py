"""Finds transactions that a restored etcd knows as committed, and whose entries the data folder may lack. Pure.

This is for a data folder that was copied before etcd was. `missing` finds the entries that the watermark or another
record of etcd names. ▲ A transaction of the last moment before the copy of etcd leaves no such trace: its operation
records are gone, and the watermark follows only later. Without this rule one topic would show it, and another not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from txnctl.checking.picture import Picture
from txnstore.records import COMMITTED, Header
from txnwire.ids import TxnId

WATERMARK_LAG_MS: Final = 3000
"""▲ Within this time after a commit the watermark has passed it, or its operation records are still there: a watermark
is written every second."""


def decided_since(picture: Picture, revision: int) -> dict[TxnId, Header]:
    """Committed transactions with a header that was decided after `revision`."""
    return {
        txn_id: header
        for txn_id, header in picture.headers.items()
        if header.state == COMMITTED and picture.header_revisions.get(txn_id, 0) > revision
    }


def doubtful(
    picture: Picture, left: Mapping[tuple[TxnId, str], int], *, folder_revision: int, ended_ms: int
) -> dict[TxnId, str]:
    """Transactions that may have lost a part, and why, of those decided after the folder's mark.

    `left`: entries of each transaction in each segment; `folder_revision`: etcd's revision when the mark was written;
    `ended_ms`: the cluster's clock when it was last stamped into etcd."""
    recent = decided_since(picture, folder_revision)
    ended_ms = max([ended_ms, *(header.finalized_ms for header in recent.values())])
    shown = {txn_id for txn_id, _ in left}
    found = {
        txn_id: "committed in the last seconds before etcd was copied"
        for txn_id, header in recent.items()
        if txn_id in shown and header.finalized_ms > ended_ms - WATERMARK_LAG_MS
    }
    for (txn_id, segment, subscription), ops in picture.ops.items():
        there = left.get((txn_id, segment), 0)
        if txn_id in recent and subscription is None and there < ops:
            found[txn_id] = f"{there} of {ops} entries are in {segment}"
    return found
