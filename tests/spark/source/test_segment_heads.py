"""What is known of a segment's entries: it stays as it is where much before them is forgotten."""

from __future__ import annotations

from pyspark_txnstore.source.segment_heads import SegmentHeads, Txn
from txnclient import EntryHead
from txnwire.ids import EARLIEST, Position, TxnId


def test_what_is_forgotten_by_the_thousand_leaves_the_rest_as_it_is_known() -> None:
    txn = Txn(TxnId(1, 1))
    some = [
        (EntryHead(Position(n // 4_000, n), None, 0, n % 7, n % 11, 3 * n, False, None), txn if n % 5 == 0 else None)
        for n in range(10_000)
    ]
    known = SegmentHeads(EARLIEST)
    for head, its_txn in some:
        known.append(head, its_txn)
    assert len(list(known.pass_to(some[5_999][0].position, ()))) == 1_200
    for passed in (6_000, 6_001):
        assert len(known) == 10_000 - passed
        found = [
            (known.position(n), known.rows(n), known.size_bytes(n), known.publish_time_ms(n), known.txn(n))
            for n in known.fresh(Position(9, 0))
        ]
        assert found == [
            (head.position, head.messages, head.size_bytes, head.publish_time_ms, its_txn)
            for head, its_txn in some[passed:]
        ]
        list(known.pass_to(some[passed][0].position, ()))
