"""Bounds what a cluster holds: at work, no more than its work needs. At rest, after everything is drained and clients
have gone, nothing of any transaction, neither in a server's memory nor in etcd, except what is kept on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simulation.judges.footprint import Footprint, footprint_of
from simulation.judges.leftovers import BUDGETS
from simulation.judges.settling import work_left
from txnctl.checking.picture import picture_of
from txnctl.metrics.statistics import ServerStatistics
from txnctl.process.server import Server
from txnstore import keys
from txnstore.memory.mvcc import Mvcc

REST_S = 9.0
"""Until even the drain's own work is collected: the retention of headers, and a sweep."""
FOLLOWING_LOAD = ("layout changes", "segments without an owner", "pruning")
"""Kinds of work that may begin at any time, as segments follow their load."""
STALE_DEADLINE_S = 130
"""Longest time that a deadline key stays past its time: `STALE_AFTER_S`, a round of housekeeping, and room for both."""
OPEN_END = {
    "TailCache._entries": 20_000,
    "TailCache._order": 20_000,
    "NotedDecisions._noted": 50_000,
    "MessageCounts._recent": 256,
    "MessageCounts._tail": 256,
    "MessageCounts._sums": 5_000,
    "TransactionBuffer._aborted": 20_000,
    "TransactionBuffer._sidecars": 20_000,
    "StreamSubscription._rewinds": 100,
    "_Lane.entries": 5_000,
    "Consumer.read_ahead": 5_000,
}
"""Collections that keep something on purpose, up to their own bound: aborted data, caches, rings, and the result of one
read, which is bounded in bytes."""
LAZY = {"AckHolds._lowest": 64}
"""Heaps that drop stale items once these outnumber the others and reach a minimum."""
PER_SEGMENT = 6
BESIDE = 48
"""Bound of any other collection: a base, and more for each segment of the cluster. Transactions are hundreds."""
AT_WORK = 100
PER_RECORD = 1
"""Extra bound during work: requests under way, and each header and op record in etcd."""


def too_long(name: str, held: Footprint, when: str, most: int) -> Iterator[str]:
    """Collections with more than so many, except those with their own bound."""
    for what, length in held.lengths.items():
        allowed = LAZY[what] + 2 * most if what in LAZY else OPEN_END.get(what, most)
        if length > allowed:
            yield f"{name} {when} holds {length} in {what}, {allowed} are allowed"


def held_at_work(name: str, server: Server, mvcc: Mvcc) -> Iterator[str]:
    """Memory is bounded by the work: uncollected transactions, their operations, segments."""
    segments, headers, ops = (mvcc.count(one, keys.prefix_end(one)) for one in (keys.LEDGER, keys.TXN, keys.TXN_OP))
    yield from too_long(
        name, footprint_of(server), "at work", AT_WORK + PER_SEGMENT * segments + PER_RECORD * (headers + ops)
    )


def held_in_memory(name: str, server: Server, segments: int) -> Iterator[str]:
    """What exceeds the bounds at rest, in words. `segments`: of the whole cluster."""
    held = footprint_of(server, BUDGETS)
    yield from too_long(name, held, "at rest", BESIDE + PER_SEGMENT * segments)
    for what, count in under_way(server.statistics()).items():
        if count:
            yield f"{name} at rest tells of {count} {what}"
    for what, size in held.numbers.items():
        if size:
            yield f"{name} at rest has {size} in {what}"


def open_beyond_owned(name: str, server: Server, ledgers: int) -> Iterator[str]:
    """`ledgers`: how many it writes to."""
    broker = server.statistics().broker
    owned = 0 if broker is None else len(broker.segments)
    if ledgers > owned:
        yield f"{name} has {ledgers} ledgers open and owns {owned} segments"


def under_way(told: ServerStatistics) -> Mapping[str, int]:
    """Unfinished work according to statistics."""
    left = {"commits queued": told.store.commits.queued, "commits in flight": told.store.commits.in_flight}
    if (coordinator := told.coordinator) is not None:
        left |= {
            "open transactions": coordinator.open,
            "decided headers": coordinator.retained,
            "aborts overdue": coordinator.overdue,
            "sessions": coordinator.sessions,
        }
    if (broker := told.broker) is not None:
        left |= {
            "bytes in flight": broker.inflight_bytes,
            "decisions not cleaned up": broker.clean_up.backlog,
            "decisions awaited": broker.decisions.held,
        }
        for one in broker.segments:
            left |= {
                f"open transactions in {one.path}": one.buffer.open + one.buffer.deferred + one.buffer.cleaning,
                f"entries in flight in {one.path}": one.inflight,
                f"readers of {one.path}": one.readers,
            }
            for subscription in one.subscriptions:
                where = f"of {subscription.name} in {one.path}"
                pending, queue = subscription.pending, subscription.queue
                left[f"pending acks {where}"] = pending.transactions + pending.deferred + pending.cleaning
                left[f"consumers {where}"] = len(subscription.consumers)
                if queue is not None:
                    left[f"entries with consumers or set aside {where}"] = queue.unacked + queue.set_aside
    if (controller := told.controller) is not None:
        left |= {
            "consumers": controller.connected_consumers,
        }
    return left


def left_in_store(mvcc: Mvcc, wall_ms: int) -> Iterator[str]:
    """Records that will never be used again. A deadline key may be left by an end that was sent before the key was
    written and landed afterwards: the sweep drops it some time past the deadline."""
    picture = picture_of(mvcc.revision, lambda start, end: mvcc.range(start, end)[0])
    for what, left in work_left(picture).items():
        if left and what not in FOLLOWING_LOAD:
            yield f"left in etcd at rest: {len(left)} {what}"
    swept_ms = max(0, wall_ms - STALE_DEADLINE_S * 1000)
    for what, start, end in (
        ("op records", keys.TXN_OP, keys.prefix_end(keys.TXN_OP)),
        ("index keys of writes", keys.WRITES_BY_SEGMENT, keys.prefix_end(keys.WRITES_BY_SEGMENT)),
        ("index keys of acks", keys.ACKS_BY_SEGMENT_SUBSCRIPTION, keys.prefix_end(keys.ACKS_BY_SEGMENT_SUBSCRIPTION)),
        ("deadline keys", keys.TXN_BY_DEADLINE, keys.TXN_BY_DEADLINE + f"{swept_ms:013d}".encode()),
        ("pins of snapshots", keys.PIN, keys.prefix_end(keys.PIN)),
    ):
        if count := mvcc.count(start, end):
            yield f"left in etcd at rest: {count} {what}"
