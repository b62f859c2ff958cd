"""Converts messages to and from bytes in a pipe: one per line (or per NUL byte), raw or as JSON objects. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

import txnclient
from txnwire.errors import InvalidArgument

SHOWN_BYTES = 80
MAX_LINE_BYTES = 8 * 1024 * 1024
"""Above the largest message with its base64 and properties."""


class Input(StrEnum):
    LINES = "lines"
    JSON = "json"


class PipedMessage(NamedTuple):
    """One message to be sent. `plain`: it has only a key and a value."""

    key: bytes | None
    value: bytes
    properties: dict[str, str] | None = None
    event_time_ms: int | None = None

    @property
    def plain(self) -> bool:
        return self.properties is None and self.event_time_ms is None


class _Record(msgspec.Struct, kw_only=True):
    """The fields of `consume -o json` that `produce --input json` reads; the base64 forms win."""

    value: str | None = None
    value_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    properties: dict[str, str] | None = None
    event_time_ms: int | None = None


class Splitter:
    """Splits a stream of bytes at `end`; `rest` returns what follows the last one."""

    def __init__(self, end: bytes) -> None:
        self._end = end
        self._parts: list[bytes] = []
        self._size = 0
        self._lines = 0

    def take(self, data: bytes) -> list[bytes]:
        """Returns the lines complete so far, without their ends. Raises `InvalidArgument` for a line that is too
        long."""
        if self._end not in data:
            self._keep(data)
            return []
        first, *lines, last = data.split(self._end)
        whole = [b"".join([*self._parts, first]), *lines]
        self._lines += len(whole)
        self._parts, self._size = [], 0
        self._keep(last)
        return whole

    def rest(self) -> list[bytes]:
        """The last line, if it has no end."""
        rest, self._parts = b"".join(self._parts), []
        return [rest] if rest else []

    def _keep(self, data: bytes) -> None:
        if data:
            self._parts.append(data)
            self._size += len(data)
        if self._size > MAX_LINE_BYTES:
            raise InvalidArgument(f"line {self._lines + 1} is longer than {MAX_LINE_BYTES} bytes: a message is not")


def parse(line: bytes, form: Input, key_field: str | None, number: int) -> PipedMessage:
    """Raises `InvalidArgument` naming the line."""
    if form is Input.JSON:
        return _of_record(line, key_field, number)
    if key_field is None:
        return PipedMessage(None, line)
    return PipedMessage(_key_in(line, key_field, number), line)


def _of_record(line: bytes, key_field: str | None, number: int) -> PipedMessage:
    try:
        record = msgspec.json.decode(line, type=_Record)
        value = _bytes(record.value, record.value_base64)
        key = _bytes(record.key, record.key_base64)
    except (msgspec.DecodeError, binascii.Error) as error:
        raise InvalidArgument(f"line {number}: {error} in {_shown(line)}") from error
    if value is None:
        raise InvalidArgument(f'line {number}: neither "value" nor "value_base64" in {_shown(line)}')
    if key_field is not None:
        key = _key_in(value, key_field, number)
    return PipedMessage(key, value, record.properties or None, record.event_time_ms)


def _bytes(text: str | None, in_base64: str | None) -> bytes | None:
    if in_base64 is not None:
        return base64.b64decode(in_base64, validate=True)
    return None if text is None else text.encode()


def _key_in(value: bytes, key_field: str, number: int) -> bytes | None:
    try:
        record = msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"line {number}: {error} in {_shown(value)}, for --key-field {key_field}") from error
    if key_field not in record:
        raise InvalidArgument(f"line {number}: no field {key_field!r} for --key-field in {_shown(value)}")
    key = record[key_field]
    return None if key is None else str(key).encode()


def _shown(line: bytes) -> str:
    return repr(line[:SHOWN_BYTES].decode(errors="replace"))


def runs(messages: list[PipedMessage]) -> Iterator[list[PipedMessage]]:
    """Groups neighbours that may be sent in bulk, in order: runs of plain messages, and each other message alone."""
    gathered: list[PipedMessage] = []
    for message in messages:
        if message.plain:
            gathered.append(message)
            continue
        if gathered:
            yield gathered
            gathered = []
        yield [message]
    if gathered:
        yield gathered


def as_json(message: txnclient.Message[Any]) -> bytes:
    """One JSON object. Bytes that are not UTF-8 are also in `value_base64` and `key_base64`."""
    row: dict[str, Any] = {
        **_text("value", message.data),
        **_text("key", message.key),
        "properties": message.properties,
        "id": str(message.id),
        "topic": message.topic,
        "segment": message.segment,
        "position": str(message.position),
        "publish_time_ms": message.publish_time_ms,
        "event_time_ms": message.event_time_ms,
        "producer_name": message.producer_name,
        "sequence_id": message.sequence_id,
        "txn_id": None if message.txn_id is None else str(message.txn_id),
        "redelivery_count": message.redelivery_count,
    }
    return msgspec.json.encode(row)


def _text(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: data.decode(errors="replace"), f"{name}_base64": base64.b64encode(data).decode()}
