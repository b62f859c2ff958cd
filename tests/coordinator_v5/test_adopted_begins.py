"""Begins that are repeated at a successor: which transaction of a predecessor is the answer (D7)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator_v5.transactions import OwnedTransaction, Phase
from tests.coordinator_v5.processes import Connection
from tests.coordinator_v5.test_announcements import IDS, Here
from txnstore.records import ABORTED, OPEN, Header

MINE = IDS[0]


def nothing(_: OwnedTransaction) -> None:
    pass


def ended(txn: OwnedTransaction) -> None:
    txn.phase = Phase.ENDED


def being_ended(txn: OwnedTransaction) -> None:
    txn.ending = Header(state=ABORTED, timeout_ms=1, created_ms=0)


def of_another_user(txn: OwnedTransaction) -> None:
    txn.header = Header(state=OPEN, timeout_ms=1, created_ms=0, attempt=str(MINE), owner="somebody else")


@pytest.mark.parametrize(
    ("attempt", "tcid", "change"),
    [
        pytest.param("never begun", 0, nothing, id="another attempt"),
        pytest.param(str(MINE), 1, nothing, id="another coordinator id"),
        pytest.param(str(MINE), 0, ended, id="ended"),
        pytest.param(str(MINE), 0, being_ended, id="being ended"),
        pytest.param(str(MINE), 0, of_another_user, id="of another user"),
    ],
)
def test_d7_what_is_not_its_own_or_not_open_is_no_answer_of_a_begin(
    attempt: str, tcid: int, change: Callable[[OwnedTransaction], None]
) -> None:
    here = Here()
    here.load(0)
    txn = here.loaded[0][MINE]
    change(txn)
    assert here.sessions.adopt(attempt, tcid, Connection("a")) is None
    assert txn.session is None


async def test_d7_a_begin_has_what_its_own_session_has_claimed_and_no_other_one() -> None:
    here, connection = Here(), Connection("a")
    here.load(0)
    await here.announce(connection, [MINE])
    assert here.sessions.adopt(str(MINE), 0, Connection("b")) is None
    assert here.sessions.adopt(str(MINE), 0, Connection("a")) is here.loaded[0][MINE]


def test_d7_what_a_begin_has_adopted_stays_as_long_as_its_session() -> None:
    here, connection = Here(), Connection("a")
    here.load(0)
    assert here.sessions.adopt(str(MINE), 0, connection) is here.loaded[0][MINE]
    assert here.vanished == IDS[1:5]
    here.sessions.disconnected(connection, 0)
    assert here.vanished == IDS[:5]
