"""The admin role: answers an operator's questions from etcd, the directory, and the owners of segments.

Each answer is one JSON object. An owner that does not answer is named in the answer instead of failing it, because
these questions matter most when something is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import structlog

from coordinator_v5 import queries
from segments.layout import subscription_queries
from segments.layout.directory import Directory
from segments.layout.topology import Topology
from txnctl.admin.admin_arguments import MAX_AGE_S, MAX_ROWS, number_of
from txnctl.admin.admin_lags import LAG_FIELDS, segment_lag, subscription_lag, total_lag
from txnctl.admin.admin_rows import (
    attached,
    held_readers,
    load_row,
    nothing_held,
    outcome,
    pinning,
    segment_row,
    subscription_row,
    unreadable_rows,
)
from txnctl.admin.role_calls import RoleCalls
from txnstore import keys
from txnstore.access.paging import in_parts
from txnstore.records import ABORTED, COMMITTED, OPEN, Header, LayoutChange, LoadSample, SegmentEntry, decode
from txnstore.store import KeyValue, MetadataStore
from txnwire.errors import (
    ConnectionLost,
    DataCorrupt,
    InvalidArgument,
    NameNotFound,
    NotOwner,
    Timeout,
    TopicNotFound,
    TxnError,
    TxnNotFound,
)
from txnwire.ids import TxnId
from txnwire.names import SegmentName, TopicName
from txnwire.ports import Clock

log = structlog.get_logger(__name__)

Arguments = Mapping[str, Any]
T = TypeVar("T")
Answer = Callable[[Arguments], Awaitable[dict[str, Any]]]

HANGING_OLDER_THAN_S = 5.0
PINS_SHOWN = 10
ASKED_AT_ONCE = 500
"""Segments, or transactions, that one question handles in one turn of the loop."""
ROWS_AT_ONCE = 200
"""Rows made in one turn: a segment's takes 50 us, more with many subscriptions."""
HANGING_ROWS = 5_000
"""An answer has room for about three times as many."""
SUBSCRIPTION_FIELDS = ("subscription", "type", "start", "consumers", "assignment_epoch", *LAG_FIELDS)
TRANSACTION_FIELDS = (
    *("txn", "state", "age_s", "timeout_in_s", "owner", "name", "transaction_key", "reason", "revision"),
)
HANGING_FIELDS = (*TRANSACTION_FIELDS, "segment", "held_at", "entries_behind", "waiting", "readers", "why")
STATES = (OPEN, COMMITTED, ABORTED)


