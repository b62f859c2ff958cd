"""Checks and normalizes a sender's message. Pure.

▲ C9: every fault of a message is found here, before it shares an entry with others, which would fail with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Final

from txnwire.entry import OutgoingMessage
from txnwire.errors import InvalidArgument, MessageTooLarge
from txnwire.protocol import KIB, MAX_ENTRY_BYTES, MAX_VALUE_BYTES

MESSAGE_OVERHEAD_BYTES: Final = 16
"""Bytes that a message counts for in the buffer besides its own."""

PROPERTY_OVERHEAD_BYTES: Final = 8
"""Bytes that a property takes in an entry besides its own."""

MAX_MESSAGE_BYTES: Final = MAX_ENTRY_BYTES - KIB
"""Limit of value, key and properties together: an entry holds one such message uncompressed, with any metadata."""

_LARGEST_TIME_MS: Final = (1 << 63) - 1


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
        if type(key) is not bytes:
            key = checked_key(key)
        size += len(key)
    if properties:
        properties, more = _checked_properties(properties)
        size += more
    if event_time_ms is not None:
        event_time_ms = _checked_time(event_time_ms)
    if size > MAX_MESSAGE_BYTES:
        check_size(size)
    return OutgoingMessage(value, key, properties or None, event_time_ms), size


def check_size(size: int) -> None:
    """Raises `MessageTooLarge`."""
    if size > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(
            f"a message of {size} bytes, with its key and properties, is over the {MAX_MESSAGE_BYTES} bytes of an entry"
        )


def checked_value(value: object) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise InvalidArgument(f"a message's value is bytes, not {type(value).__name__}")
    return bytes(value)


def checked_key(key: str | bytes) -> bytes:
    if isinstance(key, str):
        try:
            return key.encode()
        except UnicodeEncodeError as error:
            raise _no_unicode("key", error) from error
    if not isinstance(key, bytes):
        raise InvalidArgument(f"a message's key is str or bytes, not {type(key).__name__}")
    return key


def _checked_properties(properties: Mapping[str, str]) -> tuple[dict[str, str], int]:
    """A copy, because the caller may change its own before the send; and the bytes it takes."""
    if not isinstance(properties, Mapping):
        raise InvalidArgument(f"a message's properties are a mapping, not {type(properties).__name__}")
    copied, size = dict(properties), 0
    for name, text in copied.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise InvalidArgument("a message's properties map str to str")
        size += len(_utf8(name, "property")) + len(_utf8(text, "property")) + PROPERTY_OVERHEAD_BYTES
    return copied, size


def _utf8(text: str, part: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise _no_unicode(part, error) from error


def _no_unicode(part: str, error: UnicodeEncodeError) -> InvalidArgument:
    return InvalidArgument(f"a message's {part} is not valid Unicode: {error}")


def _checked_time(event_time_ms: int) -> int:
    try:
        time_ms = index(event_time_ms)
    except TypeError:
        raise InvalidArgument(
            f"event_time_ms is a whole number, of ms since 1970, not {type(event_time_ms).__name__}"
        ) from None
    if not -_LARGEST_TIME_MS <= time_ms <= _LARGEST_TIME_MS:
        raise InvalidArgument(f"event_time_ms is a number of ms since 1970 that 64 bits hold, not {time_ms}")
    return time_ms
