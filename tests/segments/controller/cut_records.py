"""Records and answers that cuts are taken from."""

from __future__ import annotations

import msgspec

from segments.layout.topology import Topology, create_record
from txnstore import keys, records
from txnstore.records import OwnerRecord
from txnstore.store import KeyValue
from txnwire.ids import TxnId
from txnwire.names import TopicName

TOPIC = TopicName("public", "nyc", "flights")


TOPOLOGY = Topology(TOPIC, create_record(2, policies={}, created_ms=0))


LEFT, RIGHT = TOPOLOGY.active_paths


ONE, TWO = TxnId(0, 1), TxnId(0, 2)


R = 100


def record(key: bytes, value: msgspec.Struct, *, version: int = 1, created: int = 10, modified: int = 10) -> KeyValue:
    return KeyValue(key, records.encode(value), version, created, modified)


def topic_record(topology: Topology = TOPOLOGY, *, created: int = 10) -> KeyValue:
    return record(keys.topic(TOPIC.path), topology.record, created=created)


def owner_record(path: str, epoch: int = 20) -> KeyValue:
    return record(keys.owner(path), OwnerRecord(broker="b", address="b:1"), created=epoch)


def found(
    *headers: KeyValue | None,
    topic: KeyValue | None = None,
    right: KeyValue | None = None,
    horizon: KeyValue | None = None,
) -> list[KeyValue | None]:
    return [topic or topic_record(), owner_record(LEFT), right or owner_record(RIGHT), horizon, *headers]