class Administration:
    def __init__(self, store: MetadataStore, directory: Directory, calls: RoleCalls, clock: Clock) -> None:
        self._store = store
        self._directory = directory
        self._calls = calls
        self._clock = clock

    @property
    def answers(self) -> Mapping[str, Answer]:
        return {
            "topics.describe": self._describe_topic,
            "topics.stats": self._topic_stats,
            "subscriptions.list": self._list_subscriptions,
            "subscriptions.describe": self._describe_subscription,
            "subscriptions.lag": self._subscription_lag,
            "subscriptions.positions": self._subscription_positions,
            "transactions.list": self._list_transactions,
            "transactions.describe": self._describe_transaction,
            "transactions.outcomes": self._outcomes,
            "transactions.hanging": self._hanging,
        }

    # ---- topics -----------------------------------------------------------------------------------------------------

    async def _topic(self, args: Arguments) -> Topology:
        name = TopicName.parse(_text(args, "topic"))
        topology = await self._directory.fetch_topic(name.path)
        if topology is None:
            raise TopicNotFound(f"{name} does not exist; `txnctl topics list` shows those that do")
        return topology

    async def _describe_topic(self, args: Arguments) -> dict[str, Any]:
        topology = await self._topic(args)
        stats = await self._segment_stats(list(topology.paths.values()), rates=True)
        loads = await self._loads([topology.paths[entry.id] for entry in topology.active])
        loads |= {path: one["recent"] for path, one in stats.items() if any(one.get("recent", {}).values())}
        in_order = sorted(topology.segments.values(), key=lambda entry: (entry.lo, entry.id))
        segments = []
        async for entry in a_few_at_a_time(in_order):
            path = topology.paths[entry.id]
            segments.append(await self._described(topology, entry, stats[path]) | {"load": loads.get(path)})
        return {
            "topic": str(topology.topic),
            "epoch": topology.epoch,
            "policies": dict(topology.policies),
            "changes": [self._change(topology, change) for change in topology.record.changes],
            "segments": segments,
        }

    async def _loads(self, paths: list[str]) -> dict[str, dict[str, float]]:
        """What came in over the last minute, as far as owners have reported. One that cannot be read tells nothing."""
        _, found = await self._store.get_many([keys.load(path) for path in paths])
        loads = {}
        for path, record in zip(paths, found, strict=True):
            try:
                if record is not None:
                    loads[path] = load_row(decode(LoadSample, record.value, key=record.key))
            except DataCorrupt as error:
                log.error("load_unreadable", error=str(error))
        return loads

    def _change(self, topology: Topology, change: LayoutChange) -> dict[str, Any]:
        """A split or merge under way."""
        return {
            "kind": change.kind,
            "segments": [topology.paths.get(parent, str(parent)) for parent in change.parents],
            "for_s": round(max(0, self._clock.wall_ms() - change.since_ms) / 1000, 1),
        }

    async def _described(self, topology: Topology, entry: SegmentEntry, stats: Mapping[str, Any]) -> dict[str, Any]:
        path, row = topology.paths[entry.id], segment_row(stats)
        return {
            "id": entry.id,
            "segment": path,
            "descriptor": SegmentName.from_path(path).descriptor,
            "lo": entry.lo,
            "hi": entry.hi,
            "state": entry.state,
            "parents": entry.parents,
            "children": entry.children,
            "owner": self._owner(path),
            "entries": row.get("entries"),
            "last_confirmed": row.get("last_confirmed"),
            "max_read_position": row.get("max_read_position"),
            "pinned_by": await self._pins(stats),
            "backlog": {each["name"]: each["backlog"] for each in stats.get("subscriptions", [])},
            "error": row.get("error"),
        }

    async def _topic_stats(self, args: Arguments) -> dict[str, Any]:
        topology = await self._topic(args)
        stats = await self._segment_stats(list(topology.paths.values()))
        rows = [
            {"segment": path, "state": topology.segments[segment_id].state, "owner": self._owner(path)}
            | segment_row(stats[path])
            async for segment_id, path in a_few_at_a_time(list(topology.paths.items()))
        ]
        return {"topic": str(topology.topic), "segments": rows}

    async def _segment_stats(self, paths: Sequence[str], *, rates: bool = False) -> dict[str, dict[str, Any]]:
        """Each owner's statistics of its segment; `{"error": …}` if the owner does not answer."""
        answers = await self._ask_owners(paths, "segment.stats", **({"rates": True} if rates else {}))
        return {path: told if "error" in told else told["segments"][path] for path, told in answers.items()}

    async def _lags(self, topology: Topology, subscription: str | None = None) -> dict[str, dict[str, Any]]:
        """What each owner answers to `subscription.lag`, of one subscription or of all."""
        named = {} if subscription is None else {"subscription": subscription}
        return await self._ask_owners(list(topology.paths.values()), "subscription.lag", **named)

    async def _ask_owners(self, paths: Sequence[str], what: str, **args: Any) -> dict[str, dict[str, Any]]:
        """Each owner's answer of its segment; `{"error": …}` if the owner does not answer. So many are asked at once; a
        process that has answered nothing is not waited for again."""
        silent: dict[str, str] = {}
        heard: dict[str, None] = {}

        async def one(path: str) -> dict[str, Any]:
            owner = self._directory.owner(path)
            address = "" if owner is None else owner.address
            if address in silent and address not in heard:
                return {"error": silent[address]}
            try:
                answer = await self._calls.ask_owner(path, what, **args)
            except TxnError as error:
                told = f"{type(error).__name__}: {error}"
                if isinstance(error, Timeout | ConnectionLost):
                    silent[address] = told
                return {"error": told}
            heard[address] = None
            return answer

        answers: dict[str, dict[str, Any]] = {}
        for part in in_parts(paths, ASKED_AT_ONCE):
            answers.update(zip(part, await asyncio.gather(*map(one, part)), strict=True))
        return answers

    async def _pins(self, stats: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The open transactions that hold readers back first, with their owners."""
        pins = pinning(stats)[:PINS_SHOWN]
        if not pins:
            return []
        _, headers = await self._store.get_many([keys.txn(txn_id) for txn_id, _, _ in pins])
        return [
            {
                "txn": str(txn_id),
                "position": held_at,
                "entries_behind": behind,
                "owner": _owner_of(header),
            }
            for (txn_id, held_at, behind), header in zip(pins, headers, strict=True)
        ]

    def _owner(self, path: str) -> str | None:
        owner = self._directory.owner(path)
        return None if owner is None else owner.broker

    # ---- subscriptions ----------------------------------------------------------------------------------------------

    async def _list_subscriptions(self, args: Arguments) -> dict[str, Any]:
        topology = await self._topic(args)
        unreadable: dict[str, str] = {}
        found = await subscription_queries.list_subscriptions(self._store, topology.topic.path, unreadable)
        consumers: dict[str, dict[str, None]] = {}
        if any(info.record.type == "queue" for info in found):
            stats = await self._segment_stats(list(topology.paths.values()))
            async for told in a_few_at_a_time(list(stats.values())):
                attached(consumers, told)
        lags, now_ms = await self._lags(topology) if found else {}, self._clock.wall_ms()
        rows = [
            {
                "subscription": info.name,
                "type": info.record.type,
                "start": info.record.start["kind"],
                "consumers": sorted(info.assignment.consumers if info.assignment else consumers.get(info.name, ())),
                "assignment_epoch": info.assignment.epoch if info.assignment else 0,
                **total_lag(segment_lag(told, info.name, now_ms) for told in lags.values()),
            }
            async for info in a_few_at_a_time(found)
        ]
        rows += [
            {**dict.fromkeys(SUBSCRIPTION_FIELDS), "subscription": name, "consumers": [], "error": error}
            for name, error in unreadable.items()
        ]
        return {"subscriptions": rows}

    async def _describe_subscription(self, args: Arguments) -> dict[str, Any]:
        topology = await self._topic(args)
        name = _text(args, "subscription")
        info = await subscription_queries.describe_subscription(self._store, topology.topic.path, name)
        stats = await self._segment_stats(list(topology.paths.values()))
        lags, now_ms = await self._lags(topology, name), self._clock.wall_ms()
        rows, assigned = [], info.consumers_of_segments()
        async for path in a_few_at_a_time(list(topology.paths.values())):
            known: dict[str, Any] = next(
                (one for one in stats[path].get("subscriptions", []) if one["name"] == name), {}
            )
            error = {"error": stats[path]["error"]} if "error" in stats[path] else {}
            lag = segment_lag(lags[path], name, now_ms)
            rows.append({"segment": path, "assigned_to": assigned.get(path), **subscription_row(known), **lag, **error})
        head = {"subscription": name, "type": info.record.type, "start": info.record.start}
        return {**head, **total_lag(rows), "segments": rows}

    async def _subscription_lag(self, args: Arguments) -> dict[str, Any]:
        topology = await self._topic(args)
        name = _text(args, "subscription")
        await subscription_queries.describe_subscription(self._store, topology.topic.path, name)
        return subscription_lag(await self._lags(topology, name), name, self._clock.wall_ms())

    async def _subscription_positions(self, args: Arguments) -> dict[str, Any]:
        """▲ Fails unless every owner answers: a segment left out would be read again from the earliest."""
        topology, name = await self._topic(args), _text(args, "subscription")
        await subscription_queries.describe_subscription(self._store, topology.topic.path, name)
        answers = await self._ask_owners(list(topology.paths.values()), "subscription.position", subscription=name)
        silent = {path: answer["error"] for path, answer in answers.items() if "error" in answer}
        if silent:
            # One that was pruned meanwhile is missing when it is asked again.
            path, error = next(iter(silent.items()))
            raise NotOwner(f"{len(silent)} segments do not report where {name} stands, segment://{path} first: {error}")
        segments = {path: answer["position"] for path, answer in answers.items()}
        return {"life": topology.life, "epoch": topology.epoch, "segments": segments}

    # ---- transactions -----------------------------------------------------------------------------------------------

    async def _list_transactions(self, args: Arguments) -> dict[str, Any]:
        state = None if args.get("state") is None else str(args["state"]).upper()
        if state is not None and state not in STATES:
            raise InvalidArgument(f"state {args['state']!r}: expected one of {', '.join(STATES)}")
        segment = None if args.get("segment") is None else SegmentName.parse(str(args["segment"]))
        if segment is not None:
            await self._expect_segment(segment)
        unreadable: list[queries.UnreadableRecord] = []
        found = await queries.list_transactions(
            self._store,
            unreadable=unreadable,
            now_ms=self._clock.wall_ms(),
            state=state,
            older_than_ms=int(number_of(args, "older_than_s", 0, most=MAX_AGE_S) * 1000),
            owner=args.get("owner"),
            segment=None if segment is None else segment.path,
            transaction_key=args.get("transaction_key"),
            limit=int(number_of(args, "limit", 1000, most=MAX_ROWS)) or 1000,
        )
        rows = [self._row(record) async for record in a_few_at_a_time(found)]
        return {"transactions": rows + unreadable_rows(unreadable, keys.TXN, TRANSACTION_FIELDS)}

    async def _expect_segment(self, segment: SegmentName) -> None:
        topology = await self._topic({"topic": str(segment.topic)})
        if segment.path not in topology.paths.values():
            raise NameNotFound(f"{segment} is no segment of {topology.topic}; `txnctl topics describe` shows those")

    def _row(self, record: queries.TransactionRecord) -> dict[str, Any]:
        header, now_ms = record.header, self._clock.wall_ms()
        return {
            "txn": str(record.txn_id),
            "state": header.state,
            "age_s": round((now_ms - header.created_ms) / 1000, 1),
            "timeout_in_s": round((header.timeout_ms - now_ms) / 1000, 1) if header.state == OPEN else None,
            "owner": header.owner,
            "name": header.name,
            "transaction_key": header.txn_key,
            "reason": header.reason,
            "revision": record.revision,
        }

    async def _describe_transaction(self, args: Arguments) -> dict[str, Any]:
        """Describes a transaction by `txn`, or by `name`: the last one begun under that name, whose writers are kept
        for longer."""
        name, by_name = args.get("name"), None
        kept: dict[str, Any] = {}
        if name is None:
            txn_id = TxnId.parse(_text(args, "txn"))
        else:
            named = await queries.transaction_named(self._store, str(name))
            if named is None:
                raise TxnNotFound(f"no transaction is known by the name {name!r}: never begun, or forgotten")
            txn_id, by_name, keep = named
            kept = {"keep_ms": keep.ms, "keep_newest": keep.newest}
        found = await queries.describe_transaction(self._store, txn_id)
        if name is not None and found.record is None and by_name is None:
            # ▲ Collected between the two reads: its writers and its note are now in its name's record only.
            again = await queries.transaction_named(self._store, str(name))
            by_name = again.collected if again is not None and again.txn_id == txn_id else None
        if found.record is None and by_name is not None:
            return {
                "txn": str(txn_id),
                "outcome": by_name.state,
                "header": None,
                "revision": None,
                "operations": [],
                "writers": by_name.writers,
                "note": by_name.note,
                **kept,
            }
        if found.record is None and found.outcome is None and not found.ops:
            raise TxnNotFound(
                f"nothing is known of transaction {txn_id}: it was never begun, or ended so long ago that its outcome "
                f"has been forgotten"
            )
        return {
            "txn": str(txn_id),
            "outcome": outcome(found.outcome, is_open=found.record is not None),
            "header": msgspec.to_builtins(found.record.header) if found.record is not None else None,
            "revision": found.record.revision if found.record is not None else None,
            "operations": [msgspec.structs.asdict(op) for op in found.ops],
            "note": None if found.outcome is None else found.outcome.note,
            **kept,
        }

    async def _outcomes(self, args: Arguments) -> dict[str, Any]:
        found: dict[str, str] = {}
        for texts in in_parts(list(args.get("txns") or []), ASKED_AT_ONCE):
            ids = [TxnId.parse(str(text)) for text in texts]
            decisions = await queries.outcomes(self._store, ids)
            _, headers = await self._store.get_many([keys.txn(txn_id) for txn_id in ids])
            for txn_id, decision, header in zip(ids, decisions, headers, strict=True):
                found[str(txn_id)] = outcome(decision, is_open=header is not None)
        return {"outcomes": found}

    async def _hanging(self, args: Arguments) -> dict[str, Any]:
        """One row for each place where a transaction holds something back, oldest transaction first (SCENARIOS E6)."""
        older_than_s = number_of(args, "older_than_s", HANGING_OLDER_THAN_S, most=MAX_AGE_S)
        unreadable: list[queries.UnreadableRecord] = []
        found = await queries.hanging(
            self._store,
            now_ms=self._clock.wall_ms(),
            older_than_ms=int(older_than_s * 1000),
            unreadable=unreadable,
        )
        shown, places = [], 0
        for one in found:
            if places < HANGING_ROWS:
                shown.append(one)
                places += len(one.writes) + len(one.acks)
        paths = {path: None for one in shown for path in (*one.writes, *(segment for segment, _ in one.acks))}
        stats = await self._segment_stats(list(paths))
        rows: list[dict[str, Any]] = []
        for one in shown:
            rows += await self._held_back(one, stats)
        return {"hanging": rows[:HANGING_ROWS] + unreadable_rows(unreadable, b"", HANGING_FIELDS)}

    async def _held_back(self, one: queries.Hanging, stats: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
        is_open = one.record.header.state == OPEN
        places: list[tuple[str | None, str | None]] = [(path, None) for path in one.writes]
        rows = []
        async for path, name in a_few_at_a_time([*places, *one.acks] or [(None, None)]):
            if path is None:
                row = nothing_held("holds nothing back yet")
            elif name is None:
                row = held_readers(one.record.txn_id, stats[path])
            else:
                row = nothing_held(f"has acks of {name} that are pending") | {"waiting": [name]}
            row["why"] += "" if is_open else f"; {one.record.header.state}, but not cleaned up"
            row["why"] += "; the segment has no owner" if path in one.ownerless else ""
            rows.append(self._row(one.record) | row | {"segment": path})
        return rows


async def a_few_at_a_time(items: Sequence[T]) -> AsyncIterator[T]:
    """Yields `items` in order, and lets other tasks of the loop run after every few."""
    for part in in_parts(items, ROWS_AT_ONCE):
        for item in part:
            yield item
        await asyncio.sleep(0)


def _owner_of(header: KeyValue | None) -> str | None:
    """None also for a header that cannot be read."""
    try:
        return None if header is None else decode(Header, header.value, key=header.key).owner
    except DataCorrupt as error:
        log.error("header_unreadable", error=str(error))
        return None


def _text(args: Arguments, name: str) -> str:
    value = args.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"{name} is missing: expected text, found {value!r}")
    return value
