"""How a ledger list is cut into a head and pages, against the plain list it stands for."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segments.log.ledgers.ledger_pages import PAGE_LEDGERS, ListPage, cut, join, read_page
from segments.log.ledgers.retention import kept_ledgers
from txnstore import keys, records
from txnstore.records import LedgerInfo, LedgerRecord
from txnstore.store import MAX_COMMIT_BYTES, MAX_COMMIT_OPS, KeyValue
from txnwire.errors import DataCorrupt

SEGMENT = "public/nyc/flights/0000-ffff-0"
SIZE = 4


class Stored:
    """The records in etcd, as the commits of a segment's owner leave them."""

    def __init__(self, page_ledgers: int = SIZE) -> None:
        self.size = page_ledgers
        self.head = LedgerRecord(ledgers=[])
        self.values: dict[bytes, bytes] = {}
        self.pages: list[ListPage] = []

    def write(self, record: LedgerRecord) -> None:
        now = cut(SEGMENT, record, self.pages, page_ledgers=self.size)
        assert 1 + len(now.puts) + len(now.deletes) <= MAX_COMMIT_OPS
        assert len(records.encode(now.head)) + sum(len(one.key) + len(one.value) for one in now.puts) < MAX_COMMIT_BYTES
        for put in now.puts:
            self.values[put.key] = put.value
        for delete in now.deletes:
            del self.values[delete.key]
        self.head, self.pages = now.head, now.pages

    def read(self) -> LedgerRecord:
        return join(SEGMENT, self.head, [read_page(one) for one in self.records()])

    def records(self) -> list[KeyValue]:
        return [KeyValue(key, self.values[key], 1, 1, 1) for key in sorted(self.values)]


def closed(ledger_id: int, *, entries: int = 7, size: int = 100, aborted: int = 0) -> LedgerInfo:
    return LedgerInfo(ledger_id=ledger_id, closed_length=entries, bytes=size, closed_ms=5, aborted=aborted)


def long_list(count: int, *, first: int = 1) -> LedgerRecord:
    return LedgerRecord(ledgers=[*(closed(first + n) for n in range(count - 1)), LedgerInfo(ledger_id=first + count)])


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("roll"), st.integers(1, 9)),
        st.tuples(st.just("trim"), st.integers(0, 30)),
        st.tuples(st.just("forget"), st.integers(0, 30)),
        st.tuples(st.just("sidecar"), st.integers(0, 30)),
    ),
    max_size=25,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_head_and_pages_are_the_list_whatever_is_done_to_it(steps: list[tuple[str, int]]) -> None:
    stored, record, next_id = Stored(), LedgerRecord(ledgers=[LedgerInfo(ledger_id=1)]), 2
    for step, n in steps:
        ledgers = record.ledgers
        if step == "roll":
            for _ in range(n):
                ledgers = [*ledgers[:-1], closed(ledgers[-1].ledger_id), LedgerInfo(ledger_id=next_id)]
                next_id += 1
                record = msgspec.structs.replace(record, ledgers=ledgers)
                stored.write(record)
        elif step == "trim":
            at = ledgers[min(n, len(ledgers) - 1)].ledger_id
            record = msgspec.structs.replace(record, trimmed_below=max(record.trimmed_below or (0, 0), (at, 0)))
        elif step == "forget":
            record = msgspec.structs.replace(record, ledgers=kept_ledgers(record))
        elif n < len(ledgers) - 1:
            changed = msgspec.structs.replace(ledgers[n], aborted=3)
            record = msgspec.structs.replace(record, ledgers=[*ledgers[:n], changed, *ledgers[n + 1 :]])
        stored.write(record)
        assert stored.read() == record
        assert len(stored.head.ledgers) <= SIZE + SIZE // 4
        kept = stored.head.paged_bytes + sum(info.bytes for info in kept_ledgers(stored.head))
        assert kept == sum(info.bytes for info in kept_ledgers(record))
        assert all(info.closed_length is not None for page in stored.pages for info in page.ledgers)


