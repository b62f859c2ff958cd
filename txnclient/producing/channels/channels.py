"""One producer's channels, one per segment: picks one for each message, also while segments are split and merged.

`txnclient.producing.channels.moving` makes the decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from txnclient.connection.session import Session
from txnclient.connection.topic_layout import SegmentInfo, TopicLayout
from txnclient.producing.channels.batches import Batch
from txnclient.producing.channels.channel import Channel, ChannelOwner
from txnclient.producing.channels.moving import Group, Routes
from txnclient.transactions.transaction_impl import TransactionImpl
from txnwire.entry import Columns
from txnwire.errors import SegmentSealed, TopicNotFound, TxnError, for_good
from txnwire.ids import hash_key


class Divider(ChannelOwner, Protocol):
    """The producer."""

    def topic_gone(self, error: TxnError) -> None:
        """Its topic was deleted: nothing can be sent any more."""

    def divided(self, batch: Batch, parts: Sequence[Batch]) -> None:
        """A batch was divided into several."""


class Channels:
    """Creates channels when messages need them, and leaves them when their segments are sealed."""

    def __init__(self, session: Session, owner: Divider, layout: TopicLayout) -> None:
        self._session = session
        self._owner = owner
        self._topic = layout.topic
        self._channels: dict[str, Channel] = {}
        self._turn = session.random.getrandbits(16)
        self._keyless: dict[TransactionImpl | None, Channel] = {}
        """The channel where messages without a key gather now: round robin over segments, by batch (DESIGN §3)."""
        self._routes = Routes(layout)
        self._gone: TxnError | None = None
        self._moving = False
        self._unlisten = session.directory.listen(self.move_on)

    # ---- where messages go ------------------------------------------------------------------------------------------

    def of(self, key: bytes | None, txn: TransactionImpl | None, *, noticed: bool = False) -> Channel:
        """The channel for a message that gathers with others. `noticed`: its topic is there, and `notice` was called in
        this turn of the loop."""
        if key is not None:
            routes = self._routes if noticed else self.current()
            return self._to(routes.segment_of_hash(hash_key(key)))
        channel = self._keyless.get(txn)
        if channel is None or not channel.gathers(txn):
            channel = self._keyless[txn] = self._next(self._routes if noticed else self.current())
        return channel

    def of_whole(self, key: bytes | None) -> Channel:
        """The channel for a whole entry."""
        return self._next(self.current()) if key is None else self._to(self.current().segment_of_hash(hash_key(key)))

    def groups(self, keys: Sequence[bytes | None] | None) -> tuple[list[Group], int]:
        """Messages grouped by their current segment, and the version of the routes used."""
        routes = self.current()
        return routes.groups(keys), routes.version

    def put(self, batch: Batch, columns: Columns, segment: SegmentInfo | None, version: int) -> None:
        """Give a batch that holds these columns to its group's channel, or reroute it if the routes have changed."""
        if self.current().version != version:
            self._place(batch, columns)
        else:
            self._whole_to(segment).add_whole(batch)

    def current(self) -> Routes:
        """The routes of the current layout. Raises `TopicNotFound`, also if a new topic has taken the name."""
        self.notice()
        if self._gone is not None:
            raise for_good(self._gone)
        return self._routes

    def notice(self) -> None:
        """Follow a new layout before the directory's call announces it."""
        if self._session.directory.known_layout(self._topic) is not self._routes.layout:
            self.move_on()

    def _whole_to(self, segment: SegmentInfo | None) -> Channel:
        return self._next(self.current()) if segment is None else self._to(segment)

    def _next(self, routes: Routes) -> Channel:
        active = routes.layout.active
        self._turn += 1
        return self._to(active[self._turn % len(active)])

    def _to(self, segment: SegmentInfo) -> Channel:
        channel = self._channels.get(segment.path)
        if channel is None:
            channel = self._channels[segment.path] = Channel(self._session, self._owner, segment)
        return channel

    # ---- following the layout ---------------------------------------------------------------------------------------

    def held_back(self, channel: Channel) -> bool:
        """Whether the channel must not write yet."""
        return self._routes.held_back(channel.info)

    def settled(self, batch: Batch) -> None:
        """The batch has its final answer, or was withdrawn."""
        if batch.txn is not None and self._keyless.get(batch.txn) is not None:
            self._forget_keyless(batch.txn)
        if self._routes.leaving:
            self._session.loop.call_soon(self.move_on)  # it may have been the last one in doubt

    def _forget_keyless(self, txn: TransactionImpl) -> None:
        if not self._keyless[txn].gathers(txn):
            del self._keyless[txn]

    def move_on(self) -> None:
        """Move the rest from sealed segments that have answered to its current segments."""
        layout = self._session.directory.known_layout(self._topic)
        routes = self._routes
        if self._moving or self._gone is not None or (layout is routes.layout and not routes.leaving):
            return
        if layout is None or routes.is_another(layout):
            # ▲ The sent messages are gone with the topic. A transaction that went on in the new topic of the name would
            # commit its later messages without the earlier ones.
            self._gone = TopicNotFound(
                f"topic {self._topic!r} was deleted: open a producer of the one that is there now"
            )
            self._owner.topic_gone(self._gone)
            return
        self._moving = True
        try:
            if layout is not routes.layout:
                routes.follow(layout, [channel.info for channel in self._channels.values()])
            moved = [self._leave_or_ask(segment) for segment in list(routes.leaving.values())]
        finally:
            self._moving = False
        if any(moved):
            self._session.directory.wake()  # held-back channels may write now

    def _leave_or_ask(self, segment: SegmentInfo) -> bool:
        """Leave a sealed segment if it has answered, else ask; whether it was left."""
        channel = self._channels[segment.path]
        if channel.in_doubt:
            if not self._routes.is_gone(segment):
                channel.ask()
                return False
            channel.give_up_doubtful()
        self._routes.left(segment)
        del self._channels[segment.path]
        for batch in channel.leave():
            self._move(batch)
        return True

    def _move(self, batch: Batch) -> None:
        """Reroute a batch that is certainly not stored and has left its channel."""
        txn = batch.txn
        if txn is not None and txn.aborting:
            batch.withdrawn(txn.withdrawn("send"))
            self._owner.settled(batch, stored=False)
        elif batch.piece is not None:
            # Its sender starts the value again: pieces already stored cannot be moved.
            batch.failed(SegmentSealed("the segment was sealed before all of this value was stored"))
            self._owner.settled(batch, stored=False)
        else:
            self._place(batch, batch.take_back())
        if txn is not None:
            txn.finished(None)

    def _place(self, batch: Batch, columns: Columns) -> None:
        """Give a batch to its messages' current channel, or its parts to several."""
        groups = self._routes.groups(columns.keys)
        parts: Sequence[Batch] = (batch,)
        if len(groups) > 1:
            parts = batch.divide(columns, [indexes or () for _, indexes in groups])
            self._owner.divided(batch, parts)
        for (segment, _), part in zip(groups, parts, strict=True):
            self._whole_to(segment).add_whole(part)

    # ---- all of them ------------------------------------------------------------------------------------------------

    def flush_all(self) -> None:
        for channel in self._channels.values():
            channel.flush_all()

    def fail_all(self, error: TxnError) -> None:
        for channel in self._channels.values():
            channel.fail_all(error)

    def close(self) -> None:
        self._unlisten()
        for channel in self._channels.values():
            channel.close()
