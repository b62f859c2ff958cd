"""The bytes of ledgers and footers: what is written is read, and no cut or flip is taken for something else."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from segments.ledger import ledger_format as fmt
from txnwire.errors import DataCorrupt

HEADER = fmt.LedgerHeader("public/default/orders/0000-7fff-3", 7, "store-1")
GROUPS = st.lists(st.lists(st.binary(max_size=1500), min_size=1, max_size=6), max_size=8)


def reader(data: bytes) -> fmt.ReadAt:
    return lambda offset, length: data[offset : offset + length]


def written(groups: list[list[bytes]]) -> tuple[bytes, list[int], list[int]]:
    """A file with one sync per group, where each group ends, and how many entries stand before each end."""
    data = fmt.encode_header(HEADER)
    opened = fmt.decode_header(reader(data), "f")
    ends, counts, first = [len(data)], [0], 0
    for entries in groups:
        data += fmt.encode_groups(opened.marker, first, entries, first).data
        first += len(entries)
        ends.append(len(data))
        counts.append(first)
    return data, ends, counts


def scanned(data: bytes, **bound: int) -> fmt.LedgerScan:
    opened = fmt.decode_header(reader(data), "f")
    return fmt.scan(reader(data), len(data), opened, "f", **bound)


@given(GROUPS)
def test_what_is_written_is_found(groups: list[list[bytes]]) -> None:
    data, _, counts = written(groups)
    found = scanned(data)
    entries = [entry for group in groups for entry in group]
    assert (found.entries, found.bytes, found.end, found.torn) == (counts[-1], sum(map(len, entries)), len(data), None)
    opened = fmt.decode_header(reader(data), "f")
    for first in range(0, len(entries), 5):
        offset = found.index.floor(first)
        last = len(entries) - 1
        got = fmt.read_entries(reader(data), opened.marker, offset, first, last, max_bytes=1 << 40, where="f")
        assert got == list(enumerate(entries))[first:]


@given(GROUPS, st.data())
def test_l5_a_cut_anywhere_keeps_every_whole_group(groups: list[list[bytes]], draw: st.DataObject) -> None:
    data, ends, counts = written(groups)
    cut = draw.draw(st.integers(ends[0], len(data)))
    expected = max(count for end, count in zip(ends, counts, strict=True) if end <= cut)
    assert scanned(data[:cut]).entries == expected


@given(GROUPS, st.data())
def test_a_flip_anywhere_is_an_error_that_names_file_and_offset(groups: list[list[bytes]], draw: st.DataObject) -> None:
    groups = [[entry.replace(b"\0", b"\1") for entry in group] for group in groups]
    data, _, _ = written(groups)
    bit = draw.draw(st.integers(0, 8 * len(data) - 1))
    damaged = bytearray(data)
    damaged[bit // 8] ^= 1 << bit % 8
    assume(damaged[bit // 8])  # alone in its sector it would look as if it had never been written
    with pytest.raises(DataCorrupt, match=r"f: "):
        scanned(bytes(damaged))


def test_l5_each_bit_of_a_small_file_is_missed_and_told_of_by_where_its_group_begins() -> None:
    """Also in the last group, which was written whole: it is not cut off as if it were torn."""
    data, ends, counts = written([[b"a" * 7, b"b"], [b"c" * 9], [b"d" * 3]])
    for offset in range(len(data)):
        group = sum(end <= offset for end in ends)
        where = rf"f: offset {ends[group - 1]}: .* entry {counts[group - 1]}\b" if group else r"f: .*offset \d+"
        for bit in range(8):
            damaged = bytearray(data)
            damaged[offset] ^= 1 << bit
            try:
                found = scanned(bytes(damaged))
            except DataCorrupt as error:
                assert re.search(where, str(error)), f"bit {bit} at {offset}: {error}"
            else:
                raise AssertionError(f"bit {bit} at {offset} was not missed: {found}")


@pytest.mark.parametrize("beyond", range(1, 33))
def test_l5_a_last_sector_of_a_few_bytes_that_never_reached_the_disk_is_a_torn_tail(beyond: int) -> None:
    whole, ends, _ = written([[b"synced"], [b"x"]])
    entry = b"x" * (fmt.SECTOR_BYTES - (len(whole) - 1) % fmt.SECTOR_BYTES + beyond)
    data, ends, _ = written([[b"synced"], [entry]])
    assert len(data) % fmt.SECTOR_BYTES == beyond
    found = scanned(data[:-beyond] + bytes(beyond))
    assert (found.entries, found.end) == (1, ends[1])
    assert found.torn is not None


def test_l5_a_lost_sector_is_no_torn_tail_however_far_behind_it_a_group_tells_that_it_was_acked() -> None:
    """▲ Everything from the lost sector on would be cut off, though it was acknowledged."""
    data, ends, _ = written([[b"a"], [b"b" * (3 << 20)], [b"c"]])
    sector = ends[1] // fmt.SECTOR_BYTES * fmt.SECTOR_BYTES + 2 * fmt.SECTOR_BYTES
    damaged = data[:sector] + bytes(fmt.SECTOR_BYTES) + data[sector + fmt.SECTOR_BYTES :]
    with pytest.raises(DataCorrupt, match=rf"at entry 1, which was acknowledged: .* from offset {ends[2]} "):
        scanned(damaged)
    assert scanned(damaged[: ends[2]]).entries == 1, "without that group it may be one"


def test_acked_entries_that_are_missing_are_corruption() -> None:
    data, ends, _ = written([[b"a"], [b"b"]])
    assert scanned(data, bound=1).entries == 1
    with pytest.raises(DataCorrupt, match=r"f: offset \d+: 2 entries were acknowledged here, only 1"):
        scanned(data[: ends[1]], bound=2)


def test_a_group_of_another_ledger_is_damage() -> None:
    data, ends, _ = written([[b"a"]])
    other = fmt.encode_header(HEADER._replace(ledger_id=8))
    foreign = fmt.encode_groups(fmt.decode_header(reader(other), "g").marker, 1, [b"b" * 90], 1).data
    with pytest.raises(DataCorrupt, match=rf"f: offset {ends[1]}: group header damaged at entry 1"):
        scanned(data + foreign)


def test_large_appends_are_split_into_groups() -> None:
    entries = [b"%d" % number * 400_000 for number in range(7)]
    groups = fmt.encode_groups(1, 0, entries, 0)
    assert [first for first, _ in groups.starts] == [0, 2, 4, 6]
    for first, offset in groups.starts:
        found = fmt.read_entries(reader(groups.data), 1, offset, first, first, max_bytes=1, where="f")
        assert found == [(first, entries[first])], "each stands where a reader will begin"


@given(st.binary(max_size=300), st.booleans())
def test_footers_round_trip(payload: bytes, closed: bool) -> None:
    data, _, _ = written([[b"a" * 40_000], [b"b" * 40_000], [b"c"]])
    footer = fmt.Footer(7, payload, scanned(data) if closed else None)
    assert fmt.decode_footer(fmt.encode_footer(footer), 7, "f") == footer
    with pytest.raises(DataCorrupt, match="of ledger 7, 8 expected"):
        fmt.decode_footer(fmt.encode_footer(footer), 8, "f")
