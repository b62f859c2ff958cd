"""Follows the cluster for a client: coordinators, brokers, the controller, and the layouts of the topics it uses.

It follows over one connection to any server, its home ("any role answers", DESIGN §8). It moves to another server when
the connection is lost or the server is cut off from the store. The store's revision orders all news, so a lagging
server cannot replace newer knowledge.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from txnclient.connection.deadlines import Backoff, Deadline
from txnclient.connection.disowned import Disowned
from txnclient.connection.links import Link, Links
from txnclient.connection.tasks import OwnedTasks
from txnclient.connection.topic_layout import SegmentInfo, TopicLayout, revision_of, topic_of_segment
from txnwire.errors import ConnectionLost, DataCorrupt, NotOwner, Timeout, TopicNotFound, TxnError, Unauthorized, again
from txnwire.names import SegmentName
from txnwire.ports import Clock, Random
from txnwire.proto import txn_pb2 as pb

FOLLOW_TIMEOUT_S = 5.0
FIRST_SEARCH_S = 0.2
LONGEST_SEARCH_S = 30.0
CANDIDATES = 3
"""How many servers to try before the next pause, if home is stale."""
MOST_ABSENT = 1000
"""Most topics that are followed though they do not exist."""

_log = logging.getLogger("txnclient")


class ClientDirectory:
    """Follows the cluster from `start` on, and each topic from the first `layout` for it on."""

    def __init__(self, links: Links, seeds: list[str], *, clock: Clock, random: Random, tasks: OwnedTasks) -> None:
        self._links = links
        links.tell(self)
        self._seeds = seeds
        self._clock = clock
        self._random = random
        self._tasks = tasks
        self._home: Link | None = None
        self._disowned = Disowned()
        self._ended = False
        self._silent: Link | None = None
        """The home that has left a question unanswered, until another one was looked for."""
        self._next_seed = random.getrandbits(16)
        self._topics: dict[str, TopicLayout | None] = {}
        """Layouts of all followed topics; None: the topic did not exist at the last news."""
        self._asked: dict[str, int] = {}
        """Topics that home is being asked for, and how many calls wait."""
        self._absent: dict[str, int] = {}
        """The revision up to which a followed topic is known not to exist; the latest news last."""
        self._not_followed: TxnError | None = None
        """The error of the latest attempt to follow the cluster."""
        self._refused: TxnError | None = None
        self._change: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listeners: dict[int, Callable[[], None]] = {}
        self._last_listener = 0
        self.cluster: pb.Cluster | None = None
        self.coordinators: tuple[tuple[int, str], ...] = ()
        """(TCID, address) of every coordinator that is up, in TCID order."""

    async def start(self, deadline: Deadline) -> None:
        """Start following. Raises `Timeout` if no server answers in time, `Unauthorized` or another handshake error."""
        self._tasks.keep(self._follow, name="directory")
        while self.cluster is None:
            if self._refused is not None:
                raise again(self._refused)
            if deadline.passed:
                raise deadline.expired(f"connecting to {', '.join(self._seeds)}", self._not_followed)
            await self.wait_change(deadline.remaining())

    def end(self) -> None:
        """The client closes: make look-ups give up."""
        self._ended = True
        self.wake()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after every change, before waiting tasks go on; returns a function that removes it."""
        self._last_listener += 1
        number = self._last_listener
        self._listeners[number] = listener
        return lambda: self._unlisten(number)

    def _unlisten(self, number: int) -> None:
        self._listeners.pop(number, None)

    async def wait_change(self, timeout_s: float) -> None:
        """Wait for the next change of anything here, at most `timeout_s`."""
        await asyncio.wait((self._change,), timeout=timeout_s)

    async def wait_change_or_lost(self, link: Link) -> None:
        """Wait for a change, or for the end of `link`."""
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        forget = link.when_lost(lambda: None if lost.done() else lost.set_result(None))
        try:
            await asyncio.wait((self._change, lost), return_when=asyncio.FIRST_COMPLETED)
        finally:
            forget()

    def coordinator_address(self, tcid: int) -> str | None:
        for known, address in self.coordinators:
            if known == tcid:
                return address
        return None

    @property
    def controller_address(self) -> str | None:
        return (self.cluster.controller_address or None) if self.cluster is not None else None

    def addresses(self) -> list[str]:
        """Every known server, each once: coordinators and controller, brokers, the addresses given to the client."""
        known: list[str] = []
        if self.cluster is not None:
            known = [address for _, address in self.coordinators]
            known += [self.cluster.controller_address, *(broker.address for broker in self.cluster.brokers)]
        return list(dict.fromkeys([*(address for address in known if address), *self._seeds]))

    def segment(self, path: str) -> SegmentInfo | None:
        """A segment of a followed topic, as last heard of."""
        layout = self._topics.get(topic_of_segment(path))
        return layout.segment_by_path(path) if layout is not None else None

    def known_layout(self, topic: str) -> TopicLayout | None:
        return self._topics.get(topic)

    def absent_through(self, topic: str) -> int:
        """The revision up to which a topic without a layout is known not to exist; 0 if no server has said."""
        return self._absent.get(topic, 0)

    async def layout(self, topic: str, deadline: Deadline) -> TopicLayout:
        """The layout of a topic, which it follows from now on. Raises `TopicNotFound`, `Timeout`, `ConnectionLost` once
        the client closes. ▲ A known layout needs no time: callers that wait for a newer one report what they wait
        for."""
        last: TxnError | None = None
        while True:
            if self._ended:  # ▲ C6: no server answers now, so its caller would wait until the time is up
                raise ConnectionLost(f"looking up {topic}: this client was closed meanwhile") from last
            layout = self._topics.get(topic)
            if layout is not None:
                return layout
            if deadline.passed:
                raise deadline.expired(f"looking up {topic}", last)
            home = self._home
            if home is not None:
                patience_s = min(FOLLOW_TIMEOUT_S, deadline.remaining())
                try:
                    await self._ask_home(home, topic, patience_s)
                except TxnError as error:
                    if not error.retriable:
                        raise
                    last = error
                    if isinstance(error, Timeout) and patience_s == FOLLOW_TIMEOUT_S:
                        self._silent = home
                        self.wake()
                else:
                    layout = self._topics.get(topic)
                    if layout is None:
                        raise TopicNotFound(f"topic {topic!r} does not exist: create it first")
                    return layout
            await self.wait_change(min(deadline.remaining(), 1.0))

    async def wait_layout(self, topic: str, deadline: Deadline) -> TopicLayout:
        """Wait until the topic is visible here, a moment after the controller has created it."""
        while True:
            try:
                return await self.layout(topic, deadline)
            except TopicNotFound:
                await self.wait_change(min(deadline.remaining(), 0.1))
                if deadline.passed:
                    raise

    # ---- following --------------------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        backoff = Backoff(self._random)
        while True:
            try:
                link = await self._links.get(self._next_address(), Deadline(self._clock, FOLLOW_TIMEOUT_S))
                await self._follow_over(link)
                backoff.reset()
                await self._stay(link)
            except TxnError as error:
                if isinstance(error, Unauthorized) or not error.retriable:
                    self._refused = error
                self._not_followed = error
                _log.debug("following the cluster: %s", error)
            self._home = None
            self.wake()
            await asyncio.sleep(backoff.next_s())

    def _next_address(self) -> str:
        addresses = self.addresses()
        self._next_seed += 1
        return addresses[self._next_seed % len(addresses)]

    async def _stay(self, home: Link) -> None:
        """Stay until the connection to home has ended; move home to another server if this one becomes stale.

        ▲ A home that is cut off from its store names former owners for ever: a client that stayed could send nothing.
        One whose event loop hangs answers pings of the connection and nothing else, so a client that stayed could open
        nothing.
        The search slows down, because there may be no better server."""
        pauses = Backoff(self._random, first_s=FIRST_SEARCH_S, longest_s=LONGEST_SEARCH_S)
        searched_at = float("-inf")
        while not home.closed:
            if not (home.stale or self._disowned.astray or self._silent is home):
                await self.wait_change_or_lost(home)
                continue
            if self._clock.monotonic() - searched_at > 2 * LONGEST_SEARCH_S:
                pauses.reset()
            home = await self._find_fresh(home) or home
            self._disowned.clear()
            self._silent = None
            searched_at = self._clock.monotonic()
            try:
                async with asyncio.timeout(pauses.next_s()):
                    await home.caller.wait_closed()
            except TimeoutError:
                continue

    async def _find_fresh(self, home: Link) -> Link | None:
        """Find a server with a fresh view and make it home; None if none of a few candidates has one."""
        for _ in range(min(CANDIDATES, len(self.addresses()))):
            address = self._next_address()
            if address == home.address:
                address = self._next_address()
            try:
                link = await self._links.get(address, Deadline(self._clock, FOLLOW_TIMEOUT_S))
                if link is not home and await self._follow_over(link, fresh=True):
                    _log.info("the cluster is followed at %s: the state that %s sends is stale", address, home.address)
                    return link
            except TxnError as error:
                _log.debug("looking for a server to follow the cluster at, %s: %s", address, error)
        return None

    async def _follow_over(self, link: Link, *, fresh: bool = False) -> bool:
        """Make the link home, with `fresh` only if its view is not stale; whether it is home now."""
        reply = await link.call(pb.Command(watch_cluster=pb.WatchCluster()), timeout_s=FOLLOW_TIMEOUT_S)
        self._heard_from(link, reply.cluster)
        if fresh and link.stale:
            return False
        followed: dict[str, None] = {}
        # ▲ Also topics that other calls ask the former home for meanwhile: it may answer, and not report changes later.
        while late := [topic for topic in (*self._topics, *self._asked) if topic not in followed]:
            for topic in late:
                try:
                    await self._watch_topic(link, topic, FOLLOW_TIMEOUT_S)
                except DataCorrupt as error:
                    # ▲ One record that cannot be read keeps no other topic from being followed; its repair is pushed.
                    _log.warning("following %s at %s: %s", topic, link.address, error)
            followed.update(dict.fromkeys(late))
        self._home = link
        self._refused = None
        self.wake()
        return True

    async def _ask_home(self, home: Link, topic: str, timeout_s: float) -> None:
        self._asked[topic] = self._asked.get(topic, 0) + 1
        try:
            await self._watch_topic(home, topic, timeout_s)
        finally:
            self._asked[topic] -= 1
            if not self._asked[topic]:
                del self._asked[topic]

    async def _watch_topic(self, link: Link, topic: str, timeout_s: float) -> None:
        reply = await link.call(pb.Command(watch_layout=pb.WatchLayout(topic=topic)), timeout_s=timeout_s)
        self._topics.setdefault(topic, None)
        self._learn_layout(reply.layout)

    def on_news(self, link: Link, command: pb.Command) -> None:
        """A push about the cluster or a topic."""
        body = command.WhichOneof("body")
        if body == "cluster":
            self._heard_from(link, command.cluster)
        elif body == "layout":
            self._learn_layout(command.layout)
        else:
            _log.debug("unexpected push %s", body)

    def on_not_owner(self, link: Link, segment: str) -> None:
        """A call for a segment was refused; count it if the refusing server is the owner that this directory names."""
        known = self.segment(segment)
        if known is not None and known.owner_address == link.address:
            self._disowned.refused(segment, link.address, self._clock.monotonic())
            if self._disowned.astray:
                self.wake()

    def _heard_from(self, link: Link, cluster: pb.Cluster) -> None:
        was_stale, link.stale = link.stale, cluster.stale
        self._learn_cluster(cluster)
        if link.stale != was_stale:
            self.wake()

    def _learn_cluster(self, cluster: pb.Cluster) -> None:
        if self.cluster is None or cluster.revision >= self.cluster.revision:
            self.cluster = cluster
            self.coordinators = tuple(sorted((c.tc_id, c.address) for c in cluster.coordinators if c.address))
            self.wake()

    def _learn_layout(self, layout: pb.Layout) -> None:
        if layout.topic not in self._topics:
            return
        known = self._topics[layout.topic]
        if known is not None and revision_of(layout) < known.revision:
            return
        if known is None and 0 < layout.topic_revision < self._absent.get(layout.topic, 0):
            # ▲ The layout comes from a server that has not heard of the deletion: it would bring the deleted topic
            # back. (0: an older server does not send the revision.)
            return
        self._topics[layout.topic] = TopicLayout.from_wire(layout) if layout.exists else None
        self._absent.pop(layout.topic, None)
        if not layout.exists:
            self._absent[layout.topic] = layout.topic_revision
            self._forget_absent()
        self.wake()

    def _forget_absent(self) -> None:
        """▲ Names that never were, or are no more, are without end, and each is asked for at each new home, before the
        client goes on there. Who needs a forgotten one asks again."""
        while len(self._absent) > MOST_ABSENT and (oldest := next(iter(self._absent))) not in self._asked:
            del self._absent[oldest], self._topics[oldest]

    def wake(self) -> None:
        """Something has changed: wake the waiting tasks."""
        if not self._change.done():
            self._change.set_result(None)
        self._change = asyncio.get_running_loop().create_future()
        for listener in list(self._listeners.values()):
            listener()

    # ---- finding who serves -----------------------------------------------------------------------------------------

    async def owner_link(self, path: str, deadline: Deadline) -> Link:
        """A link to the segment's current owner. Raises `NotOwner` while there is none, and what `Links.get` raises."""
        segment = self.segment(path)
        if segment is None and self._is_ahead(path):
            raise NotOwner(f"segment://{path} has come since this client heard of its topic's layout last")
        if segment is None:
            raise TopicNotFound(f"segment://{path} is not, or no longer, a segment of {topic_of_segment(path)}")
        if not segment.owner_address:
            raise NotOwner(f"{segment.name} has no owner at the moment")
        return await self._links.get(segment.owner_address, deadline)

    def _is_ahead(self, path: str) -> bool:
        """Whether a segment is newer than its topic's layout as last heard of: ids count up."""
        layout = self._topics.get(topic_of_segment(path))
        return layout is not None and SegmentName.from_path(path).segment_id > max(layout.segments, default=-1)

    async def controller_link(self, deadline: Deadline) -> Link:
        """A link to the elected controller. Raises `ConnectionLost` while there is none, and what `Links.get`
        raises."""
        address = self.controller_address
        if address is None:
            raise ConnectionLost("no controller is elected at the moment")
        return await self._links.get(address, deadline)

    def home(self) -> Link | None:
        """The link over which it follows the cluster, while there is one."""
        return self._home if self._home is not None and not self._home.closed else None
