"""A picture of etcd has all records of each kind, however many pages they are read in."""

from __future__ import annotations

import pytest

from segments.log.ledgers.ledger_pages import cut
from txnctl.checking.picture import expect_readable, picture_of, take_picture
from txnstore import keys
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import COMMITTED, Header, LedgerInfo, LedgerRecord, TxnSeq, encode
from txnstore.store import Commit, KeyValue, Put
from txnwire.errors import DataCorrupt
from txnwire.ids import TxnId

SEGMENTS = ("public/nyc/flights/0000-7fff-0", "public/nyc/flights/8000-ffff-1")
IDS = [TxnId(1, n) for n in range(1, 8)]
STRANGE = (b"/a", b"/b", b"/zzy", b"/zzz")


async def test_records_of_every_kind_are_read_with_all_their_pages(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ A repair would take the others for lost: it would abort, or set aside, what is whole."""
    monkeypatch.setattr("txnctl.checking.picture.RECORDS_AT_ONCE", 2)
    whole = LedgerRecord(ledgers=[LedgerInfo(ledger_id=n, closed_length=n) for n in range(1, 12)])
    for segment in SEGMENTS:
        now = cut(segment, whole, [], page_ledgers=2)
        await memory_store.commit(Commit(puts=(Put(keys.ledger(segment), encode(now.head)), *now.puts)))
    header = encode(Header(state=COMMITTED, timeout_ms=2, created_ms=1))
    puts = [Put(keys.txn(txn_id), header) for txn_id in IDS]
    puts += [Put(keys.txn_seq(tcid), encode(TxnSeq(next=1))) for tcid in range(3)]
    puts += [Put(key, b"") for key in STRANGE]
    await memory_store.commit(Commit(puts=tuple(puts)))
    picture = await take_picture(memory_store)
    assert picture.ledgers == dict.fromkeys(SEGMENTS, whole)
    assert (list(picture.headers), list(picture.id_blocks)) == (IDS, [0, 1, 2])
    assert (picture.unknown, picture.unreadable) == ([key.decode() for key in STRANGE], [])
    records = (await memory_store.range(b"\0", b"\xff")).records

    def between(start: bytes, end: bytes) -> list[KeyValue]:
        return [record for record in records if start <= record.key < end]

    assert picture_of(picture.revision, between) == picture


def test_what_cannot_be_read_is_found_behind_what_may_be_passed_over() -> None:
    picture = picture_of(1, lambda _, __: ())
    picture.unreadable = ["/owner/a: bad", "/topic/b: bad", "/txn/c: bad"]
    with pytest.raises(DataCorrupt, match="cannot be read: /topic/b: bad, and 1 more"):
        expect_readable(picture, (keys.TC, keys.OWNER))
    picture.unreadable = picture.unreadable[:1]
    expect_readable(picture, (keys.TC, keys.OWNER))


async def test_each_list_that_has_lost_all_its_pages_is_unreadable(memory_store: MemoryStore) -> None:
    """▲ What its head alone lists would be taken for all there is."""
    whole = LedgerRecord(ledgers=[LedgerInfo(ledger_id=n, closed_length=n) for n in range(1, 12)])
    for segment in SEGMENTS:
        head = encode(cut(segment, whole, [], page_ledgers=2).head)
        await memory_store.commit(Commit(puts=(Put(keys.ledger(segment), head),)))
    picture = await take_picture(memory_store)
    assert [segment in text for segment, text in zip(SEGMENTS, picture.unreadable, strict=True)] == [True, True]
    assert picture.ledgers == {}
