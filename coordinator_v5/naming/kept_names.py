"""Lists and deletes the names of transactions. Source: DESIGN §10.

A name of a decided transaction may be deleted, whether its header is collected or not. A client that begins the
name afterwards does the work again, so delete only names that no client will use again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

import structlog
from msgspec.structs import replace

from coordinator_v5.queries import UnreadableRecord
from txnstore import keys, records
from txnstore.access.paging import in_pages, in_parts
from txnstore.records import OPEN, Header, NameCounts, TxnName
from txnstore.store import Commit, KeyValue, MetadataStore, Put, unchanged_since
from txnstore.writes.name_transitions import KEEP_MS, Expired, Keep, NameDeletion, plan_delete_name
from txnwire.errors import DataCorrupt, TxnError
from txnwire.ids import TxnId
from txnwire.names import namespace_of, validate_txn_name
from txnwire.tasks import all_of

PAGE: Final = 1_000
AT_ONCE: Final = 100
"""Names deleted between two yields."""
DELETED_AT_ONCE: Final = 2_000
READ_AT_ONCE: Final = 10_000
"""Limits of one request, which returns where to continue: it finishes well within a client's timeout."""
LOOKS: Final = 3

log = structlog.get_logger(__name__)


class KeptName(NamedTuple):
    """`state`: OPEN, COMMITTED or ABORTED. `ended_ms`: epoch ms, of a collected one the time of its collection; 0 while
    it is open. `collected`: its header is gone. `keep`: as its begin asked, `ms` resolved."""

    name: str
    txn_id: TxnId
    state: str
    ended_ms: int
    collected: bool
    keep: Keep
    note: str | None


class Deleted(NamedTuple):
    """The result of one request, in numbers of names. `kept`: each is the newest commit of its prefix. `changed`:
    another process changed them meanwhile, or they are unclear. `after`: continue behind it; None: nothing is left."""

    deleted: int = 0
    open: int = 0
    kept: int = 0
    changed: int = 0
    after: str | None = None


class _Found(NamedTuple):
    record: KeyValue
    named: TxnName
    header: Header | None

    @property
    def state(self) -> str | None:
        """None: neither record nor header says; it was collected between two reads, or a record was deleted by hand."""
        if self.named.outcome is not None:
            return self.named.outcome
        return None if self.header is None else self.header.state


async def list_names(
    store: MetadataStore,
    *,
    prefix: str = "",
    namespace: str | None = None,
    limit: int = 1000,
    unreadable: list[UnreadableRecord] | None = None,
) -> list[KeptName]:
    """Names that start with `prefix`, of one `namespace` or all, in the order of their keys. With `unreadable`, records
    that cannot be read are added to it, and raise nothing."""
    within = f"{namespace}/" if namespace else ""
    if within and not prefix.startswith(within):
        if not within.startswith(prefix):
            return []
        prefix = within
    found: list[KeptName] = []
    async with aclosing(_walk(store, keys.txn_name(prefix), b"", unreadable)) as walk:
        async for page in walk:
            for one in page:
                name = keys.txn_name_text(one.record.key)
                if namespace is None or namespace_of(name) == namespace:
                    found.append(_kept(name, one))
            if len(found) >= limit:
                break
    return found[:limit]


async def delete_name(store: MetadataStore, name: str) -> Deleted:
    """Deletes one name. Raises `InvalidArgument`, `DataCorrupt`."""
    validate_txn_name(name)
    for _ in range(LOOKS):
        record = await store.get(keys.txn_name(name))
        if record is None:
            return Deleted()
        (one,) = await _with_headers(store, [record], None)
        if one.state == OPEN:
            return Deleted(open=1)
        if one.state is None:
            continue
        if one.named.keep_newest and not await _has_newer(store, one):
            return Deleted(kept=1)
        commit = plan_delete_name(Expired(record.key, record.mod_revision))
        if (await store.commit(commit)).succeeded:
            await _make_room(store, [record.key])
            return Deleted(deleted=1)
    return Deleted(changed=1)


async def delete_names(store: MetadataStore, prefix: str, *, after: str | None = None) -> Deleted:
    """Deletes names that start with `prefix`, behind `after`; stops after some thousands. Among the names it reads,
    the newest commit of a prefix stays if its begin asked for that; a second pass deletes what one request spared."""
    done, read, deletion = Deleted(), 0, NameDeletion()
    unreadable: list[UnreadableRecord] = []
    behind = b"" if after is None else keys.txn_name(after) + b"\0"
    async with aclosing(_walk(store, keys.txn_name(prefix), behind, unreadable)) as walk:
        async for page in walk:
            going: list[Expired] = []
            for one in page:
                if one.state is None or one.state == OPEN:
                    done = done._replace(open=done.open + (one.state == OPEN), changed=done.changed + (not one.state))
                    continue
                passed = deletion.saw_ended(one.record, one.state)
                done = done._replace(kept=done.kept + 1)
                if passed is not None:
                    going.append(passed)
            gone = len(await _delete(store, going))
            done = done._replace(
                deleted=done.deleted + gone,
                kept=done.kept - len(going),
                changed=done.changed + len(going) - gone,
            )
            read += len(page)
            full = bool(page) and (done.deleted >= DELETED_AT_ONCE or read >= READ_AT_ONCE)
            if full:  # what is unreadable behind the last name comes again with the next request
                last = page[-1].record.key.decode(errors="replace")
                unreadable[:] = [one for one in unreadable if one.key < last]
            done, unreadable[:] = done._replace(changed=done.changed + len(unreadable)), ()
            if full:
                return done._replace(after=keys.txn_name_text(page[-1].record.key))
    return done


