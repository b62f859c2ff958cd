"""Finds what closed processes leave in memory and outside: one judge for the simulation and for tests of servers and
clients.

`rest` says what a running cluster may hold. Here everything has ended in order: no task of ours runs, no budget is
taken, no ledger file is open, there are no members, and no leases but those meant to expire.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from simulation.judges.footprint import footprint_of
from txnstore import keys
from txnstore.memory.memory_etcd import MemoryEtcd

ROOT: Final = f"{Path(__file__).parents[2]}{os.sep}"
OURS: Final = ("txnwire", "txnstore", "watchers", "segments", "coordinator_v5", "txnclient", "txnctl")
BUDGETS: Final = (
    "Budget.bytes",
    "SendsInFlight.entries",
    "SendsInFlight.bytes",
    "CleanUp._in_flight",
    "CleanUp._keys_in_flight",
    "BufferRoom.taken",
    "Channel._unanswered_bytes",
    "OpenFile._users",
)
EMPTY: Final = (
    "OwnedTasks._tasks",
    "Client._opened",
    "Links._links",
    "Links._attempts",
    "AssignedFeeds._memberships",
    "ConsumerImpl._feeds",
    "ReaderImpl._feeds",
    "CleanUp._registered",
    "CleanUp._due",
    "Controller._joining",
    "TopicUsers._coming",
    "TopicUsers._marking",
    "FileLedgerStore._writers",
    "IoThreads.under_way",
    "FileLedgerStore._ended",
    # Who waits for an answer
    "BeginHandler._awaiting_ids",
    "BeginHandler._pending",
    "BeginRequest.replies",
    "EndHandler._pending",
    "OwnedTransaction.waiters",
    "OwnedTcid.waiting",
    "NameHandler._creating",
    "TransactionKeys._creating",
    "Caller._waiting",
    "Waiters._futures",
    "DecisionWatch._waiters",
    "DecisionWatch._tasks",
    "ClientDirectory._asked",
    "Coordinators._announcing",
    "SharedCuts._begun",
    "SharedCuts._next",
    "StreamConnection._drainers",
    # What others have here
    "BrokerService._connections",
    "ConsumingService._attaching",
    "ConsumingService._connections",
    "DeliveryShares._consumers",
    "LayoutService._cluster_watchers",
    "LayoutService._stale_cluster",
    "LayoutService._stale_topics",
    "LayoutService._topics_of",
    "LayoutService._watchers_of",
    "Link.consumers",
    "Link.producers",
    "Registrations._known",
    "TransactionKeys._holders",
    "TransactionKeys._of_connection",
    # What is owned, and on its way to or from an owner
    "OwnedSegments.serving",
    "OwnedSegments.taking",
    "OwnedSegments._endings",
    "OwnedSegments._handing_over",
    "OwnedSegments._recording",
    "CacheShares._caches",
    "TcidOwnership._mine",
    "TakeOver._taken",
    "Directory._tasks",
    "RoleCalls._callers",
    "RoleCalls._opening",
    "Pins._pinned",
)
"""Members, producers, connections, open files, and whatever a call or a take-over takes away when it ends."""


def left_in(closed: object) -> Iterator[str]:
    """What is left in a server, client, role or store that was closed in order."""
    lengths, numbers = footprint_of(closed, BUDGETS)
    sizes = numbers | {what: lengths.get(what, 0) for what in EMPTY}
    for what, size in sizes.items():
        if size:
            yield f"{type(closed).__name__}, closed, has {size} left in {what}"


def tasks_left(tasks: Iterable[asyncio.Task[Any]]) -> Iterator[str]:
    """Tasks that run code of ours and have not ended."""
    for task in tasks:
        code = getattr(task.get_coro(), "cr_code", None)
        if task.done() or code is None:
            continue
        place = code.co_filename.removeprefix(ROOT)
        if place.partition(os.sep)[0] in OURS:
            yield f"a task is left: {task.get_name()}, {code.co_qualname} of {place}"


def files_left() -> Iterator[str]:
    """Ledger files that this process has open."""
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # closed meanwhile
        if f"{os.sep}ledgers{os.sep}" in path:
            yield f"a file is left open: {path}"


def leases_left(etcd: MemoryEtcd) -> Iterator[str]:
    """▲ Leases of sending fences expire an hour after the last sending: see `txnstore.access.sending_fence`."""
    held: dict[int, list[str]] = {}
    for record in etcd.mvcc.range(b"\0", b"\xff")[0]:
        if record.lease and not record.key.startswith(keys.SENDER):
            held.setdefault(record.lease, []).append(record.key.decode())
    for lease, names in held.items():
        yield f"lease {lease:x} is left, with {', '.join(names)}"
