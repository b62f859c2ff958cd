"""Which transactions a repair drops because a folder that was copied before etcd may lack a part of them."""

from __future__ import annotations

import msgspec
import pytest

from txnctl.checking.doubtful import WATERMARK_LAG_MS, doubtful
from txnctl.checking.picture import Picture
from txnstore.records import ABORTED, COMMITTED, OPEN, Header
from txnwire.ids import TxnId

MARK = 100
"""etcd's revision at the folder's mark."""
NOW_MS = 1_000_000
TXN = TxnId(0, 7)
ONE, OTHER = "public/default/t/0000-7fff-0", "public/default/t/8000-ffff-1"


def found_in(
    ended_ms: int,
    *,
    state: str = COMMITTED,
    decided_at: int = MARK + 1,
    there: int = 2,
    ops: int | None = None,
    later_ms: int | None = None,
) -> dict[TxnId, str]:
    """`there`: its entries in one segment; `ops`: its operation records there, None once they are cleaned up;
    `later_ms`: when another transaction ended."""
    picture = Picture()
    picture.headers[TXN] = Header(state=state, timeout_ms=1, created_ms=1, finalized_ms=ended_ms)
    picture.header_revisions[TXN] = decided_at
    if later_ms is not None:
        other = TxnId(0, 8)
        picture.headers[other] = Header(state=COMMITTED, timeout_ms=1, created_ms=1, finalized_ms=later_ms)
        picture.header_revisions[other] = MARK + 2
    if ops is not None:
        picture.ops[TXN, ONE, None] = ops
        picture.ops[TXN, OTHER, "sub"] = 5  # acks: no entries
    left = {(TXN, ONE): there} if there else {}
    return doubtful(picture, left, folder_revision=MARK, ended_ms=NOW_MS)


@pytest.mark.parametrize("ended_ms", [NOW_MS, NOW_MS - 1, NOW_MS - WATERMARK_LAG_MS + 1])
def test_what_was_committed_right_before_etcd_was_copied_may_lack_a_part(ended_ms: int) -> None:
    """▲ Neither a watermark nor an operation record tells: one topic would show it, another not."""
    assert found_in(ended_ms) == {TXN: "committed in the last seconds before etcd was copied"}
    assert found_in(ended_ms, there=0) == {}, "nothing of it is shown anywhere"


@pytest.mark.parametrize("state", [COMMITTED, ABORTED, OPEN])
def test_what_ended_long_before_or_counts_nothing_is_whole(state: str) -> None:
    assert found_in(NOW_MS - WATERMARK_LAG_MS, state=state) == {}
    assert found_in(NOW_MS, state=state, decided_at=MARK) == {}, "it was stored as the mark was written"
    if state != COMMITTED:
        assert found_in(NOW_MS, state=state) == {}


def test_the_last_moment_is_that_of_the_latest_commit_where_the_clock_was_stamped_before_it() -> None:
    """The clock of the cluster is written every few seconds."""
    assert list(found_in(NOW_MS + 5_000, later_ms=NOW_MS + 5_000 + WATERMARK_LAG_MS - 1)) == [TXN]
    assert found_in(NOW_MS + 5_000, later_ms=NOW_MS + 5_000 + WATERMARK_LAG_MS, ops=None) == {}


@pytest.mark.parametrize("ended_ms", [NOW_MS, NOW_MS - 60_000])
@pytest.mark.parametrize("there", [0, 1])
def test_of_what_has_operation_records_the_entries_are_counted(there: int, ended_ms: int) -> None:
    assert found_in(ended_ms, there=there, ops=2) == {TXN: f"{there} of 2 entries are in {ONE}"}
    assert found_in(NOW_MS - 60_000, there=2, ops=2) == {}


@pytest.mark.parametrize(
    ("state", "decided_at"), [(OPEN, MARK + 1), (ABORTED, MARK + 1), (COMMITTED, MARK), (COMMITTED, MARK - 1)]
)
def test_entries_are_counted_of_what_was_committed_behind_the_mark_alone(state: str, decided_at: int) -> None:
    """▲ An open one is still writing, and what was stored as the mark was written is whole."""
    assert found_in(NOW_MS, state=state, decided_at=decided_at, there=1, ops=2) == {}


def test_a_header_of_which_no_revision_is_known_is_not_behind_the_mark() -> None:
    picture = Picture(headers={TXN: Header(state=COMMITTED, timeout_ms=1, created_ms=1, finalized_ms=NOW_MS)})
    assert doubtful(picture, {(TXN, ONE): 2}, folder_revision=0, ended_ms=NOW_MS) == {}


def test_of_several_that_were_committed_in_the_last_moment_each_is_found() -> None:
    """Some of them because of the clock, others by what they have operation records of; the last to end comes last."""
    picture = Picture()
    for n, ended_ms in enumerate((NOW_MS - 60_000, NOW_MS + 1, NOW_MS + 2, NOW_MS - 60_000, NOW_MS + 3_000), start=1):
        picture.headers[TxnId(0, n)] = Header(state=COMMITTED, timeout_ms=1, created_ms=1, finalized_ms=ended_ms)
        picture.header_revisions[TxnId(0, n)] = MARK + n
    for n in (1, 4):
        picture.ops[TxnId(0, n), ONE, None] = picture.ops[TxnId(0, n), OTHER, None] = 2
    left = {(TxnId(0, n), segment): 2 for n in range(1, 6) for segment in (ONE, OTHER)}
    left[TxnId(0, 4), OTHER] = 1
    last = "committed in the last seconds before etcd was copied"
    assert doubtful(picture, left, folder_revision=MARK, ended_ms=NOW_MS) == {
        TxnId(0, 2): last,
        TxnId(0, 3): last,
        TxnId(0, 4): f"1 of 2 entries are in {OTHER}",
        TxnId(0, 5): last,
    }
    picture.headers[TxnId(0, 5)] = msgspec.structs.replace(picture.headers[TxnId(0, 5)], finalized_ms=NOW_MS + 3_001)
    assert TxnId(0, 2) not in doubtful(picture, left, folder_revision=MARK, ended_ms=NOW_MS)
