"""Lists of writers in records: what goes in comes out, and what does not fit is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnstore.records import COMMITTED, Header, encode
from txnstore.writes import writer_lists
from txnstore.writes.writer_lists import MAX_LISTED, MAX_WRITERS, holds, numbers, pack, unpack
from txnwire.errors import DataCorrupt, InvalidArgument

ETCD_REQUEST_BYTES = 1_572_864


def ids(writers: list[int] | range) -> list[str]:
    return [f"{writer:016x}" for writer in writers]


@given(
    st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 60), unique=True, max_size=60).map(sorted), st.integers(0, 70)
)
def test_a_list_comes_out_as_it_went_in_whichever_way_it_is_written(writers: list[int], other: int) -> None:
    runs = [f"{first:016x}+{count:x}" for first, count in writer_lists._runs(writers)]
    for listed in (pack(ids(writers)), runs):
        assert list(unpack(listed)) == ids(writers)
        assert numbers(listed) == writers
        assert holds(listed, other) == (other in writers)


def test_c9_the_largest_record_of_each_way_fits_into_a_request_of_etcd() -> None:
    plain = ids([number << 32 for number in range(MAX_LISTED)])
    longest = ids([base << 32 | number for base in range(MAX_LISTED) for number in range(10)][:MAX_WRITERS])
    for writers in (plain, longest):
        packed = pack(writers)
        assert len(packed) <= MAX_LISTED
        assert list(unpack(packed)) == writers
        record = encode(Header(state=COMMITTED, timeout_ms=0, created_ms=0, name="n" * 512, writers=packed))
        assert len(record) < ETCD_REQUEST_BYTES / 2


def test_c9_one_more_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=f"{MAX_LISTED + 1} runs"):
        pack(ids([number << 32 for number in range(MAX_LISTED + 1)]))
    with pytest.raises(InvalidArgument, match=f"{MAX_WRITERS + 1} writers"):
        pack(ids(range(MAX_WRITERS + 1)))
    with pytest.raises(DataCorrupt, match="more than"):
        numbers([f"{1:016x}+{MAX_WRITERS + 1:x}"])
    with pytest.raises(DataCorrupt, match="more than"):
        numbers([f"{1:016x}+{MAX_WRITERS:x}", f"{1 << 32:016x}"])


def test_short_lists_stand_as_earlier_versions_read_them() -> None:
    assert pack(ids([1, 2, 3])) == ids([1, 2, 3])
    assert pack(ids(range(MAX_LISTED + 1))) == [f"{0:016x}+{MAX_LISTED + 1:x}"]


def test_c9_a_record_of_as_many_writers_as_a_commit_may_list_is_read() -> None:
    listed = pack(ids(range(MAX_WRITERS)))
    assert len(numbers(listed)) == MAX_WRITERS
    assert pack(ids(range(MAX_LISTED))) == ids(range(MAX_LISTED)), "as earlier versions read them"


def test_a5_a_writer_is_found_whatever_stands_before_it() -> None:
    listed = ["0000000000000009", "0000000000000020+4", "0000000000000007"]
    assert [writer for writer in range(0x30) if holds(listed, writer)] == [7, 9, 0x20, 0x21, 0x22, 0x23]


def test_a5_a_list_that_cannot_be_read_fails_its_own_transaction_alone() -> None:
    for item in ("no writer", "7+", "7+x", ""):
        with pytest.raises(DataCorrupt, match="in a list of writers"):
            unpack(["0000000000000009", item])
