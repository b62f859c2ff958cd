"""Serializers of producers, consumers and readers: an application's values to bytes and back.

Without a serializer a value is bytes. Only bytes are stored: an entry does not name its serializer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from typing_extensions import TypeVar

from txnwire.errors import InvalidArgument, TxnError, UndecodableMessage
from txnwire.ids import MessageId

V = TypeVar("V", default=bytes)
"""The type of a message's value; without a serializer: bytes."""

T = TypeVar("T")


class Serializer(Protocol[T]):
    """Any object with these two methods; both may raise any error."""

    def encode(self, value: T, /) -> bytes: ...
    def decode(self, data: bytes, /) -> T: ...


SerializerArgument = str | tuple[Callable[[T], bytes], Callable[[bytes], T]] | Serializer[T]
"""`"str"` (UTF-8), `"json"`, `"bytes"`, a pair of callables `(encode, decode)`, or a `Serializer`."""


class StrSerializer:
    """UTF-8."""

    def encode(self, value: str, /) -> bytes:
        if not isinstance(value, str):
            raise TypeError(f"expected str, not {type(value).__name__}")
        return value.encode()

    def decode(self, data: bytes, /) -> str:
        return data.decode()


class JsonSerializer:
    """One JSON document in UTF-8, without blanks. NaN and infinities, which JSON does not have, are refused."""

    def encode(self, value: Any, /) -> bytes:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()

    def decode(self, data: bytes, /) -> Any:
        return json.loads(data)


@dataclass(frozen=True, slots=True)
class _Pair(Generic[T]):
    encoder: Callable[[T], bytes]
    decoder: Callable[[bytes], T]

    def encode(self, value: T, /) -> bytes:
        return self.encoder(value)

    def decode(self, data: bytes, /) -> T:
        return self.decoder(data)


_NAMED: dict[str, Serializer[Any]] = {"str": StrSerializer(), "json": JsonSerializer()}


def serializer_of(argument: SerializerArgument[Any] | None) -> Serializer[Any] | None:
    """None where a value is the bytes themselves. Raises `InvalidArgument`."""
    if argument is None or argument == "bytes":
        return None
    if isinstance(argument, str):
        if argument in _NAMED:
            return _NAMED[argument]
        raise InvalidArgument(
            f"serializer {argument!r}: expected 'bytes', 'str', 'json', (encode, decode) or an object"
        )
    if isinstance(argument, tuple):
        if len(argument) == 2 and all(callable(part) for part in argument):
            return _Pair(*argument)
        raise InvalidArgument("a serializer given as a tuple is two callables: (encode, decode)")
    if callable(getattr(argument, "encode", None)) and callable(getattr(argument, "decode", None)):
        return argument
    raise InvalidArgument(f"serializer {argument!r} has no encode() and decode()")


def encode(serializer: Serializer[Any], value: object) -> bytes:
    """Raises `InvalidArgument` that quotes the serializer's error, or says that it returned no bytes."""
    try:
        data = serializer.encode(value)
    except TxnError:
        raise
    except Exception as error:
        raise InvalidArgument(
            f"the producer's serializer cannot encode a value of type {type(value).__name__}: "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidArgument(f"the producer's serializer made {type(data).__name__} of a value, not bytes")
    return bytes(data)


def decode(serializer: Serializer[Any], data: bytes, message_id: MessageId, topic: str) -> Any:
    """Raises `UndecodableMessage` that names the message and quotes the serializer's error."""
    try:
        return serializer.decode(data)
    except UndecodableMessage:
        raise
    except Exception as error:
        raise UndecodableMessage(
            f"message {message_id} of {topic} ({len(data)} bytes) cannot be decoded: {type(error).__name__}: {error}; "
            "its bytes are in message.data"
        ) from error
