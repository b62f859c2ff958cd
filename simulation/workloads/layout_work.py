"""Splits and merges under all faults, and a judge of layouts and seals at every revision of the store.

One process changes the layouts of the workload's topics throughout, as an operator or the autoscaler would, sometimes
with racing requests. A judge reads every change of the store and counts the rare branches reached, so that a green run
shows what it covered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import txnclient
from segments.layout.topology import SEALED, Topology
from simulation.clients.life import WorkloadLife
from simulation.clients.plan import TOPICS, ClientPorts, Plan
from simulation.judges.history import History, Place
from txnclient.connection.opening import Opening
from txnclient.connection.topic_layout import SegmentInfo, TopicLayout
from txnstore import keys
from txnstore.records import Drained, LedgerRecord, TopicRecord, decode
from txnstore.store import Event, EventKind
from txnwire.errors import InvalidArgument, NotAllowed, TopicNotFound, TxnError
from txnwire.ids import HASH_SPACE, hash_key
from txnwire.names import TopicName

MOST_SEGMENTS = 5
"""Limit of a topic's active segments, above which they are merged."""
BEHIND_S = 1.0
"""A change within this time follows another one directly."""

RARE = (
    "split", "merge", "merge right behind a split", "split of a child right behind its birth", "seal given up",
    "seal undone", "owner gone between seal and layout change", "controller gone while a change is under way",
    "sealed empty", "drained", "drained taken back", "pruned",
)  # fmt: skip
"""What a judge counts."""


class LayoutLife(WorkloadLife):
    """One life of the process that changes layouts. `pace_s`: the mean pause between two of its changes."""

    _may_connect_carelessly = False

    def __init__(self, ports: ClientPorts, plan: Plan, topics: Sequence[str], pace_s: float) -> None:
        super().__init__(ports, plan)
        self._topics = topics
        self._pace_s = pace_s

    def _connect(self) -> Opening[txnclient.Client]:
        return self._plan.connect(self._ports, timeout=self._random.choice((2.0, 20.0)))

    async def _work(self, client: txnclient.Client) -> None:
        await self._repeat(partial(self._turn, client), pause_s=self._pace_s, failed=self._met)

    def _met(self, error: TxnError) -> None:
        """Not told: errors that a racing change may get, as the layout has moved on, or is gone."""
        if not isinstance(error, InvalidArgument | NotAllowed | TopicNotFound):
            super()._met(error)

    async def _turn(self, client: txnclient.Client) -> None:
        layout = await client.describe_topic(self._random.choice(self._topics))
        asked = [self._ask(client, layout)]
        if self._random.random() < 0.2:
            asked.append(self._ask(client, layout))  # S6: of two that race one loses cleanly, or both are one
        for told in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(told, BaseException):
                raise told
            if self._random.random() < 0.3:
                await self._ask(client, told)

    async def _ask(self, client: txnclient.Client, layout: TopicLayout) -> TopicLayout:
        active = layout.active
        if len(active) > 1 and self._random.random() < len(active) / (MOST_SEGMENTS + 1):
            lower = self._random.randrange(len(active) - 1)
            return await self._careless.call(client.merge(active[lower].name, active[lower + 1].name))
        parent = self._random.choice(active)
        return await self._careless.call(client.split(parent.name, at=self._middle(parent)))

    def _middle(self, parent: SegmentInfo) -> int | None:
        lo, hi = parent.range
        return self._random.randrange(lo + 1, hi + 1) if lo < hi and self._random.random() < 0.5 else None


@dataclass(slots=True)
class _KnownSegment:
    lo: int
    hi: int
    born: float
    born_by: str


@dataclass(slots=True)
class _Topic:
    """A topic by its current record. `known`: every segment it ever had, pruned ones too."""

    topology: Topology
    known: dict[int, _KnownSegment] = field(default_factory=dict)


