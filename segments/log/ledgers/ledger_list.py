"""Reads and rewrites `/ledger/<segment>` and its pages, for the owner of the segment.

Every rewrite compares the head's `mod_revision` and the ownership epoch, so neither a stale owner nor a late old write
can change the list. `segments.log.ledgers.ledger_pages` divides it into pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from segments.log.ledgers.ledger_pages import PAGE_LEDGERS, ListPage, PagedList, cut, join, read_page
from txnstore import keys, records
from txnstore.records import LedgerRecord
from txnstore.store import Commit, CommitVerdict, KeyValue, MetadataStore, Put, Read, created_at, unchanged_since
from txnwire.errors import InternalError, NotOwner


class LedgerList:
    """Holds one segment's list. `record` is the whole list, head and pages; `revision` the mod revision of the head."""

    def __init__(self, store: MetadataStore, segment: str, *, epoch: int, page_ledgers: int = PAGE_LEDGERS) -> None:
        self._store = store
        self._segment = segment
        self._epoch = epoch
        self._page_ledgers = page_ledgers
        self._key = keys.ledger(segment)
        self._owner = keys.owner(segment)
        self._pages: Sequence[ListPage] = ()
        self.record = LedgerRecord(ledgers=[])
        self.revision = 0

    async def load(self) -> None:
        """Raises `NotOwner`, `DataCorrupt`, `StoreUnavailable`."""
        revision, (found, held) = await self._store.get_many([self._key, self._owner])
        if held is None or held.create_revision != self._epoch:
            # ▲ Before any fence: a broker that paused after its claim would fence its successor's ledger.
            raise self._over()
        if found is not None:
            self.record, self._pages = await read_list(self._store, self._segment, found, revision)
            self.revision = found.mod_revision

    async def rewrite(self, record: LedgerRecord) -> None:
        """Raises `NotOwner`, `InternalError`, and as `MetadataStore.commit`."""
        now = self._cut(record)
        self._adopt(record, now, await self._store.commit(self._commit(now)))

    async def rewrite_stored(self, change: Callable[[LedgerRecord], LedgerRecord | None]) -> None:
        """Reload the list, which an abandoned request may have changed, and rewrite it. `change` returns None if
        nothing is left to write. Raises `NotOwner`, and as `MetadataStore.commit`.

        ▲ A refusal under our own epoch means a late write of ours landed: after a reload it is either the intended
        record or the base of the next try. The loop ends when no abandoned requests are left."""
        while True:
            await self.load()
            record = change(self.record)
            if record is None:
                return
            now = self._cut(record)
            result = await self._store.commit(self._commit(now))
            if result.succeeded or not self._owned(result):
                return self._adopt(record, now, result)

    async def rewrite_while(self, record: LedgerRecord, topic: KeyValue) -> bool:
        """Rewrite the list if the topic's record is unchanged since it was read; else returns False and changes
        nothing."""
        now = self._cut(record)
        commit = self._commit(now)
        compares = (*commit.compares, unchanged_since(topic.key, topic.mod_revision))
        result = await self._store.commit(msgspec.structs.replace(commit, compares=compares))
        found = None if result.succeeded else _only(result.reads[0])
        if found is not None and self._owned(result) and found.mod_revision == self.revision:
            return False
        self._adopt(record, now, result)
        return True

    def _cut(self, record: LedgerRecord) -> PagedList:
        return cut(self._segment, record, self._pages, page_ledgers=self._page_ledgers)

    def _commit(self, now: PagedList) -> Commit:
        """▲ Pages change in the same etcd transaction as the head: a ledger in neither would be lost for readers, for
        trimming and for deletion."""
        return Commit(
            compares=(unchanged_since(self._key, self.revision), created_at(self._owner, self._epoch)),
            puts=(Put(self._key, records.encode(now.head)), *now.puts),
            deletes=now.deletes,
            else_reads=(Read(self._key), Read(self._owner)),
        )

    def _adopt(self, record: LedgerRecord, now: PagedList, result: CommitVerdict) -> None:
        self.revision = self._read_verdict(result, records.encode(now.head))
        self.record, self._pages = record, now.pages

    def _read_verdict(self, result: CommitVerdict, value: bytes) -> int:
        if result.succeeded:
            return result.revision
        if not self._owned(result):
            raise self._over()
        found = _only(result.reads[0])
        if result.repeated and found is not None and found.value == value:
            return found.mod_revision
        raise InternalError(
            f"/ledger/{self._segment} was changed by another process under ownership epoch {self._epoch}: expected "
            f"mod revision {self.revision}, found {found.mod_revision if found else 'no record'}"
        )

    def _owned(self, refused: CommitVerdict) -> bool:
        owner = _only(refused.reads[1])
        return owner is not None and owner.create_revision == self._epoch

    def _over(self) -> NotOwner:
        return NotOwner(f"{self._segment}: ownership epoch {self._epoch} is over, look up the owner again")


async def read_list(
    store: MetadataStore, segment: str, head: KeyValue, revision: int
) -> tuple[LedgerRecord, list[ListPage]]:
    """The whole list of `head`, which was read at `revision`, and its pages at that revision. Raises `DataCorrupt`,
    `Compacted`, `StoreUnavailable`."""
    record = records.decode(LedgerRecord, head.value, key=head.key)
    if not record.paged:
        return record, []
    prefix = keys.ledger_pages(segment)
    with store.pin(revision):
        found = await store.range(prefix, keys.prefix_end(prefix), revision=revision)
    pages = [read_page(one) for one in found.records]
    return join(segment, record, pages), pages


def _only(records_read: tuple[KeyValue, ...]) -> KeyValue | None:
    return records_read[0] if records_read else None
