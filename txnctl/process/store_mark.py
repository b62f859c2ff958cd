"""The mark in a data folder: its etcd's identity, and a revision that etcd had reached (E8).

An etcd whose own files were put back (a copy of its data folder, a disk's snapshot) cannot tell, because log and
revision have gone back alike (`txnstore.access.lineage`). The mark in the data folder tells it, to within `EVERY_S`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

import msgspec
import structlog

from segments.ledger.ledger_files import make_directories, replace_file
from txnstore import keys
from txnstore.access.lineage import HOW_TO_REPAIR, StoreUnfit
from txnstore.access.store_client import StoreClient
from txnstore.records import Incarnation, decode, encode
from txnstore.store import Commit, Put, unchanged_since
from txnwire.errors import DataCorrupt, TxnError

FILE: Final = "store-mark"
EVERY_S: Final = 10.0

log = structlog.get_logger()


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """`incarnation`: the etcd's; `revision`: reached when this was written. The rest is unknown to a backup older than
    the last repair: `former` identities, `generation` (number of repairs), `segment_floor` (above all ids of segments
    that were set aside)."""

    v: int = 1
    incarnation: str
    revision: int
    former: list[str] = []
    generation: int = 0
    segment_floor: int = 0

    def knows(self, store: Incarnation) -> bool:
        """Whether the ledgers beside it belong to that store as it is, was, or will be after its next repair."""
        return self.incarnation in (store.id, *store.former) or store.id in self.former


class StoreMark:
    """`<data folder>/store-mark`. Every process of this folder writes what it knows; after two writes at once the lower
    revision may stand until the next round."""

    def __init__(self, data_dir: Path) -> None:
        self.folder = data_dir
        self._path = data_dir / FILE

    def read(self) -> Mark | None:
        """Raises `DataCorrupt`."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            mark = msgspec.json.decode(data, type=Mark)
        except msgspec.DecodeError as error:
            raise DataCorrupt(f"{self._path}: not a store mark of version 1: {error}") from error
        if mark.v != 1:
            raise DataCorrupt(f"{self._path}: store mark version {mark.v}; this program reads 1")
        return mark

    def judge(self, store: Incarnation, revision: int) -> None:
        """`revision`: the store's current one. Raises `StoreUnfit`, `DataCorrupt`."""
        mark = self.read()
        if mark is None:
            return
        if mark.incarnation != store.id:
            told = "as it was before a repair, or is after one without this folder" if mark.knows(store) else "another"
            raise StoreUnfit(
                f"{self._path} says that the ledgers here belong to etcd store {mark.incarnation}, and etcd is "
                f"{store.id} ({told}): use the right one; or, if it was restored: {HOW_TO_REPAIR}"
            )
        if revision < mark.revision:
            raise StoreUnfit(
                f"etcd is at revision {revision} but had reached {mark.revision} ({self._path}): it was restored from "
                f"a copy, which lacks later writes: {HOW_TO_REPAIR}"
            )

    async def check(self, store: StoreClient) -> tuple[Incarnation, int]:
        """Runs before this folder is served; returns the store's identity and revision, for `write`. Raises as `judge`,
        `StoreUnavailable`.

        ▲ Marks an etcd that has gone back in that etcd: processes without a folder would not notice."""
        identity = await store.identity()
        revision, (record,) = await store.get_many([keys.INCARNATION])
        try:
            self.judge(identity, revision)
        except StoreUnfit as error:
            mark = self.read()
            if record is not None and mark is not None and mark.knows(identity):
                unfit = msgspec.structs.replace(identity, repair=str(error))
                same = unchanged_since(keys.INCARNATION, record.mod_revision)
                await store.commit(Commit((same,), (Put(keys.INCARNATION, encode(unfit)),)))
            raise
        return identity, revision

    def write(self, store: Incarnation, revision: int, *, segment_floor: int = 0, again: bool = False) -> None:
        """Durable before it returns: a small file, seldom written. `again`: a mark existed; raises `FileNotFoundError`
        if it is gone: ▲ then its folder is gone, and servers would take a new folder in its place for it.

        ▲ Raises `StoreUnfit` if the caller predates a repair: its mark in place of the repair's would make every
        process refuse the repaired store, and lose the number of repairs. Also if the mark belongs to another
        cluster, because its disk was mounted here: that cluster would refuse its own ledgers, and this one would take
        them.
        """
        before = self.read()
        if before is None and again:
            raise FileNotFoundError(f"{self._path} is not there any more: is the disk of its folder mounted?")
        if before is not None and store.id in before.former:
            raise StoreUnfit(f"{self._path}: etcd store {store.id} was repaired and is {before.incarnation} by now")
        if before is not None and not before.knows(store):
            raise StoreUnfit(
                f"{self._path} belongs to another etcd store, {before.incarnation}; this process works with {store.id}"
            )
        if before is not None and before.incarnation == store.id:
            revision = max(revision, before.revision)
        mark = Mark(
            incarnation=store.id,
            revision=revision,
            former=store.former,
            generation=store.generation,
            segment_floor=max(segment_floor, 0 if before is None else before.segment_floor),
        )
        if mark != before:
            make_directories(self._path.parent)
            replace_file(self._path, msgspec.json.encode(mark) + b"\n")

    async def keep(self, store: StoreClient) -> None:
        """Raises the mark every `EVERY_S`, until cancelled. On a failing disk every ledger write reports the error."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                identity = await store.identity()
                await asyncio.to_thread(self.write, identity, store.statistics().revision, again=True)
            except (TxnError, OSError) as error:
                log.warning("store mark not written", path=str(self._path), error=str(error))


async def follow_identity(store: StoreClient) -> StoreUnfit:
    """Returns once the store was marked as unfit, or repaired: a process that runs on must end."""
    known = await store.identity()
    while True:
        await asyncio.sleep(EVERY_S)
        try:
            found = await store.get(keys.INCARNATION)
        except StoreUnfit as error:
            return error
        except TxnError as error:
            log.debug("identity of the store not read", error=str(error))
            continue
        now = None if found is None else decode(Incarnation, found.value, key=keys.INCARNATION)
        if now is None or now.id != known.id or now.repair:
            why = "it has no identity any more" if now is None else now.repair or f"it is store {now.id} by now"
            return StoreUnfit(f"etcd was store {known.id}, and {why}")
