"""Plans the creation of subscriptions: their start, and the one conditional write (DESIGN §8). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from segments.layout.topology import Topology
from txnstore import keys
from txnstore.records import SubscriptionRecord, encode
from txnstore.store import Commit, Compare, KeyValue, Put, Read, absent, unchanged_since
from txnwire.bounds import MAX_ID
from txnwire.errors import InvalidArgument
from txnwire.ids import Position
from txnwire.names import SegmentName
from txnwire.proto import txn_pb2 as pb

STREAM: Final = "stream"
QUEUE: Final = "queue"

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
TIMESTAMP: Final = "timestamp"
MESSAGE_ID: Final = "message_id"
POSITIONS: Final = "positions"

_TYPES: dict[int, str] = {pb.SUBSCRIPTION_TYPE_STREAM: STREAM, pb.SUBSCRIPTION_TYPE_QUEUE: QUEUE}


def subscription_type(wire: int) -> str:
    """Raises `InvalidArgument` for a type this version does not serve."""
    if (name := _TYPES.get(wire)) is None:
        raise InvalidArgument(f"subscription type {wire} is unknown: expected stream or queue")
    return name


def start_record(start: pb.Start, topology: Topology) -> dict[str, Any]:
    """The `start` of a subscription's record, from the wire: the first set field counts, none means earliest.

    `{"kind": "earliest"}`, `{"kind": "latest"}`, `{"kind": "timestamp", "timestamp_ms": n}` or `{"kind": "message_id",
    "segment": path, "ledger_id": n, "entry_id": n, "index": n, "after": bool}`, with `"ancestors"`, the ids of the
    segments that lie wholly before it, where there are any; `{"kind": "positions", "segments": path → [ledger id, entry
    id, index], "ancestors": […]}`. Raises `InvalidArgument` for a message of another topic, or of a segment that is
    gone.
    """
    if start.starts:
        return _positions_record(start, topology)
    if start.earliest:
        return {"kind": EARLIEST}
    if start.latest:
        return {"kind": LATEST}
    if start.timestamp_ms:
        return {"kind": TIMESTAMP, "timestamp_ms": start.timestamp_ms}
    if not start.segment:
        return {"kind": EARLIEST}
    segment = SegmentName.from_path(start.segment)
    topology.check_has(segment.path)
    ancestors = topology.ancestors(segment.segment_id)
    return {
        "kind": MESSAGE_ID,
        "segment": segment.path,
        "ledger_id": start.ledger_id,
        "entry_id": start.entry_id,
        "index": start.index,
        "after": start.after,
        **({"ancestors": list(ancestors)} if ancestors else {}),
    }


def _positions_record(start: pb.Start, topology: Topology) -> dict[str, Any]:
    segments: dict[str, list[int]] = {}
    ancestors: dict[int, None] = {}
    for one in start.starts:
        named = SegmentName.from_path(one.segment)
        if not (0 <= one.ledger_id <= MAX_ID and 0 <= one.entry_id <= MAX_ID):
            raise InvalidArgument(f"a start at {one.ledger_id}:{one.entry_id} of {named}: there is no entry there")
        if named.topic == topology.topic and topology.is_pruned(named.segment_id):
            continue  # nothing of it is left
        # ▲ A position of a deleted topic of the name would leave everything at the earliest.
        topology.check_has(named.path)
        segments[named.path] = [one.ledger_id, one.entry_id, one.index]
        ancestors |= dict.fromkeys(topology.ancestors(named.segment_id))
    passed = [one for one in ancestors if topology.paths[one] not in segments]
    return {"kind": POSITIONS, "segments": segments, **({"ancestors": sorted(passed)} if passed else {})}


def plan_subscription(
    topic_path: str,
    name: str,
    *,
    type: str,
    start: Mapping[str, Any],
    positions: Mapping[str, Position],
    still_held: Compare,
    topic: KeyValue,
    created_ms: int,
) -> Commit:
    """Put the subscription's record if there is none. `positions`: segment path → where "latest" or a time lies there.
    `topic`: the topic's record, compared as unchanged: ▲ if the topic is deleted meanwhile, the subscription would
    stay behind, for the next topic of the name."""
    key = keys.subscription(topic_path, name)
    record = SubscriptionRecord(
        type=type,
        start=dict(start),
        positions={path: (position.ledger_id, position.entry_id) for path, position in positions.items()},
        created_ms=created_ms,
    )
    return Commit(
        compares=(still_held, absent(key), unchanged_since(topic.key, topic.mod_revision)),
        puts=(Put(key, encode(record)),),
        else_reads=(Read(key), Read(still_held.key)),
    )


def check_type(subscription: tuple[str, str], type: str, asked: str) -> None:
    """Raises `InvalidArgument` if a subscription (topic path, name) is of another `type` than the consumer `asked`."""
    if type != asked:
        raise other_type(subscription, type, asked)


def other_type(subscription: tuple[str, str], type: str, asked: str) -> InvalidArgument:
    topic_path, name = subscription
    return InvalidArgument(
        f"subscription {name} of {topic_path} has type {type}, it cannot be joined as {asked}: join it as {type}, or "
        "under another name"
    )