def test_neither_the_head_nor_a_page_of_the_largest_ledgers_outgrows_64_kib() -> None:
    last = 10**12
    large = [
        LedgerInfo(
            ledger_id=last + n, closed_length=10**7, bytes=10**11, opened_ms=10**13, closed_ms=10**13, aborted=10**6
        )
        for n in range(PAGE_LEDGERS * 5 // 4)
    ]
    record = LedgerRecord(
        ledgers=large, trimmed_below=(last, 0), trimmed_through=(last, 10**7), sealed=(last, 10**7), sealed_by="f" * 32
    )
    assert len(records.encode(cut(SEGMENT, record, []).head)) <= 64 * 1024
    more = cut(SEGMENT, msgspec.structs.replace(record, ledgers=[*large, closed(last * 2)]), [])
    assert [len(page.ledgers) for page in more.pages] == [PAGE_LEDGERS]
    assert all(len(put.value) <= 64 * 1024 for put in more.puts)


def test_the_longest_list_that_one_record_held_is_cut_by_one_commit() -> None:
    """Written before there were pages: with every field, in one record of almost a megabyte."""
    stored, record = Stored(PAGE_LEDGERS), long_list(9_900)
    stored.write(record)
    assert stored.read() == record
    assert len(records.encode(stored.head)) <= 64 * 1024


def test_a_ledger_that_is_open_stays_in_the_head() -> None:
    """Whoever takes over closes what is open there."""
    ledgers = [closed(n) for n in range(1, 30)]
    ledgers[6] = LedgerInfo(ledger_id=7)
    now = cut(SEGMENT, LedgerRecord(ledgers=ledgers), [], page_ledgers=SIZE)
    assert [[info.ledger_id for info in page.ledgers] for page in now.pages] == [[1, 2, 3, 4]]
    assert now.head.ledgers == ledgers[4:]


def test_a_page_goes_with_the_last_of_its_ledgers() -> None:
    stored, record = Stored(), long_list(21)
    stored.write(record)
    names = list(stored.values)
    assert len(names) == 4
    stored.write(msgspec.structs.replace(record, ledgers=record.ledgers[6:]))
    assert list(stored.values) == names[1:]
    stored.write(msgspec.structs.replace(record, ledgers=record.ledgers[8:]))
    assert list(stored.values) == names[2:]


def test_a_page_in_which_nothing_changed_is_not_written_again() -> None:
    """Each ledger that is closed would write the whole list."""
    stored, record = Stored(), long_list(21)
    stored.write(record)
    unchanged = cut(SEGMENT, record, stored.pages, page_ledgers=SIZE)
    assert (unchanged.puts, unchanged.deletes) == ((), ())
    sidecar = [msgspec.structs.replace(info, aborted=int(info.ledger_id == 10)) for info in record.ledgers]
    now = cut(SEGMENT, msgspec.structs.replace(record, ledgers=sidecar), stored.pages, page_ledgers=SIZE)
    assert [put.key for put in now.puts] == [keys.ledger_page(SEGMENT, 9)]


@pytest.mark.parametrize("damage", ["a page is missing", "a page too many", "a page twice"])
def test_a_list_with_a_gap_is_corrupt_and_never_taken_for_the_whole(damage: str) -> None:
    stored = Stored()
    stored.write(long_list(21))
    pages = [read_page(one) for one in stored.records()]
    broken = {
        "a page is missing": pages[1:],
        "a page too many": [ListPage(0, [closed(0)], 1), *pages],
        "a page twice": [pages[0], pages[0], *pages[2:]],
    }[damage]
    with pytest.raises(DataCorrupt, match="are in pages"):
        join(SEGMENT, stored.head, broken)


def test_a_program_that_knows_of_no_pages_refuses_the_head() -> None:
    """Its decoder takes version 1 alone, and would pass over the fields it does not know."""
    stored = Stored()
    stored.write(long_list(21))
    assert stored.head.v == 2
    stored.write(msgspec.structs.replace(long_list(21), ledgers=long_list(21).ledgers[-3:]))
    assert stored.head.v == 1


def test_a_record_of_a_version_nobody_knows_is_refused() -> None:
    value = records.encode(msgspec.structs.replace(long_list(3), v=3))
    with pytest.raises(DataCorrupt, match="version 3"):
        records.decode(LedgerRecord, value, key=keys.ledger(SEGMENT))


def test_keys_of_pages_stand_in_the_order_of_ids_and_never_among_heads() -> None:
    names = [keys.ledger_page(SEGMENT, one) for one in (1, 9, 10, 255, 10**12)]
    assert names == sorted(names)
    assert [keys.ledger_page_parts(one) for one in names] == [(SEGMENT, one) for one in (1, 9, 10, 255, 10**12)]
    assert not any(keys.LEDGER <= one < keys.prefix_end(keys.LEDGER) for one in names)
    topic_named_so = "public/nyc/ledger-page/0000-ffff-0"
    assert keys.ledger_page_parts(keys.ledger_page(topic_named_so, 3)) == (topic_named_so, 3)
