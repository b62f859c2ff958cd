"""What happens while a long list of a client is worked on: each part is looked up when its turn has come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from coordinator_v5.sessions import ANNOUNCED_AT_ONCE, Sessions
from coordinator_v5.transactions import OwnedTcid, OwnedTransaction, Phase
from tests.coordinator_v5.processes import Connection
from txnstore.records import OPEN, Header, TxnSeq
from txnstore.writes.transitions import TcSeq
from txnwire.ids import TxnId
from txnwire.turns import turns_divided_by

GRACE_S = 10.0
IDS = [TxnId(tcid, counter) for tcid in (0, 1) for counter in range(1, 6)]


@pytest.fixture(autouse=True)
def _one_at_a_time() -> Iterator[None]:
    with turns_divided_by(ANNOUNCED_AT_ONCE):
        yield


class Here:
    """A coordinator's transactions, as far as its sessions are concerned. Time stands at 0."""

    def __init__(self) -> None:
        self.sessions = Sessions(GRACE_S)
        self.loaded: dict[int, dict[TxnId, OwnedTransaction]] = {}

    def load(self, tcid: int) -> None:
        tc = OwnedTcid(tcid, 1, TcSeq(TxnSeq(next=9, indexed_below=9), 1), id_block=1)
        self.loaded[tcid] = {}
        for txn_id in IDS:
            if txn_id.tcid == tcid:
                header = Header(state=OPEN, timeout_ms=1, created_ms=0, attempt=str(txn_id), owner="anonymous")
                txn = OwnedTransaction(tc, txn_id, header, phase=Phase.OPEN, begun_at=0, due=9e9)
                self.loaded[tcid][txn_id] = txn
                self.sessions.taken_over(txn, 0)

    def begin(self, txn_id: TxnId, connection: Connection) -> None:
        tc = OwnedTcid(txn_id.tcid, 1, TcSeq(TxnSeq(next=9, indexed_below=9), 1), id_block=1)
        header = Header(state=OPEN, timeout_ms=1, created_ms=0, attempt=str(txn_id), owner="anonymous")
        txn = OwnedTransaction(tc, txn_id, header, phase=Phase.OPEN, begun_at=0, due=9e9)
        self.loaded.setdefault(txn_id.tcid, {})[txn_id] = txn
        self.sessions.opened(txn, self.sessions.connected(connection), connection)

    def lose(self, tcid: int) -> None:
        for txn in self.loaded.pop(tcid).values():
            self.sessions.dropped(txn)

    def find(self, txn_id: TxnId) -> OwnedTransaction | None:
        return self.loaded.get(txn_id.tcid, {}).get(txn_id)

    async def announce(self, connection: Connection, ids: list[TxnId]) -> None:
        await self.sessions.announced(connection, ids, self.find, self.loaded.__contains__, lambda: 0.0)

    @property
    def vanished(self) -> list[TxnId]:
        """Whom the grace is over for, long after all of this."""
        return sorted(txn.txn_id for txn in self.sessions.vanished(1000.0, 1000))


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("loaded", [False, True])
async def test_others_have_their_turn_between_the_parts_of_a_list(loaded: bool) -> None:
    here, done = Here(), False
    if loaded:
        here.load(0)
        here.load(1)

    async def others() -> int:
        seen = 0
        while not done:
            seen += 1
            await asyncio.sleep(0)
        return seen

    counting = asyncio.ensure_future(others())
    await asyncio.sleep(0)
    await here.announce(Connection("a"), IDS)
    done = True
    assert await counting >= len(IDS)
    assert here.vanished == []


async def test_what_is_loaded_behind_its_part_of_the_list_is_claimed_by_it() -> None:
    """Dies if such a transaction counts as one of an earlier connection: the list's own end would call it unclaimed."""
    here = Here()
    announcing = asyncio.ensure_future(here.announce(Connection("a"), IDS))
    await turns(7)
    here.load(0)
    here.load(1)
    await announcing
    assert here.vanished == []


