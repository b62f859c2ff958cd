"""How far a reader has handed out each segment. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from txnclient.consuming.places.positions import NextMessage
from txnclient.consuming.received.message import Message
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb


class HandedOut:
    """The first message not yet handed out, for each segment that has handed out a message."""

    def __init__(self) -> None:
        self._next: dict[str, NextMessage] = {}

    def handed_out(self, messages: Iterable[Message[Any]]) -> None:
        for message in messages:
            entry = message.entry
            if message.index + 1 < entry.count:
                self._next[entry.segment] = NextMessage(entry.positions[-1], message.index + 1)
            else:
                self._next[entry.segment] = _behind(entry.positions[-1])

    def at(self, path: str, begun: Position | None) -> NextMessage | None:
        """Where to go on in a segment; None if nothing of it was handed out. `begun`: the first piece of a large value
        that has come in part, or is not handed out. ▲ A read from behind that piece never completes the value."""
        found = self._next.get(path)
        if found is not None and begun is not None and begun < found.position:
            return NextMessage(begun)
        return found


def named_by(start: pb.Start | None, path: str) -> NextMessage | None:
    """The message of this segment that a start names, None if it names none."""
    if start is None or start.segment != path:
        return None
    position = Position(start.ledger_id, start.entry_id)
    return _behind(position) if start.after else NextMessage(position, start.index)


def _behind(position: Position) -> NextMessage:
    return NextMessage(Position(position.ledger_id, position.entry_id + 1))
