"""Divides a segment's ledger list into records that stay small enough for etcd, however long the list is. Pure.

    /ledger/<segment>                 the head: the newest ledgers, the seal, what is trimmed, how many stand in pages
    /ledger-page/<segment>/<id>       a page: closed ledgers older than those of the head; `id`: its first, as it began

Head and pages change in one etcd transaction, which compares only the head: no page is written without it. A page
shrinks as its ledgers are trimmed, keeps its key meanwhile, and is deleted with the last of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec

from txnstore import keys, records
from txnstore.records import PAGED, LedgerInfo, LedgerPage, LedgerRecord
from txnstore.store import Delete, KeyValue, Put
from txnwire.errors import DataCorrupt

PAGE_LEDGERS: Final = 256
"""Ledgers of a page, of 64 MiB each; a ledger takes up to 200 bytes of its record. The head moves ledgers into a page
once at least a quarter of a page would remain in it: it stays below 64 KiB."""
PAGES_AT_ONCE: Final = 64
"""Pages that one commit creates, as it has room for `MAX_COMMIT_OPS`; the next commit continues. A list that fitted one
record before pages existed also fits one commit."""


class ListPage(NamedTuple):
    """One page of the list. `name`: the ledger id in its key."""

    name: int
    ledgers: list[LedgerInfo]
    bytes: int

    @property
    def last_id(self) -> int:
        return self.ledgers[-1].ledger_id


class PagedList(NamedTuple):
    """A list as etcd stores it; `puts` and `deletes` change its pages."""

    head: LedgerRecord
    pages: list[ListPage]
    puts: tuple[Put, ...]
    deletes: tuple[Delete, ...]


def make_page(name: int, ledgers: list[LedgerInfo]) -> ListPage:
    return ListPage(name, ledgers, sum(info.bytes for info in ledgers))


def cut(
    segment: str, record: LedgerRecord, before: Sequence[ListPage], *, page_ledgers: int = PAGE_LEDGERS
) -> PagedList:
    """Divide the list. `record`: the whole list, oldest first. `before`: its present pages in etcd."""
    pages: list[ListPage] = []
    puts: list[Put] = []
    deletes: list[Delete] = []
    at = 0
    for page in before:
        end = bisect_right(record.ledgers, page.last_id, lo=at, key=_id)
        left, at = record.ledgers[at:end], end
        if not left:
            deletes.append(Delete(keys.ledger_page(segment, page.name)))
            continue
        now = page if left == page.ledgers else make_page(page.name, left)
        if now is not page:
            puts.append(_put(segment, now))
        pages.append(now)
    for page in _given_up(record.ledgers, at, page_ledgers):
        pages.append(page)
        puts.append(_put(segment, page))
        at += len(page.ledgers)
    return PagedList(_head(record, pages, at), pages, tuple(puts), tuple(deletes))


def _given_up(ledgers: Sequence[LedgerInfo], at: int, page_ledgers: int) -> list[ListPage]:
    """Pages to take out of the head, which begins at index `at`. ▲ Only closed ledgers: a new owner closes the open
    one, and looks for it in the head."""
    found: list[ListPage] = []
    keep = max(1, page_ledgers // 4)
    while len(ledgers) - at > page_ledgers + keep and len(found) < PAGES_AT_ONCE:
        page = list(ledgers[at : at + page_ledgers])
        if any(info.closed_length is None for info in page):
            break
        found.append(make_page(page[0].ledger_id, page))
        at += page_ledgers
    return found


def _head(record: LedgerRecord, pages: Sequence[ListPage], at: int) -> LedgerRecord:
    paged = sum(len(page.ledgers) for page in pages)
    return msgspec.structs.replace(
        record,
        # ▲ A version without pages must refuse the record: it would treat the ledgers in them as gone.
        v=PAGED if paged else 1,
        ledgers=record.ledgers[at:],
        paged=paged,
        paged_bytes=sum(_kept_bytes(page, record.trimmed_below) for page in pages),
    )


def _kept_bytes(page: ListPage, below: tuple[int, int] | None) -> int:
    if below is None or page.ledgers[0].ledger_id >= below[0]:
        return page.bytes
    first = bisect_left(page.ledgers, below[0], key=_id)
    return sum(info.bytes for info in page.ledgers[first:])


def _put(segment: str, page: ListPage) -> Put:
    return Put(keys.ledger_page(segment, page.name), records.encode(LedgerPage(ledgers=page.ledgers)))


def _id(info: LedgerInfo) -> int:
    return info.ledger_id


def read_page(record: KeyValue) -> ListPage:
    """Raises `DataCorrupt`."""
    found = records.decode(LedgerPage, record.value, key=record.key)
    if not found.ledgers:
        raise DataCorrupt(f"{record.key.decode()}: a page of the ledger list without a ledger")
    return make_page(keys.ledger_page_parts(record.key)[1], found.ledgers)


def join(segment: str, head: LedgerRecord, pages: Iterable[ListPage]) -> LedgerRecord:
    """Join head and pages, read at one revision, into the whole list. Raises `DataCorrupt` if they do not fit:
    ▲ a list with a gap would be served as if the missing ledgers had never existed."""
    older = [info for page in pages for info in page.ledgers]
    if not older and not head.paged:
        return head
    ids = [info.ledger_id for info in (*older, *head.ledgers)]
    if len(older) != head.paged or any(one >= two for one, two in pairwise(ids)):
        raise DataCorrupt(
            f"the ledger list of {segment}: its head says that {head.paged} ledgers are in pages, found {len(older)} "
            f"there, rising to the head's: {ids == sorted(ids)}"
        )
    return msgspec.structs.replace(head, v=1, ledgers=[*older, *head.ledgers], paged=0, paged_bytes=0)
