"""Waits for messages that a snapshot does not hold, to tell when to take the next one.

    watch = await client.watch(snapshot)
    while await watch.wait(timeout): …      take another snapshot, read, `await watch.move(snapshot)`

Each open segment has a reader of uncommitted entries at the snapshot's end, with room for one entry: the first entry
wakes the watch and ends that reader. If a transaction is pending, a reader of committed entries stands at the resolved
position and wakes when the transaction is decided. So neither client nor broker polls.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, NamedTuple

from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import Session
from txnclient.connection.tasks import OwnedTasks
from txnclient.consuming.feeds.feed import Feed
from txnclient.consuming.feeds.inbox import Inbox
from txnclient.consuming.feeds.receiver import Receiver
from txnclient.consuming.places.starts import isolation_to_wire
from txnclient.reading.reader_feed import behind
from txnclient.reading.snapshot import Snapshot
from txnwire.errors import InvalidArgument, TxnError
from txnwire.ids import Position
from txnwire.proto import txn_pb2 as pb

MOVE_TIMEOUT_S: Final = 5.0
"""See `Watch.move`."""


class _Place(NamedTuple):
    """Where a feed waits."""

    segment: str
    after: Position
    isolation: str


class Watch:
    """Waits for news after a snapshot; made by `client.watch(snapshot)`."""

    def __init__(self, session: Session, isolation: str, on_closed: Callable[[Watch], None]) -> None:
        isolation_to_wire(isolation)
        self._isolation = isolation
        self._tasks = OwnedTasks()
        self._session = session.with_tasks(self._tasks)
        self._arrivals = Receiver(session, "watch")
        self._unlisten = session.directory.listen(self._look)
        self._on_closed = on_closed
        self._cut: Snapshot | None = None
        self._feeds: dict[_Place, _WatchFeed] = {}
        self._woken = False
        self._closed = False

    def __repr__(self) -> str:
        at = "" if self._cut is None else f" at revision {self._cut.revision}"
        return f"Watch({', '.join(() if self._cut is None else self._cut.topics)}{at}{', closed' * self._closed})"

    @property
    def sees_all(self) -> bool:
        """Whether everything that the next snapshot adds wakes it. ▲ Not while several transactions are pending: a
        transaction decided behind an open one does not wake it. Then take a snapshot now and then."""
        pending = () if self._cut is None or self._isolation == "read_uncommitted" else self._cut.pending
        return len(pending) <= 1

    async def move(self, cut: Snapshot, *, timeout: float | None = None) -> None:
        """From now on wait for messages after this snapshot. Readers already in the right place stay. `timeout`: how
        many seconds to wait for the layouts that the snapshot has seen, 5 by default.

        Raises `TopicNotFound`, `InvalidArgument`, `Timeout`: also if a topic of the snapshot has been deleted and
        created again."""
        self._session.expect_here()
        if not isinstance(cut, Snapshot):
            raise InvalidArgument(f"a watch begins at a snapshot, not at {cut!r}: take one with client.snapshot()")
        # ▲ The watch stays awake if the move fails.
        self._cut, self._woken = None, True
        await self._wait_known(cut, self._session.deadline(MOVE_TIMEOUT_S if timeout is None else timeout))
        self._cut, self._woken = cut, False
        places = dict.fromkeys(self._places(cut))
        # ▲ Replace a fired feed even in the same place: it may have failed, and entries that the cut lacks come again
        # to the new one.
        for place in [place for place, feed in self._feeds.items() if feed.fired or place not in places]:
            self._feeds.pop(place).close()
        for place in places:
            if place not in self._feeds:
                self._feeds[place] = _WatchFeed(self._session, self._arrivals, place, self._wake)
        self._look()

    async def _wait_known(self, cut: Snapshot, deadline: Deadline) -> None:
        """Wait until the known layouts are at least as new as the cut."""
        for topic, bounds in cut.topics.items():
            while (await self._session.directory.layout(topic, deadline)).epoch < bounds.epoch:
                if deadline.passed:
                    raise deadline.expired(f"waiting for layout {bounds.epoch} of {topic}")
                await self._session.directory.wait_change(deadline.remaining())

    def _places(self, cut: Snapshot) -> list[_Place]:
        places = [_Place(path, one.end, "read_uncommitted") for path, one in cut.segments.items() if not one.sealed]
        if cut.pending and self._isolation == "read_committed":
            # ▲ Not if all transactions are decided: `resolved` may lag, and a feed there would wake without end.
            places += [
                _Place(path, one.resolved, "read_committed")
                for path, one in cut.segments.items()
                if one.resolved < one.end
            ]
        return places

    def _wake(self) -> None:
        self._woken = True
        self._arrivals.wake()

    def _look(self) -> None:
        """Wake if a topic's layout differs from the one the cut has seen."""
        if self._cut is None or self._closed:
            return
        for topic, bounds in self._cut.topics.items():
            layout = self._session.directory.known_layout(topic)
            # ▲ A lower epoch means a new topic of the name, never older news: `move` has waited for the cut's epoch.
            if layout is None or layout.epoch != bounds.epoch:
                self._wake()

    async def wait(self, timeout: float | None = None) -> bool:
        """Whether something may have come since the snapshot; False once the time (None: the client's) is up.

        It may return True without news, and keeps returning True until `move`. Raises its failure, as `fatal`, e.g.
        after its client was closed; `InvalidArgument` if it is closed itself."""
        deadline = self._session.deadline(timeout)
        while self._closed or not self._woken:
            if not await self._arrivals.wait(deadline.remaining()):
                return self._woken
        return True

    async def close(self) -> None:
        """Idempotent."""
        if self._closed:
            return
        self._session.expect_here()
        self._closed = True
        self._on_closed(self)
        self._unlisten()
        self._arrivals.close()
        for feed in self._feeds.values():
            feed.close()
        await self._tasks.close()

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _WatchFeed(Feed):
    """Waits in one place. `fired`: something has come, or the feed has failed. Either way it has ended."""

    def __init__(self, session: Session, arrivals: Receiver, place: _Place, on_fired: Callable[[], None]) -> None:
        self.fired = False
        self._place = place
        self._on_fired = on_fired
        super().__init__(session, arrivals, place.segment, Inbox(1, keeps_holds=False))

    def _subscribe(self) -> pb.Subscribe:
        return pb.Subscribe(
            start=behind(self.segment, self._place.after),
            isolation=isolation_to_wire(self._place.isolation),
            permits_are_kib=True,
            tells_passed=True,
        )

    def on_deliver(self, deliver: pb.Deliver) -> None:
        """Fire if something has come. ▲ Its content is ignored, but the client's next snapshot will not precede it."""
        self._session.told(deliver.revision)
        passed = Position(deliver.passed.ledger_id, deliver.passed.entry_id)
        if deliver.entries or passed > self._place.after:
            self._fire()

    def _failed(self, error: TxnError) -> None:
        self._fire()  # the next call raises the error

    def _fire(self) -> None:
        if not self.fired:
            self.fired = True
            self.close()
            self._on_fired()
