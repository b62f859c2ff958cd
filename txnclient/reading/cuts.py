"""Takes snapshots, and shares one among readers of a client that open at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from txnclient.connection.deadlines import Deadline
from txnclient.connection.session import Session
from txnclient.reading.snapshot import Snapshot
from txnwire.bounds import MAX_REVISION
from txnwire.errors import ConnectionLost, InvalidArgument, Timeout, TxnError, again, for_good
from txnwire.proto import txn_pb2 as pb
from txnwire.snapshot import read_in_steps
from txnwire.turns import taking_turns

SNAPSHOT_TIMEOUT_S: Final = 15.0
"""Timeout of one request: a little longer than a controller tries to take a snapshot."""


def check_at_least(at_least: int) -> None:
    """Raises `InvalidArgument` unless it is a revision."""
    if type(at_least) is not int or not 0 <= at_least <= MAX_REVISION:
        raise InvalidArgument(f"at_least {at_least!r}: expected a revision, such as txn.result.revision")


async def take_cut(session: Session, topics: Sequence[str], at_least: int, deadline: Deadline) -> Snapshot:
    """Take a snapshot of revision `at_least` or later. Raises as `Client.snapshot`."""
    request = pb.TakeSnapshot(topics=topics, min_revision=session.told_revision, at_least=at_least)

    async def take() -> Snapshot:
        link = await session.directory.controller_link(deadline)
        reply = await link.call(
            pb.Command(take_snapshot=request), timeout_s=min(SNAPSHOT_TIMEOUT_S, deadline.remaining())
        )
        snapshot = await taking_turns(read_in_steps(reply.take_snapshot_ok.snapshot_json))
        if snapshot.revision < at_least:  # from an older controller, which ignores `at_least`
            raise Timeout(f"the snapshot belongs to revision {snapshot.revision}, and at_least asks for {at_least}")
        return snapshot

    of = f" at revision {at_least} or later" if at_least else ""
    snapshot = await session.repeat(f"taking a snapshot of {', '.join(topics)}{of}", deadline, take)
    session.told(at_least)  # ▲ only now: a revision that the store never reaches would block all later readers
    return snapshot


class _CutTask:
    """One task that takes snapshots. `cut`: the one under way."""

    def __init__(self) -> None:
        self.cut: asyncio.Future[Snapshot] | None = None


class SharedCuts:
    """Takes one snapshot at a time over the same topics; callers that ask meanwhile share the next, as in a group
    commit."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._next: dict[tuple[str, ...], asyncio.Future[Snapshot]] = {}
        """Snapshots not begun yet, which new callers may share."""
        self._begun: dict[tuple[str, ...], _CutTask] = {}
        """The running task for each set of topics."""

    async def take(self, topics: Sequence[str], at_least: int, deadline: Deadline) -> Snapshot:
        """A snapshot begun after this call. Raises as `take_cut`."""
        if at_least > self._session.told_revision:
            # The store may reach it late or never: other callers must not wait for it.
            return await take_cut(self._session, topics, at_least, deadline)
        over = tuple(topics)
        cut = self._ask(over)
        await asyncio.wait([cut], timeout=deadline.remaining())  # it goes on if this caller gives up
        if not cut.done():
            raise deadline.expired(f"taking a snapshot of {', '.join(over)}")
        error = cut.exception()
        if isinstance(error, TxnError):
            raise again(error)
        return cut.result()

    def _ask(self, over: tuple[str, ...]) -> asyncio.Future[Snapshot]:
        # ▲ Never the one under way: it could miss a message whose commit has already returned to the caller.
        cut = self._next.get(over)
        if cut is None:
            cut = self._next[over] = asyncio.get_running_loop().create_future()
            cut.add_done_callback(_seen)
        if over not in self._begun:
            run = self._begun[over] = _CutTask()
            task = self._session.tasks.start(
                self._run(over, run),
                name=f"snapshots of {', '.join(over)}",
                on_failed=lambda error: self._fail(over, error),
            )
            task.add_done_callback(lambda _: self._ended(over, run))
        return cut

    async def _run(self, over: tuple[str, ...], run: _CutTask) -> None:
        """Take snapshots one after the other, as long as callers ask."""
        while (cut := self._next.pop(over, None)) is not None:
            run.cut = cut
            try:
                cut.set_result(await take_cut(self._session, over, 0, self._session.deadline()))
            except TxnError as error:
                cut.set_exception(error)
        # ▲ Here, not in a done callback: a caller that asks in between would wait for a task that has ended.
        del self._begun[over]

    def _ended(self, over: tuple[str, ...], run: _CutTask) -> None:
        if self._begun.get(over) is run:
            self._fail(over, for_good(ConnectionLost("taking a snapshot: this client was closed meanwhile")))
            del self._begun[over]

    def _fail(self, over: tuple[str, ...], error: TxnError) -> None:
        for cut in (self._begun[over].cut, self._next.pop(over, None)):
            if cut is not None and not cut.done():
                cut.set_exception(error)


def _seen(cut: asyncio.Future[Snapshot]) -> None:
    """Retrieve the error, which may have no waiting caller left."""
    cut.exception()
