"""Numbers, counts and texts of commands at their bounds, and one more (scenario C9)."""

from __future__ import annotations

import pytest

from txnwire.bounds import MAX_ACK_POSITIONS, MAX_ID, MAX_TEXT, MAX_TIME_MS, check_bounds
from txnwire.errors import InvalidArgument
from txnwire.proto import txn_pb2 as pb


def acking(count: int) -> pb.Command:
    return pb.Command(ack=pb.Ack(positions=[pb.AckPosition()] * count))


def test_c9_so_many_positions_may_be_acked_at_once_and_not_one_more() -> None:
    check_bounds("ack", acking(MAX_ACK_POSITIONS))
    with pytest.raises(InvalidArgument, match="10001 positions"):
        check_bounds("ack", acking(MAX_ACK_POSITIONS + 1))


def test_c9_a_text_has_so_many_characters_and_not_one_more() -> None:
    check_bounds("watch_layout", pb.Command(watch_layout=pb.WatchLayout(topic="x" * MAX_TEXT)))
    with pytest.raises(InvalidArgument, match="topic of 4097 characters"):
        check_bounds("watch_layout", pb.Command(watch_layout=pb.WatchLayout(topic="x" * (MAX_TEXT + 1))))


def test_c9_of_several_texts_each_is_looked_at() -> None:
    with pytest.raises(InvalidArgument, match="one of the topics"):
        check_bounds("take_snapshot", pb.Command(take_snapshot=pb.TakeSnapshot(topics=["x", "x" * (MAX_TEXT + 1)])))


@pytest.mark.parametrize(
    ("start", "says"),
    [
        (pb.Start(timestamp_ms=MAX_TIME_MS + 1), "timestamp_ms"),
        (pb.Start(segment="x" * (MAX_TEXT + 1)), "segment of 4097 characters"),
        (pb.Start(ledger_id=MAX_ID + 1), "ledger_id"),
        (pb.Start(entry_id=-2), "entry_id"),
    ],
)
def test_c9_each_field_of_a_part_is_looked_at(start: pb.Start, says: str) -> None:
    check_bounds("seek", pb.Command(seek=pb.Seek(start=pb.Start(segment="x" * MAX_TEXT, entry_id=-1))))
    with pytest.raises(InvalidArgument, match=says):
        check_bounds("seek", pb.Command(seek=pb.Seek(start=start)))
