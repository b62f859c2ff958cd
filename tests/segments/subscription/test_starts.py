"""Where reading begins, whatever a client names."""

from __future__ import annotations

from typing import cast

import pytest

from segments.log.ledgers.segment_log import SegmentLog
from segments.subscription.starts import MOST_MESSAGES, Start, StartPoint, resolve_start
from tests.segments.ledger_lengths import LedgerLengths
from txnwire.ids import EARLIEST, Position
from txnwire.proto import txn_pb2 as pb

SEGMENT = "public/default/orders/0000-7fff-3"


@pytest.mark.parametrize(
    ("index", "after", "expected"),
    [
        (0, False, StartPoint(Position(2, 4), 0)),
        (3, False, StartPoint(Position(2, 4), 3)),
        (3, True, StartPoint(Position(2, 4), 4)),
        (0xFFFF_FFFF, True, StartPoint(Position(2, 5))),
        (0xFFFF_FFFF, False, StartPoint(Position(2, 4), MOST_MESSAGES)),
    ],
)
async def test_a_message_as_start_leaves_out_no_more_than_an_entry_can_hold(
    index: int, after: bool, expected: StartPoint
) -> None:
    """A bitmap as long as the index that a client names took half a gigabyte and 10 ms for each read."""
    wire = pb.Start(segment=SEGMENT, ledger_id=2, entry_id=5, index=index, after=after)
    ledgers = cast(SegmentLog, LedgerLengths({2: 10}))
    assert await resolve_start(Start.from_wire(wire), SEGMENT, ledgers, EARLIEST) == expected
