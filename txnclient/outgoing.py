"""A message as its sender gives it, checked and brought into one form. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from txnwire.entry import OutgoingMessage
from txnwire.errors import InvalidArgument, MessageTooLarge
from txnwire.protocol import MAX_VALUE_BYTES

MESSAGE_OVERHEAD_BYTES = 16
"""What a message counts for in the buffer besides its own bytes."""


def checked(
    value: bytes, key: str | bytes | None, properties: Mapping[str, str] | None, event_time_ms: int | None
) -> tuple[OutgoingMessage, int]:
    """The message, and the bytes it counts for in the buffer. Raises `InvalidArgument`, `MessageTooLarge`."""
    if type(value) is not bytes:
        value = checked_value(value)
    if len(value) > MAX_VALUE_BYTES:
        raise MessageTooLarge(
            f"a value of {len(value)} bytes is over the {MAX_VALUE_BYTES} bytes of a message: send it by "
            "send(value, chunk=True, txn=txn), in pieces within a transaction"
        )
    size = len(value) + MESSAGE_OVERHEAD_BYTES
    if key is not None:
        key = checked_key(key)
        size += len(key)
    if properties:
        for name, text in properties.items():
            if not isinstance(name, str) or not isinstance(text, str):
                raise InvalidArgument("a message's properties map str to str")
            size += len(name) + len(text)
    if event_time_ms is not None and not hasattr(event_time_ms, "__index__"):
        raise InvalidArgument(f"event_time_ms is a whole number, of ms since 1970, not {type(event_time_ms).__name__}")
    return OutgoingMessage(value, key, properties or None, event_time_ms), size


def checked_value(value: object) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise InvalidArgument(f"a message's value is bytes, not {type(value).__name__}")
    return bytes(value)


def checked_key(key: str | bytes) -> bytes:
    if isinstance(key, str):
        return key.encode()
    if not isinstance(key, bytes):
        raise InvalidArgument(f"a message's key is str or bytes, not {type(key).__name__}")
    return key
