"""How far a reader has handed out a segment, over messages, batches and values in pieces."""

from __future__ import annotations

from typing import Any, cast

from txnclient.consuming.places.positions import NextMessage
from txnclient.consuming.received.message import Message
from txnclient.reading.standing import HandedOut, named_by
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb

PATH = "public/default/orders/0000-ffff-0"


class Entry:
    """As `ReceivedEntry` has it."""

    segment = PATH

    def __init__(self, count: int, *positions: Position) -> None:
        self.count = count
        self.positions = positions


def message(index: int, count: int, *positions: Position) -> Message[Any]:
    return Message(cast(Any, Entry(count, *positions)), index)


def test_it_stands_at_the_next_message_or_behind_the_entry() -> None:
    standing = HandedOut()
    assert standing.at(PATH, None) is None
    standing.handed_out([message(0, 3, Position(2, 7)), message(1, 3, Position(2, 7))])
    assert standing.at(PATH, None) == NextMessage(Position(2, 7), 2)
    standing.handed_out([message(2, 3, Position(2, 7))])
    assert standing.at(PATH, None) == NextMessage(Position(2, 8), 0)
    standing.handed_out([message(0, 1, Position(2, 6), Position(2, 9))])
    assert standing.at(PATH, None) == NextMessage(Position(2, 10), 0)


def test_a_value_that_has_come_in_part_is_before_the_position() -> None:
    """▲ From behind its first piece it would never be complete."""
    standing = HandedOut()
    standing.handed_out([message(0, 1, Position(2, 7))])
    assert standing.at(PATH, Position(2, 5)) == NextMessage(Position(2, 5))
    assert standing.at(PATH, Position(2, 9)) == NextMessage(Position(2, 8))


def test_a_start_names_a_message_of_its_segment() -> None:
    start = pb.Start(segment=PATH, ledger_id=2, entry_id=7, index=3)
    assert named_by(start, PATH) == NextMessage(Position(2, 7), 3)
    assert named_by(start, "public/default/orders/0000-7fff-1") is None
    assert named_by(None, PATH) is None
    assert named_by(pb.Start(earliest=True), PATH) is None
    start.after = True
    assert named_by(start, PATH) == NextMessage(Position(2, 8))
