"""Names the steps of servers as seen from outside (a put or delete in etcd, an operation of a disk, a request being
sent), and says which process does each. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from txnstore import keys
from txnstore.records import LedgerRecord, TopicRecord, decode
from txnstore.store import Event, EventKind

CHANGE_OF_LAYOUT = ("seal", "change of a layout")
IN_ETCD = (
    "begin",
    "decision",
    "collection",
    "deadline key",
    "outcome bits",
    "id block",
    "op record",
    "clean-up",
    "aborted record",
    "watermark",
    "cursor",
    "cursor deleted",
    "ledger list",
    *CHANGE_OF_LAYOUT,
    "deletion of a topic",
    "topic gone",
    "subscription",
    "subscription gone",
    "assignment",
    "drained",
    "ownership",
    "ownership gone",
    "coordinator id",
    "coordinator id gone",
    "election",
    "transaction key",
    "transaction name",
)
ON_DISK = {"sync": "sync", "footer": "footer", "sidecar": "sidecar", "create": "new ledger", "fence": "ledger fenced"}
"""Name that `SimDisk.witnesses` get → the step"""
REQUESTS = {"commit": "a write is sent", "fence": "a fence is raised", "grant": "a lease is asked for"}
"""Name that `StoreFaults.witnesses` get → the step"""
STEPS = (*IN_ETCD, *ON_DISK.values(), *REQUESTS.values())


class Step(NamedTuple):
    """`segment`, `tcid`, `leads`: the step is done by this segment's or id's owner, or by this elected role; at most
    one is set."""

    name: str
    segment: str | None = None
    tcid: int | None = None
    leads: str | None = None


def step_of(event: Event) -> Step | None:
    """None for a change that is no step."""
    key = event.record.key
    for prefix, name_it in _BY_PREFIX:
        if key.startswith(prefix):
            return name_it(event, key[len(prefix) :].decode())
    return None


def _header(event: Event, _: str) -> Step:
    tcid = keys.txn_of(event.record.key).tcid
    if event.kind is EventKind.DELETE:
        return Step("collection", leads="sweeper")
    return Step("begin" if event.record.version == 1 else "decision", tcid=tcid)


def _op(event: Event, _: str) -> Step:
    segment = keys.op_parts(event.record.key)[1]
    return Step("op record" if event.kind is EventKind.PUT else "clean-up", segment)


def _segment_state(event: Event, rest: str) -> Step | None:
    if event.kind is EventKind.DELETE:
        return None
    return Step("watermark" if rest.endswith("/watermark") else "aborted record", _segment_in(rest))


def _ledger(event: Event, rest: str) -> Step | None:
    if event.kind is EventKind.DELETE:
        return None
    sealed = decode(LedgerRecord, event.record.value, key=event.record.key).sealed
    return Step("ledger list" if sealed is None else "seal", rest)


def _topic(event: Event, rest: str) -> Step | None:
    if event.kind is EventKind.DELETE:
        return Step("topic gone", leads="controller")
    record = decode(TopicRecord, event.record.value, key=event.record.key)
    if record.deleting_ms:
        return Step("deletion of a topic", leads="controller")
    return Step("change of a layout", leads="controller") if record.changes else None


def _segments(put: str, deleted: str | None) -> Callable[[Event, str], Step | None]:
    def name_it(event: Event, rest: str) -> Step | None:
        name = put if event.kind is EventKind.PUT else deleted
        return None if name is None else Step(name, _segment_in(rest))

    return name_it


def _leads(role: str, put: str, deleted: str | None = None) -> Callable[[Event, str], Step | None]:
    def name_it(event: Event, _: str) -> Step | None:
        name = put if event.kind is EventKind.PUT else deleted
        return None if name is None else Step(name, leads=role)

    return name_it


def _coordinator(event: Event, rest: str) -> Step:
    return Step("coordinator id" if event.kind is EventKind.PUT else "coordinator id gone", tcid=int(rest, 16))


def _of_tcid(put: str) -> Callable[[Event, str], Step | None]:
    """The TCID is the first part of what follows."""

    def name_it(event: Event, rest: str) -> Step | None:
        return Step(put, tcid=int(rest.partition("/")[0], 16)) if event.kind is EventKind.PUT else None

    return name_it


def _deadline(event: Event, _: str) -> Step | None:
    if event.kind is EventKind.DELETE:
        return None
    return Step("deadline key", tcid=keys.deadline_parts(event.record.key)[1].tcid)


def _anybody(put: str) -> Callable[[Event, str], Step | None]:
    return lambda event, _: Step(put) if event.kind is EventKind.PUT else None


def _election(event: Event, rest: str) -> Step | None:
    return Step("election", leads=rest) if event.kind is EventKind.PUT else None


def _segment_in(rest: str) -> str:
    """`tenant/namespace/name/segment` at the beginning."""
    return "/".join(rest.split("/")[:4])


_BY_PREFIX: tuple[tuple[bytes, Callable[[Event, str], Step | None]], ...] = (
    (keys.TXN, _header),
    (keys.TXN_OP, _op),
    (keys.TXN_BY_DEADLINE, _deadline),
    (keys.TXN_OUTCOME, _leads("sweeper", "outcome bits")),
    (keys.TXN_NAME, _anybody("transaction name")),
    (keys.TXN_KEY, _anybody("transaction key")),
    (keys.TXN_SEQ, _of_tcid("id block")),
    (keys.SEGMENT_STATE, _segment_state),
    (keys.TOPIC, _topic),
    (keys.LEDGER, _ledger),
    (keys.CURSOR, _segments("cursor", "cursor deleted")),
    (keys.SUBSCRIPTION, _leads("controller", "subscription", "subscription gone")),
    (keys.ASSIGNMENT, _leads("controller", "assignment")),
    (keys.DRAINED, _anybody("drained")),
    (keys.OWNER, _segments("ownership", "ownership gone")),
    (keys.TC, _coordinator),
    (keys.LEADER, _election),
)