async def test_what_is_lost_behind_its_part_of_the_list_need_not_be_announced_again() -> None:
    """Dies if the list's end forgets all that it did not put there itself."""
    here, connection = Here(), Connection("a")
    await here.announce(connection, IDS)
    announcing = asyncio.ensure_future(here.announce(connection, IDS))
    await turns(2)
    here.load(0)
    await turns(6)
    here.lose(0)
    await announcing
    here.load(0)
    here.load(1)
    assert here.vanished == []


@pytest.mark.parametrize("parts", [ANNOUNCED_AT_ONCE, 1])
@pytest.mark.parametrize("loaded", [False, True])
async def test_what_a_list_no_longer_names_is_not_waited_for(loaded: bool, parts: int) -> None:
    here = Here()
    with turns_divided_by(parts):
        if loaded:
            here.load(0)
            here.load(1)
        await here.announce(Connection("a"), IDS)
        await here.announce(Connection("a"), IDS[4:])
        if not loaded:
            here.load(0)
            here.load(1)
    assert here.vanished == IDS[:4]


async def test_a_newer_list_ends_one_that_is_worked_on() -> None:
    here = Here()
    older = asyncio.ensure_future(here.announce(Connection("a"), IDS))
    await turns(3)
    newer = asyncio.ensure_future(here.announce(Connection("a"), IDS[1:2]))
    await asyncio.gather(older, newer)
    here.load(0)
    here.load(1)
    assert here.vanished == [*IDS[:1], *IDS[2:]]


async def test_an_older_list_calls_nothing_unclaimed_that_was_begun_over_the_newer_connection() -> None:
    """▲ Neither list names it. Dies if the older one is worked on to its end: what it has not named and is of another
    connection would be aborted after the grace, though its client holds it."""
    here, newest = Here(), Connection("a")
    here.load(0)
    older = asyncio.ensure_future(here.announce(Connection("a"), IDS[:5]))
    await turns(3)
    newer = asyncio.ensure_future(here.announce(newest, IDS[:5]))
    await turns(1)
    here.begin(IDS[5], newest)
    await asyncio.gather(older, newer)
    assert here.vanished == []


async def test_a_list_whose_connection_ends_claims_nothing_more() -> None:
    """Dies if the rest is claimed by a session that has gone: nobody would ever end it."""
    here, connection = Here(), Connection("a")
    announcing = asyncio.ensure_future(here.announce(connection, IDS))
    await turns(3)
    here.sessions.disconnected(connection, 0)
    assert here.vanished == []
    assert len(here.sessions) == 0
    await announcing
    here.load(0)
    here.load(1)
    assert here.vanished == IDS


async def test_what_is_lost_and_loaded_again_behind_its_part_of_the_list_stays_claimed() -> None:
    """Dies if its new life is of no connection: the list's end would call it unclaimed, though the list names it."""
    here = Here()
    here.load(0)
    here.load(1)
    announcing = asyncio.ensure_future(here.announce(Connection("a"), IDS))
    await turns(7)
    here.lose(0)
    here.load(0)
    await announcing
    assert here.vanished == []


async def test_a_client_that_asks_again_before_its_answer_keeps_no_list_from_its_end() -> None:
    """Dies if a list ends an earlier one of its own connection: where one takes longer than a client waits for the
    answer, none would ever come to its last parts, and these transactions would be aborted."""
    here, connection = Here(), Connection("a")
    here.load(0)
    here.load(1)
    announcing = []
    for _ in range(6):
        announcing.append(asyncio.ensure_future(here.announce(connection, IDS)))
        await turns(4)
    assert here.vanished == []
    await asyncio.gather(*announcing)
    assert here.vanished == []


async def test_nothing_is_kept_of_what_has_ended_whether_it_was_claimed_or_not() -> None:
    """Dies if it grows with what has been taken over and ended: each sweep would look at all of it."""
    here = Here()
    sessions = here.sessions
    here.load(0)
    here.load(1)
    await here.announce(Connection("a"), IDS[::2])
    for txn_id in IDS:
        txn = here.find(txn_id)
        assert txn is not None
        sessions.ended(txn)
    assert not sessions._unclaimed
    assert not sessions._taken_over
    (session,) = sessions._sessions.values()
    assert not session.open
