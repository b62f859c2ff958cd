"""Makes the admin role's rows from what segment owners and the store reported. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from coordinator_v5.queries import UnreadableRecord
from txnstore.records import OPEN, LoadSample
from txnstore.writes.transitions import RecordedDecision
from txnwire.ids import TxnId


def position(pair: Any) -> str:
    ledger_id, entry_id = pair
    return f"{ledger_id}:{entry_id}"


def pinning(stats: Mapping[str, Any]) -> list[tuple[TxnId, str, int]]:
    """Transactions that hold readers back, the first one first: id, position, entries behind it."""
    pins = zip(stats.get("pinning", []), stats.get("entries_behind", []), strict=True)
    return [(TxnId(*txn), position(place), behind) for (txn, place), behind in pins]


def load_row(sample: LoadSample) -> dict[str, float]:
    """What comes into a segment per second."""
    return {"messages_per_s": sample.messages_in_per_s, "bytes_per_s": sample.bytes_in_per_s}


def segment_row(stats: Mapping[str, Any]) -> dict[str, Any]:
    """A segment's statistics for display: numbers and flags unchanged, positions as text, subscriptions by name, and
    the transactions that hold readers back. An error (`{"error": …}`) stays as it is."""
    if "error" in stats:
        return dict(stats)
    row: dict[str, Any] = {
        name: value for name, value in stats.items() if isinstance(value, int | float) and name != "path"
    }
    row |= {name: position(stats[name]) for name in ("last_confirmed", "max_read_position")}
    row["subscriptions"] = [each["name"] for each in stats["subscriptions"]]
    row["held_by"] = [{"txn": str(txn), "position": at, "entries_behind": behind} for txn, at, behind in pinning(stats)]
    return row


def subscription_row(stats: Mapping[str, Any]) -> dict[str, Any]:
    """A subscription's statistics in one segment, flat and readable; {} if its owner has none."""
    if not stats:
        return {}
    return {
        "consumer": stats["consumer"],
        "mark_delete": position(stats["mark_delete"]),
        "backlog": stats["backlog"],
        "delivered": stats["delivered"],
        "permits": stats["permits"],
        "pending_acks": stats["pending"]["positions"] + stats["pending"]["cumulative"],
        "pending_in": [str(TxnId(*txn)) for txn in stats["open_transactions"]],
        "awaits_predecessor": stats["held_back"],
        "consumers": stats["consumers"],
        **_queue_facts(stats.get("queue")),
    }


def attached(found: dict[str, dict[str, None]], stats: Mapping[str, Any]) -> None:
    """Adds the consumers that the owner of one segment knows, by subscription. Only owners know a queue's consumers,
    because a queue has no assignments."""
    for each in stats.get("subscriptions", []):
        found.setdefault(each["name"], {}).update(dict.fromkeys(each["consumers"]))


def _queue_facts(queue: Mapping[str, Any] | None) -> dict[str, Any]:
    """Where a queue's entries are; None if it is no queue."""
    return {name: None if queue is None else queue[name] for name in ("unacked", "set_aside", "delayed")}


def outcome(decision: RecordedDecision | None, *, is_open: bool) -> str:
    if decision is not None:
        return decision.state
    return OPEN if is_open else "UNKNOWN"


def held_readers(txn_id: TxnId, stats: Mapping[str, Any]) -> dict[str, Any]:
    """Readers that a transaction with writes in a segment holds back, as far as the segment's owner answers. Queues do
    not wait: they go on around it (V8)."""
    if "error" in stats:
        return nothing_held(f"wrote; the segment's owner does not answer: {stats['error']}")
    pins = pinning(stats)
    held_at, behind = next(((at, after) for one, at, after in pins if one == txn_id), (None, None))
    first = pins[0][0] if pins else txn_id
    if held_at is None:
        return nothing_held("wrote; is not among the first to hold readers back")
    return {
        "held_at": held_at,
        "entries_behind": behind,
        "waiting": [each["name"] for each in stats["subscriptions"] if each["type"] != "queue"],
        "readers": stats["readers"],
        "why": "holds readers back" if first == txn_id else f"would, but {first} holds them back before it",
    }


def nothing_held(why: str) -> dict[str, Any]:
    return {"held_at": None, "entries_behind": None, "waiting": [], "readers": 0, "why": why}


def unreadable_rows(found: Iterable[UnreadableRecord], prefix: bytes, fields: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each record that cannot be read: the first of `fields` holds its key behind `prefix`, the others
    nothing, and `error` what is wrong."""
    first, *others = fields
    return [
        {first: one.key.removeprefix(prefix.decode()), **dict.fromkeys(others), "error": one.error}
        for one in {one.key: one for one in found}.values()
    ]