async def _delete(store: MetadataStore, going: Sequence[Expired]) -> list[bytes]:
    """Returns the keys that are gone."""
    gone: list[bytes] = []
    for part in in_parts(going, AT_ONCE):
        results = await all_of(store.commit(plan_delete_name(each)) for each in part)
        gone += (each.key for each, result in zip(part, results, strict=True) if result.succeeded)
    if gone:
        await _make_room(store, gone)
    return gone


async def _make_room(store: MetadataStore, gone: Sequence[bytes]) -> None:
    """Subtracts deleted names from the last count, so that new names may begin before the next count. ▲ Never raises:
    the names are gone. If the sweeper changes the record first, or etcd is full, the sweeper's next count corrects it.
    """
    try:
        await _subtract(store, gone)
    except DataCorrupt as error:
        log.error("name_counts_unreadable", error=str(error))
    except TxnError as error:
        log.warning("names_not_subtracted", error=str(error))


async def _subtract(store: MetadataStore, gone: Sequence[bytes]) -> None:
    found = await store.get(keys.TXN_NAME_COUNTS)
    if found is None:
        return
    counts = records.decode(NameCounts, found.value, key=found.key)
    left = dict(counts.namespaces)
    for key in gone:
        namespace = namespace_of(keys.txn_name_text(key))
        if left.get(namespace):
            left[namespace] -= 1
    put = Put(found.key, records.encode(replace(counts, namespaces=left)))
    await store.commit(Commit(compares=(unchanged_since(found.key, found.mod_revision),), puts=(put,)))


async def _has_newer(store: MetadataStore, one: _Found) -> bool:
    """Whether `one`, which asked to be kept as the newest commit of its prefix, may go because another one is newer."""
    deletion, directory = NameDeletion(), one.record.key[: one.record.key.rindex(b"/") + 1]
    async with aclosing(_walk(store, directory, b"", [])) as walk:
        async for page in walk:
            for each in page:
                if each.state is None or each.state == OPEN:
                    continue
                passed = deletion.saw_ended(each.record, each.state)
                if passed is not None and passed.key == one.record.key:
                    return True
    return False


async def _walk(
    store: MetadataStore, prefix: bytes, behind: bytes, unreadable: list[UnreadableRecord] | None
) -> AsyncGenerator[list[_Found], None]:
    start = max(prefix, behind)
    async for page in in_pages(store, start, keys.prefix_end(prefix), at_once=PAGE):
        yield await _with_headers(store, page, unreadable)


async def _with_headers(
    store: MetadataStore, page: Sequence[KeyValue], unreadable: list[UnreadableRecord] | None
) -> list[_Found]:
    """▲ The record is read before the header, as everywhere: collection moves the outcome from the second to the
    first."""
    decoded: list[tuple[KeyValue, TxnName, bytes]] = []
    for record in page:
        try:
            named = records.decode(TxnName, record.value, key=record.key)
            decoded.append((record, named, keys.txn(TxnId.parse(named.txn_id))))
        except TxnError as error:
            _tell(unreadable, record.key, error)
    wanted = list(dict.fromkeys(header for _, named, header in decoded if named.outcome is None))
    found = (await store.get_many(wanted))[1] if wanted else []
    headers: dict[bytes, Header] = {}
    for header in found:
        if header is None:
            continue
        try:
            headers[header.key] = records.decode(Header, header.value, key=header.key)
        except TxnError as error:
            _tell(unreadable, header.key, error)
    return [_Found(record, named, headers.get(header)) for record, named, header in decoded]


def _tell(unreadable: list[UnreadableRecord] | None, key: bytes, error: TxnError) -> None:
    """▲ A foreign or damaged record must not hide all others."""
    if unreadable is None:
        raise error
    unreadable.append(UnreadableRecord(key.decode(errors="replace"), str(error)))


def _kept(name: str, one: _Found) -> KeptName:
    named, header = one.named, one.header
    collected = named.outcome is not None
    ended_ms = named.collected_ms if collected else 0 if header is None else header.finalized_ms
    return KeptName(
        name,
        TxnId.parse(named.txn_id),
        one.state or "UNKNOWN",
        ended_ms,
        collected,
        Keep(named.keep_ms or KEEP_MS, named.keep_newest),
        named.note if collected else None if header is None else header.note,
    )
