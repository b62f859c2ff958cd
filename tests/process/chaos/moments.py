"""Moments at which a fault does most harm: right behind a chosen kind of write to etcd, at whoever has a part in it.

Chance alone seldom hits the milliseconds between two steps of a change; what is seen in etcd tells when they are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tests.process.chaos.faults import BROKERS, CONTROLS, WRITES
from txnstore import keys
from txnstore.records import OPEN, Header, LedgerRecord, OwnerRecord, RegistrationRecord, TopicRecord, decode
from txnstore.store import Event, EventKind, KeyValue


def _sealed(record: KeyValue) -> bool:
    return decode(LedgerRecord, record.value, key=record.key).sealed is not None


def _changing(record: KeyValue) -> bool:
    return bool(decode(TopicRecord, record.value, key=record.key).changes)


def _pruning(record: KeyValue) -> bool:
    return bool(decode(TopicRecord, record.value, key=record.key).pruning)


def _decided(record: KeyValue) -> bool:
    return decode(Header, record.value, key=record.key).state != OPEN


_MATCHES: dict[str, tuple[bytes, Callable[[KeyValue], bool]]] = {
    "op": (keys.TXN_OP, lambda _: True),
    "decision": (keys.TXN, _decided),
    "seal": (keys.LEDGER, _sealed),
    "ledger": (keys.LEDGER, lambda record: not _sealed(record)),
    "change": (keys.TOPIC, _changing),
    "layout": (keys.TOPIC, lambda record: not _changing(record)),
    "pruning": (keys.TOPIC, _pruning),
    "cursor": (keys.CURSOR, lambda _: True),
    "clean-up": (keys.SEGMENT_STATE, lambda _: True),
    "drained": (keys.DRAINED, lambda _: True),
    "owner": (keys.OWNER, lambda _: True),
    "key": (keys.TXN_KEY, lambda _: True),
}
assert tuple(_MATCHES) == WRITES


class Moments:
    """Show it every change of etcd."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}
        self._leader = CONTROLS[0]
        self._waiting: dict[asyncio.Future[KeyValue], str] = {}

    def saw(self, events: Sequence[Event]) -> None:
        for event in events:
            record = event.record
            if event.kind is not EventKind.PUT:
                continue
            if record.key.startswith(keys.OWNER):
                path = record.key[len(keys.OWNER) :].decode()
                self._owners[path] = decode(OwnerRecord, record.value, key=record.key).broker
            elif record.key == keys.leader("controller"):
                self._leader = decode(RegistrationRecord, record.value, key=record.key).id
            for waiter, write in list(self._waiting.items()):
                prefix, matches = _MATCHES[write]
                if record.key.startswith(prefix) and not waiter.done() and matches(record):
                    waiter.set_result(record)

    async def next(self, write: str) -> str | None:
        """Once something of this kind has been written: who has a part in it; None where that cannot be told."""
        waiter: asyncio.Future[KeyValue] = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = write
        try:
            record = await waiter
        finally:
            del self._waiting[waiter]
        return self._part_in(record)

    def _part_in(self, record: KeyValue) -> str | None:
        key = record.key
        if key.startswith((keys.TOPIC, keys.DRAINED)):
            return self._leader
        for prefix in (keys.OWNER, keys.LEDGER):
            if key.startswith(prefix):
                return self._owners.get(key[len(prefix) :].decode())
        if key.startswith(keys.TXN_OP):
            return self._owners.get(keys.op_parts(key)[1])
        return None


def drawn_for(write: str) -> Sequence[str]:
    """Of whom one is drawn where nobody is known to have a part."""
    return CONTROLS if write in ("decision", "key") else BROKERS
