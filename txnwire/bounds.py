"""Bounds of every number, count and text that a peer may send, checked before any handler computes from them. Pure.

▲ A process serves many peers in one thread. A command's cost must be bounded by its bytes, never by a number in it, and
a list's length is checked before its items are used. A number beyond its bound could also be stored and then fail its
readers: an id at the end of its 64 bits has no successor.

One table serves all commands: a bound belongs to a field name, so a new field of a known name is bounded too; a field
name missing in the table fails at import. The code that uses long lists' items and bytes checks those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from txnwire.errors import InvalidArgument
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_DELAY_MS, MAX_ENTRY_MESSAGES, MAX_PERMITS

MAX_ID: Final = 1 << 62
"""Limit of ids of ledgers and entries, sequence ids, and consumer and producer numbers: half of what 63 bits hold, so
that every id has a successor."""

MAX_REVISION: Final = (1 << 63) - 1
MAX_TIME_MS: Final = 253_402_300_799_999
"""The end of the year 9999, which every calendar can show."""

MAX_KEEP_MS: Final = 100 * 366 * 24 * 3600 * 1000
"""A hundred years."""

MAX_TEXT: Final = 4096
"""Characters of a name, a path or similar text; each kind of name has its own bound besides."""

MAX_JSON: Final = 4_000_000
MAX_SESSION_TRANSACTIONS: Final = 300_000
MAX_WRITERS_SENT: Final = 200_000
MAX_ACK_POSITIONS: Final = 10_000
MAX_NAMES: Final = 10_000
MAX_STARTS: Final = 10_000
"""Segments of a topic, of which there are 4 096."""

ANY: Final = (0, (1 << 64) - 1)
"""Bounds of a number that is only compared or returned."""

NUMBERS: Final[Mapping[str, tuple[int, int]]] = {
    "txnid_most_bits": ANY,
    "txnid_least_bits": ANY,
    "writer": ANY,
    "incarnation": ANY,
    "request_id": ANY,
    "producer_id": ANY,
    "consumer_id": ANY,
    "protocol_version": ANY,
    "tc_id": ANY,
    "sharing": ANY,
    "type": ANY,
    "action": ANY,
    "isolation": ANY,
    "trimmed": ANY,
    "at": ANY,
    "segments": ANY,
    "max_entries": ANY,
    "index": ANY,
    "timeout_ms": ANY,
    "key_epoch": (-1, MAX_ID),
    "epoch": (-1, MAX_ID),
    "key_begin": (0, MAX_ID),
    "name_epoch": (0, MAX_ID),
    "assignment_epoch": (0, MAX_ID),
    "ledger_id": (0, MAX_ID),
    "entry_id": (-1, MAX_ID),
    "sequence_id": (0, MAX_ID),
    "previous_sequence_id": (-1, MAX_ID),
    "count": (0, MAX_ENTRY_MESSAGES),
    "permits": (0, MAX_PERMITS),
    "revision": (0, MAX_REVISION),
    "min_revision": (0, MAX_REVISION),
    "at_least": (0, MAX_REVISION),
    "life": (0, MAX_REVISION),
    "timestamp_ms": (0, MAX_TIME_MS),
    "delay_ms": (0, MAX_DELAY_MS),
    "keep_ms": (0, MAX_KEEP_MS),
}

COUNTS: Final[Mapping[str, int]] = {
    "positions": MAX_ACK_POSITIONS,
    "open": MAX_SESSION_TRANSACTIONS,
    "writers": MAX_WRITERS_SENT,
    "topics": MAX_NAMES,
    "partitions": MAX_NAMES,
    "subscriptions": MAX_NAMES,
    "starts": MAX_STARTS,
}

TEXTS: Final[Mapping[str, int]] = {"policies_json": 100_000, "args_json": MAX_JSON, "token": 20_000}

ASKED: Final = (
    "ack", "add_partition_to_txn", "add_subscription_to_txn", "admin_request", "announce_session", "close_consumer",
    "close_producer", "create_topic", "delete_subscription", "delete_topic", "end_txn", "flow", "hello",
    "join_subscription", "leave_subscription", "list_topics", "merge_segments", "nack", "new_txn", "open_producer",
    "ping", "register_producer", "scan_entries", "seal_segment", "seek", "segment_cut", "segment_positions", "send",
    "split_segment", "subscribe", "take_name", "take_snapshot", "tc_client_connect", "update_topic", "watch_cluster",
    "watch_layout",
)  # fmt: skip
"""Commands that a server accepts; the others are answers."""

Check = Callable[[Any], None]


def _check_number(name: str, low: int, high: int, body: Any) -> None:
    if not low <= (found := getattr(body, name)) <= high:
        raise InvalidArgument(f"{name} {found}: expected {low} to {high}")


def _check_text(name: str, most: int, body: Any) -> None:
    if len(found := getattr(body, name)) > most:
        raise InvalidArgument(f"{name} of {len(found)} characters: expected at most {most}")


def _check_count(name: str, most: int, body: Any) -> None:
    if (found := len(getattr(body, name))) > most:
        raise InvalidArgument(f"{found} {name}: expected at most {most}")


def _check_texts(name: str, most: int, body: Any) -> None:
    if any(len(text) > most for text in getattr(body, name)):
        raise InvalidArgument(f"one of the {name} has more than {most} characters")


def _check_part(name: str, checks: tuple[Check, ...], body: Any) -> None:
    if body.HasField(name):
        part = getattr(body, name)
        for check in checks:
            check(part)


def _checks_of(message: Any) -> tuple[Check, ...]:
    """The checks for a message's descriptor."""
    return tuple(check for field in message.fields for check in _field_checks(field))


def _field_checks(field: FieldDescriptor) -> list[Check]:
    name = field.name
    if field.is_repeated:
        checks: list[Check] = [partial(_check_count, name, COUNTS[name])]
        if field.type == FieldDescriptor.TYPE_STRING:
            checks.append(partial(_check_texts, name, MAX_TEXT))
        return checks
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        parts = _checks_of(field.message_type)
        return [partial(_check_part, name, parts)] if parts else []
    if field.type == FieldDescriptor.TYPE_STRING:
        return [partial(_check_text, name, TEXTS.get(name, MAX_TEXT))]
    if field.type in (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_BOOL):
        return []
    low, high = NUMBERS[name]
    return [] if (low, high) == ANY else [partial(_check_number, name, low, high)]


_CHECKS: Final[Mapping[str, tuple[Check, ...]]] = {
    name: _checks_of(pb.Command.DESCRIPTOR.fields_by_name[name].message_type) for name in ASKED
}


def check_bounds(name: str, command: pb.Command) -> None:
    """Raises `InvalidArgument` for a number, count or text beyond its bound. A command that no server accepts has no
    bounds, because no handler will be called for it."""
    body = getattr(command, name)
    for check in _CHECKS.get(name, ()):
        check(body)