class LayoutJudge:
    """Call it with every change of the store, revision by revision. `findings`: what is broken; `counts`: how often
    each of `RARE` was seen."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self.counts: dict[str, int] = dict.fromkeys(RARE, 0)
        self._topics: dict[str, _Topic] = {}
        self._ledgers: dict[str, LedgerRecord] = {}
        self._drained: dict[str, Drained] = {}
        self._subscriptions: dict[str, None] = {}
        self.segments: dict[tuple[str, int], tuple[int, int]] = {}
        """(topic path, segment id) → its bounds, for every segment that ever existed"""

    def saw(self, at: float, events: Sequence[Event]) -> None:
        """Everything that changed at one revision."""
        for event in events:
            key = event.record.key
            if key.startswith(keys.TOPIC):
                self._saw_topic(at, event)
            elif key.startswith(keys.LEDGER):
                self._saw_ledger(event)
        for event in events:
            key = event.record.key
            if key.startswith(keys.OWNER) and event.kind is EventKind.DELETE:
                self._saw_owner_gone(key[len(keys.OWNER) :].decode())
            elif key == keys.leader("controller") and event.kind is EventKind.DELETE:
                if any(topic.topology.record.changes for topic in self._topics.values()):
                    self.counts["controller gone while a change is under way"] += 1
            elif key.startswith(keys.DRAINED):
                self._saw_drained(event)
            elif key.startswith(keys.SUBSCRIPTION):
                self._saw_subscription(event)

    # ---- layouts ----------------------------------------------------------------------------------------------------

    def _saw_topic(self, at: float, event: Event) -> None:
        path = event.record.key[len(keys.TOPIC) :].decode()
        if event.kind is EventKind.DELETE:
            self._topics.pop(path, None)
            return
        record = decode(TopicRecord, event.record.value, key=event.record.key)
        now = Topology(TopicName.from_path(path), record)  # ▲ raises where its ranges do not tile
        before = self._topics.get(path)
        if before is None:
            before = self._topics[path] = _Topic(now)
        else:
            self._judge_layouts(path, before.topology, now)
            self._count_changes(at, before, now)
        born_by = _born_by(before.topology, now)
        for one in now.segments.values():
            if one.id not in before.known:
                before.known[one.id] = _KnownSegment(one.lo, one.hi, at, born_by)
                if self.segments.setdefault((path, one.id), (one.lo, one.hi)) != (one.lo, one.hi):
                    self.findings.append(f"segment {one.id} of {path} is used twice")
        self.counts["pruned"] += sum(1 for one in before.topology.segments if one not in now.segments)
        before.topology = now

    def _judge_layouts(self, path: str, before: Topology, now: Topology) -> None:
        moved = [one.id for one in before.active] != [one.id for one in now.active]
        if now.epoch != before.epoch + moved:
            self.findings.append(f"layout of {path} goes from epoch {before.epoch} to {now.epoch}, changed: {moved}")
        for one in before.segments.values():
            after = now.segments.get(one.id)
            if after is None and one.state != SEALED:
                self.findings.append(f"{before.paths[one.id]} has gone from its layout and was never sealed")
            elif after is not None and one.state == SEALED and after.state != SEALED:
                self.findings.append(f"{before.paths[one.id]} was sealed by layout {before.epoch} and is {after.state}")
            elif after is not None and one.state != SEALED and after.state == SEALED:
                ledgers = self._ledgers.get(before.paths[one.id])
                if ledgers is None or ledgers.sealed is None:
                    self.findings.append(f"{before.paths[one.id]} is SEALED in its topic, and its ledger is not")

    def _count_changes(self, at: float, before: _Topic, now: Topology) -> None:
        left = {change.id for change in now.record.changes}
        for change in before.topology.record.changes:
            if change.id in left:
                continue
            if any(now.segments[parent].state != SEALED for parent in change.parents if parent in now.segments):
                self.counts["seal given up"] += 1
                continue
            self.counts[change.kind] += 1
            young = [one for one in change.parents if at - before.known[one].born < BEHIND_S and before.known[one].born]
            if any(before.known[one].born_by == "split" for one in young):
                which = (
                    "merge right behind a split"
                    if change.kind == "merge"
                    else "split of a child right behind its birth"
                )
                self.counts[which] += 1

    # ---- seals ------------------------------------------------------------------------------------------------------

    def _saw_ledger(self, event: Event) -> None:
        path = event.record.key[len(keys.LEDGER) :].decode()
        if event.kind is EventKind.DELETE:
            self._ledgers.pop(path, None)
            return
        now = decode(LedgerRecord, event.record.value, key=event.record.key)
        before = self._ledgers.get(path)
        self._ledgers[path] = now
        if now.sealed is not None and (before is None or before.sealed is None):
            if self._change_of(path, now.sealed_by) is None:
                self.findings.append(f"{path} is sealed by {now.sealed_by}, which its topic does not tell of")
            if not any(ledger.closed_length for ledger in now.ledgers) and now.trimmed_below is None:
                self.counts["sealed empty"] += 1
        if before is not None and before.sealed is not None and before.sealed != now.sealed:
            self.counts["seal undone"] += 1
            if self._state(path) == SEALED or self._change_of(path, before.sealed_by) is not None:
                self.findings.append(f"{path} was sealed at {before.sealed} for good, and is at {now.sealed}")
        if now.sealed is not None and any(ledger.closed_length is None for ledger in now.ledgers):
            self.findings.append(f"{path} is sealed at {now.sealed} with a ledger open")

    def _state(self, path: str) -> str | None:
        topic, _, name = path.rpartition("/")
        known = self._topics.get(topic)
        entry = None if known is None else known.topology.segments.get(int(name.rpartition("-")[2]))
        return None if entry is None else entry.state

    def _change_of(self, path: str, change_id: str | None) -> object:
        topic, _, _name = path.rpartition("/")
        known = self._topics.get(topic)
        changes = () if known is None else known.topology.record.changes
        return next((change for change in changes if change.id == change_id), None)

    def _saw_owner_gone(self, path: str) -> None:
        ledgers = self._ledgers.get(path)
        if ledgers is not None and ledgers.sealed is not None and self._change_of(path, ledgers.sealed_by) is not None:
            self.counts["owner gone between seal and layout change"] += 1

    # ---- what subscriptions have drained ----------------------------------------------------------------------------

    def _saw_subscription(self, event: Event) -> None:
        name = event.record.key[len(keys.SUBSCRIPTION) :].decode()
        if event.kind is EventKind.DELETE:
            self._subscriptions.pop(name, None)
        else:
            self._subscriptions[name] = None

    def _saw_drained(self, event: Event) -> None:
        name = event.record.key[len(keys.DRAINED) :].decode()
        subscription, _, segment = name.rpartition("/")
        known = self._topics.get(subscription.rpartition("/")[0])
        entry = None if known is None else known.topology.segments.get(int(segment))
        if event.kind is EventKind.DELETE:
            self._drained.pop(name, None)
            if entry is not None and subscription in self._subscriptions and known is not None:
                self.counts["drained taken back"] += not known.topology.deleting
            return
        drained = self._drained[name] = decode(Drained, event.record.value, key=event.record.key)
        self.counts["drained"] += 1
        if known is None or entry is None:
            self.findings.append(f"{name} is drained, and its topic has no such segment")
            return
        ledgers = self._ledgers.get(known.topology.paths[entry.id])
        if ledgers is None or ledgers.sealed != drained.end:
            self.findings.append(f"{name} is drained through {drained.end}, and sealed at {ledgers and ledgers.sealed}")

    def misplaced(self, placed: Iterator[tuple[str, int, int, str]]) -> Iterator[str]:
        """Values that stand where their keys do not belong: (topic path, segment id, key hash, value)."""
        for topic, segment, key_hash, value in placed:
            bounds = self.segments.get((topic, segment))
            if bounds is None:
                yield f"{value} stands in segment {segment} of {topic}, which never was"
            elif not bounds[0] <= key_hash <= bounds[1] or not 0 <= key_hash < HASH_SPACE:
                yield f"{value} with hash {key_hash:04x} stands in segment {segment} of {topic}, {bounds}"


def _born_by(before: Topology, now: Topology) -> str:
    left = {change.id for change in now.record.changes}
    return next((change.kind for change in before.record.changes if change.id not in left), "")


def placed(history: History) -> Iterator[tuple[str, int, int, str]]:
    """Where values stand: (topic path, segment id, hash of the key, value)."""
    topics = {topic.rpartition("/")[2]: topic.partition("://")[2] for topic in TOPICS}

    def found() -> Iterator[tuple[str, Place, str]]:
        for operation in history.operations:
            for send in operation.sends:
                if send.place is not None:
                    yield send.key, send.place, send.value
            for poll in operation.polls:
                for key, reads in poll.reads.items():
                    yield from ((key, read.place, read.value) for read in reads)

    for (key, value), place in {(key, value): place for key, place, value in found()}.items():
        topic, _, text = key.partition("/")
        yield topics[topic], place[0], hash_key(text.encode()), value
