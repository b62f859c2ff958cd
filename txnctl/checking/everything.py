"""The whole check: etcd at one revision, then every closed ledger."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import LedgerStore
from txnctl.checking.invariants import broken_invariants
from txnctl.checking.ledgers import Now, broken_ledgers, missing_entries, missing_sidecars
from txnctl.checking.picture import take_picture
from txnctl.checking.repair import REPORT, Finding, Repair
from txnctl.process.settings import ServerSettings, etcd_settings
from txnctl.process.store_mark import StoreMark
from txnstore import keys
from txnstore.access.lineage import StoreUnfit
from txnstore.etcd.etcd_store import EtcdStore
from txnstore.records import DataFolder, Incarnation, decode
from txnstore.store import MetadataStore
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import InvalidArgument


class Checked(NamedTuple):
    """`revision` of the picture; `findings`: (rule, what is wrong); `repaired`: what a repair has found and done, empty
    if there was nothing to repair; `reports`: the file of all repairs, None if there was never one."""

    revision: int
    findings: list[Finding]
    repaired: list[Finding]
    reports: Path | None = None


async def check_everything(
    settings: ServerSettings, on_progress: Callable[[str], None], *, repair: bool = False
) -> Checked:
    """Checks everything. With `repair`, first repairs an etcd restored from a backup, or a data folder older than etcd.

    Raises `InvalidArgument` if it is no data folder, or etcd holds no cluster there: an empty result would look like a
    good one. Raises `NotAllowed` for a repair with a folder that is not of this etcd's brokers."""
    data_dir = await folder_of_ledgers(settings)
    clock = SystemClock()
    mark = StoreMark(data_dir)
    unfit = await _why_unfit(settings, mark)
    why = None if unfit is None else str(unfit)
    repaired: list[Finding] = []
    async with AsyncExitStack() as opened:
        ledgers = FileLedgerStore(data_dir)
        opened.push_async_callback(ledgers.close)
        await ledgers.identity(None)
        if repair and why is None:
            looking = await connect_etcd(settings, repairing=False)
            try:
                why = await what_is_missing(looking, ledgers, on_progress)
            finally:
                await looking.close()
        store = await connect_etcd(settings, repairing=why is not None)
        opened.push_async_callback(store.close)
        if why is not None and repair:
            work = Repair(store, ledgers, mark, clock, SystemRandom(), tcids=settings.tcids, on_progress=on_progress)
            repaired, unfit = await work.run(why), None
        on_progress("etcd")
        picture = await take_picture(store)
        findings = [] if unfit is None else [("store_is_fit", str(unfit))]
        findings += broken_invariants(picture, now_ms=clock.wall_ms())
        async for finding in broken_ledgers(picture, ledgers, on_progress, now=Now(store)):
            findings.append(finding)
    reports = data_dir / REPORT
    return Checked(picture.revision, findings, repaired, reports if reports.exists() else None)


async def folder_of_ledgers(settings: ServerSettings) -> Path:
    """Finds the data folder of the brokers. `txnctl dev` has it within its own folder, and either may be named. Without
    a name: that of a `dev` in or at the current folder, else the one that the first broker has registered in etcd."""
    named = "data_dir" in settings.model_fields_set
    for folder in [settings.data_dir] if named else [settings.data_dir, Path()]:
        if _is_of_dev(folder):
            return folder / "data"
    if settings.data_dir.is_dir():
        return settings.data_dir
    if not named:
        store = await connect_etcd(settings, repairing=True)
        try:
            found = await store.get(keys.DATA_FOLDER)
        finally:
            await store.close()
        told = None if found is None else Path(decode(DataFolder, found.value, key=found.key).path).parent
        if told is not None and told.is_dir():
            return told
    raise InvalidArgument(f"--data-dir {settings.data_dir}: there is no such folder")


def _is_of_dev(folder: Path) -> bool:
    return (folder / "etcd").is_dir() and (folder / "data").is_dir()


async def what_is_missing(store: MetadataStore, ledgers: LedgerStore, on_progress: Callable[[str], None]) -> str | None:
    """Says in words which parts of a folder are older than etcd, or None. ▲ Ledgers trimmed or deleted meanwhile are
    not missing: a repair for that would stop a working cluster and abort all its open transactions."""
    picture, now = await take_picture(store), Now(store)
    found = [one async for one in missing_entries(picture, ledgers, on_progress, closed=True)]
    short = [one for one in found if await now.is_kept(one.segment, one.ledger_id)]
    if short:
        segments = dict.fromkeys(one.segment for one in short)
        return f"the data folder lacks entries of {len(short)} ledgers in {len(segments)} segments that etcd knows of"
    lost = [one async for one in missing_sidecars(picture, ledgers) if await now.is_kept(*one)]
    return f"the data folder lacks the sidecars of {len(lost)} ledgers that etcd knows of" if lost else None


async def connect_etcd(settings: ServerSettings, *, repairing: bool) -> EtcdStore:
    """`repairing`: also connects to an etcd that must be repaired first. Raises `StoreUnfit` otherwise, and as
    `EtcdStore.connect`."""
    chosen = msgspec.structs.replace(etcd_settings(settings), repairing=repairing)
    return await EtcdStore.connect(chosen, clock=SystemClock(), random=SystemRandom())


async def _why_unfit(settings: ServerSettings, mark: StoreMark) -> StoreUnfit | None:
    try:
        store = await connect_etcd(settings, repairing=False)
        try:
            revision, (record,) = await store.get_many([keys.INCARNATION])
            if record is not None:
                mark.judge(decode(Incarnation, record.value, key=keys.INCARNATION), revision)
            elif mark.read() is not None:
                # ▲ Otherwise it would report every ledger as unknown, or call a cluster sound without a look at it.
                raise InvalidArgument(
                    f"etcd at {settings.etcd} holds no cluster under the prefix {settings.etcd_prefix!r}, and the "
                    f"ledgers in {mark.folder} belong to one: name its etcd by --etcd, its prefix by --etcd-prefix"
                )
        finally:
            await store.close()
    except StoreUnfit as error:
        return error
    return None
