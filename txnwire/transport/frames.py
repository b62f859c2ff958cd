"""Frames: gathers commands for the wire, and parses received frames. Pure; every transport uses it.

A frame is the protobuf message `Frame`. It is built by concatenation, which protobuf allows for serialized fields: the
version, then every command as field tag, length and bytes. `add` serializes each command.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from txnwire.errors import InvalidArgument, MessageTooLarge
from txnwire.proto.txn_pb2 import Command, Frame
from txnwire.protocol import FRAME_TARGET_BYTES, FRAME_TARGET_COMMANDS, FRAME_VERSION, MAX_COMMAND_BYTES

_VERSION_FIELD: Final = bytes((0x08, FRAME_VERSION))
_COMMANDS_TAG: Final = b"\x12"


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_SMALL_PREFIXES: Final = tuple(_COMMANDS_TAG + _varint(size) for size in range(1024))


class FrameOutbox:
    """Queues commands for sending. `pending_bytes` counts them from `add` until `sent`, including a frame being
    written."""

    __slots__ = ("_bytes", "_count", "_frames", "_parts", "pending_bytes")

    def __init__(self) -> None:
        self._frames: deque[tuple[bytes, int]] = deque()
        self._parts: list[bytes] = [_VERSION_FIELD]
        self._count = 0
        self._bytes = 0
        self.pending_bytes = 0

    def add(self, command: Command) -> None:
        """Serialize and queue; the caller may reuse `command`. Raises `MessageTooLarge` and queues nothing then."""
        data = command.SerializeToString()
        size = len(data)
        if size > MAX_COMMAND_BYTES:
            raise MessageTooLarge(f"a command of {size} bytes is over the {MAX_COMMAND_BYTES} bytes a frame can carry")
        if self._count and (self._count >= FRAME_TARGET_COMMANDS or self._bytes + size > FRAME_TARGET_BYTES):
            self._finish_frame()
        self._parts.append(_SMALL_PREFIXES[size] if size < 1024 else _COMMANDS_TAG + _varint(size))
        self._parts.append(data)
        self._count += 1
        self._bytes += size
        self.pending_bytes += size

    def _finish_frame(self) -> None:
        self._frames.append((b"".join(self._parts), self._bytes))
        self._parts = [_VERSION_FIELD]
        self._count = self._bytes = 0

    def next_frame(self) -> tuple[bytes, int] | None:
        """The next frame of the gathered commands, and the number to pass to `sent` after the write; None if empty."""
        if not self._frames:
            if not self._count:
                return None
            self._finish_frame()
        return self._frames.popleft()

    def sent(self, command_bytes: int) -> None:
        self.pending_bytes -= command_bytes


def parse_frame(data: bytes) -> Sequence[Command]:
    """The commands of one received frame. Raises `InvalidArgument` for another version, or for bytes that are no
    frame."""
    try:
        frame = Frame.FromString(data)
    except DecodeError as error:
        raise InvalidArgument(f"frame of {len(data)} bytes is malformed: {error}") from error
    if frame.version != FRAME_VERSION:
        raise InvalidArgument(f"frame version {frame.version}: this version of txnstore speaks {FRAME_VERSION}")
    if len(frame.commands) > FRAME_TARGET_COMMANDS:
        raise InvalidArgument(f"frame of {len(frame.commands)} commands: expected at most {FRAME_TARGET_COMMANDS}")
    return frame.commands
