"""Serves the state of the cluster and the layouts of topics, and pushes every change. Every role serves it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial

import structlog

from segments.layout.directory import CONTROLLER, Directory, DirectoryChange, topic_path_of
from segments.layout.freshness import Freshness
from txnstore import keys
from txnstore.access.paging import in_pages
from txnstore.store import KeyValue, MetadataStore
from txnwire.errors import DataCorrupt, InvalidArgument, Overloaded
from txnwire.names import TOPIC_SCHEME, TopicName, validate_name
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.calls import Handler, Peer

log = structlog.get_logger(__name__)

MAX_TOPICS_PER_CONNECTION = 10_000

TOPICS_AT_ONCE = 1000
"""Topic names that one turn of the event loop handles."""

_COALESCE_S = 0.005
"""Changes within this time (a broker that claims all its segments) are sent as one push."""

_BUSY_S = 0.1
_BUSY_BYTES = 1 << 20
"""A peer with more unsent bytes gets no push until it has read; then it gets the newest state at once."""


class LayoutService:
    """Handles `WatchCluster`, `WatchLayout` and `ListTopics`. `close()` ends the pushes."""

    def __init__(self, directory: Directory, store: MetadataStore, freshness: Freshness) -> None:
        self._directory = directory
        self._store = store
        self._freshness = freshness
        self._cluster_watchers: dict[Peer, None] = {}
        self._topics_of: dict[Peer, dict[str, None]] = {}
        self._watchers_of: dict[str, dict[Peer, None]] = {}
        self._stale_cluster: dict[Peer, None] = {}
        self._stale_topics: dict[str, dict[Peer, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._unlisten = directory.add_listener(self._changed)
        freshness.add_listener(self._freshness_changed)
        self._handlers: dict[str, Handler] = {
            "watch_cluster": self._watch_cluster,
            "watch_layout": self._watch_layout,
            "list_topics": self._list_topics,
        }

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return self._handlers

    def disconnected(self, peer: Peer) -> None:
        self._cluster_watchers.pop(peer, None)
        self._stale_cluster.pop(peer, None)
        for path in self._topics_of.pop(peer, {}):
            self._unwatch(peer, path)

    def _unwatch(self, peer: Peer, path: str) -> None:
        watchers = self._watchers_of[path]
        del watchers[peer]
        if not watchers:
            del self._watchers_of[path]
        self._stale_topics.get(path, {}).pop(peer, None)

    def close(self) -> None:
        self._closed = True
        self._unlisten()
        if self._timer is not None:
            self._timer.cancel()

    # ---- requests ---------------------------------------------------------------------------------------------------

    def _watch_cluster(self, peer: Peer, command: pb.Command) -> pb.Command:
        self._cluster_watchers[peer] = None
        return pb.Command(cluster=self._cluster())

    async def _watch_layout(self, peer: Peer, command: pb.Command) -> pb.Command:
        """Also watches a topic that does not exist: its creation is pushed."""
        topic = TopicName.parse(command.watch_layout.topic)
        # ▲ First: it is known to exist before it counts, so that no other request takes it for one that is gone.
        try:
            await self._directory.fetch_topic(topic.path)
        except DataCorrupt as error:  # the answer says so, and a repair is pushed
            log.debug("watched_topic_unreadable", topic=str(topic), error=str(error))
        watched = self._topics_of.setdefault(peer, {})
        if topic.path not in watched and len(watched) >= MAX_TOPICS_PER_CONNECTION and not self._forget_gone(peer):
            raise Overloaded(f"this connection watches {MAX_TOPICS_PER_CONNECTION} topics, the most that are allowed")
        watched[topic.path] = None
        self._watchers_of.setdefault(topic.path, {})[peer] = None
        return self._layout_command(topic.path)

    def _forget_gone(self, peer: Peer) -> bool:
        """Stop watching, for this peer, its longest-watched topic that does not exist; returns whether there was one.
        ▲ Otherwise a client could reach its limit with deleted topics and open no more. It asks again if it needs a
        topic that does not exist."""
        watched = self._topics_of[peer]
        gone = next((path for path in watched if self._directory.is_gone(path)), None)
        if gone is not None:
            del watched[gone]
            self._unwatch(peer, gone)
        return gone is not None

    async def _list_topics(self, peer: Peer, command: pb.Command) -> pb.Command:
        """Full names (`topic://…`) in order, read from the store, so that a topic just created is among them. Omits
        topics that the directory knows as being deleted."""
        prefix = keys.TOPIC + _listing_prefix(command.list_topics.prefix).encode()
        names: list[str] = []
        async for page in in_pages(
            self._store, prefix, keys.prefix_end(prefix), at_once=TOPICS_AT_ONCE, keys_only=True
        ):
            names += [_listed(_path_of(record)) for record in page if not self._is_being_deleted(record)]
        return pb.Command(names=pb.Names(names=names))

    def _is_being_deleted(self, record: KeyValue) -> bool:
        """▲ Compares lives: for a topic that was created again, the directory may still know the deleted one."""
        known = self._directory.topics().get(_path_of(record))
        return known is not None and known.deleting and known.life == record.create_revision

    # ---- pushes -----------------------------------------------------------------------------------------------------

    def _changed(self, change: DirectoryChange) -> None:
        if change.coordinators or change.brokers or change.leaders:
            self._stale_cluster.update(self._cluster_watchers)
        touched = dict.fromkeys((*change.topics, *(topic_path_of(segment) for segment in change.owners)))
        for path in touched:
            if path in self._watchers_of:
                self._stale_topics.setdefault(path, {}).update(self._watchers_of[path])
        if self._stale_cluster or self._stale_topics:
            self._push_in(_COALESCE_S)

    def _freshness_changed(self) -> None:
        """Pushes to all watchers of the cluster, although no record of it has changed."""
        self._stale_cluster.update(self._cluster_watchers)
        if self._stale_cluster:
            self._push_in(_COALESCE_S)

    def _push_in(self, delay_s: float) -> None:
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._push)

    def _push(self) -> None:
        self._timer = None
        self._stale_cluster = _push_to(self._stale_cluster, lambda: pb.Command(cluster=self._cluster()))
        topics, self._stale_topics = self._stale_topics, {}
        for path, watchers in topics.items():
            try:
                busy = _push_to(watchers, partial(self._layout_command, path))
            except DataCorrupt as error:  # a new request gets the error; watchers keep the last good layout
                log.error("layout_unreadable", error=str(error))
                continue
            if busy:
                self._stale_topics[path] = busy
        if self._stale_cluster or self._stale_topics:
            self._push_in(_BUSY_S)

    # ---- answers ----------------------------------------------------------------------------------------------------

    def _cluster(self) -> pb.Cluster:
        leader = self._directory.leader(CONTROLLER)
        return pb.Cluster(
            coordinators=[
                pb.Cluster.Coordinator(tc_id=tcid, address=member.address)
                for tcid, member in self._directory.coordinators().items()
            ],
            brokers=[
                pb.Cluster.Broker(id=member.id, address=member.address) for member in self._directory.brokers().values()
            ],
            controller_address=leader.address if leader else "",
            revision=self._directory.cluster_revision(),
            stale=self._freshness.stale,
        )

    def _layout_command(self, path: str) -> pb.Command:
        topology = self._directory.topic(path)
        if topology is not None and topology.deleting:
            topology = None
        layout = pb.Layout(
            topic=TOPIC_SCHEME + path,
            exists=topology is not None,
            revision=self._directory.layout_revision(path),
            topic_revision=self._directory.topic_revision(path),
        )
        if topology is not None:
            layout.epoch = topology.epoch
            layout.life = topology.life
            if topology.record.lost_id >= 0:
                layout.lost_segment_id = topology.record.lost_id
            for entry in topology.segments.values():
                segment_path = topology.paths[entry.id]
                owner = self._directory.owner(segment_path)
                layout.segments.add(
                    segment_id=entry.id,
                    lo=entry.lo,
                    hi=entry.hi,
                    state=entry.state,
                    parents=entry.parents,
                    children=entry.children,
                    owner=owner.broker if owner else "",
                    owner_address=owner.address if owner else "",
                    path=segment_path,
                )
        return pb.Command(layout=layout)


def _push_to(peers: Mapping[Peer, None], build: Callable[[], pb.Command]) -> dict[Peer, None]:
    """Push one command to all `peers`; returns, without a push to them, those with too many unsent bytes."""
    busy: dict[Peer, None] = {}
    command: pb.Command | None = None
    for peer in peers:
        if peer.pending_bytes > _BUSY_BYTES:
            busy[peer] = None
        else:
            command = command if command is not None else build()
            peer.push(command)
    return busy


def _path_of(record: KeyValue) -> str:
    return record.key[len(keys.TOPIC) :].decode(errors="replace")


def _listed(path: str) -> str:
    """▲ A foreign key under the prefix is listed as it is: it must not hide all topics."""
    try:
        return str(TopicName.from_path(path))
    except InvalidArgument:
        return f"{TOPIC_SCHEME}{path}"


def _listing_prefix(text: str) -> str:
    """Check that `text` is `tenant/`, `tenant/namespace/` or empty; raises `InvalidArgument`."""
    parts = text.split("/")
    if parts[-1] or len(parts) > 3:
        raise InvalidArgument(f"listing prefix {text!r}: expected nothing, tenant/ or tenant/namespace/")
    for part, name in zip(("tenant", "namespace"), parts[:-1], strict=False):
        validate_name(name, part=f"{part} of the listing prefix {text!r}:")
    return text
