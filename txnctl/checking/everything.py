"""The whole check: etcd at one revision, then every closed ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from segments.file_ledger import FileLedgerStore
from txnctl.checking.invariants import broken_invariants
from txnctl.checking.ledgers import Now, broken_ledgers
from txnctl.checking.picture import take_picture
from txnctl.checking.repair import Finding, Repair
from txnctl.serve import etcd_settings
from txnctl.settings import ServerSettings
from txnctl.store_mark import StoreMark
from txnstore import keys
from txnstore.etcd_store import EtcdStore
from txnstore.lineage import StoreUnfit
from txnstore.records import Incarnation, decode
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import InvalidArgument


class Checked(NamedTuple):
    """`revision` of the picture; `findings`: (rule, what is wrong) of everything broken; `repaired`: what a repair has
    found and done, empty where there was nothing to repair."""

    revision: int
    findings: list[Finding]
    repaired: list[Finding]


async def check_everything(
    settings: ServerSettings, on_progress: Callable[[str], None], *, repair: bool = False
) -> Checked:
    """Read it all, after repairing an etcd that was restored from a backup where `repair` says so.

    The data folder may be that of `txnctl dev`, which has the ledgers in a folder of its own. Raises `InvalidArgument`
    for one that is none: nothing found there would look like nothing broken. `NotAllowed`: for a repair it must be the
    one that this etcd's brokers had."""
    data_dir = settings.data_dir
    if not data_dir.is_dir():
        raise InvalidArgument(f"--data-dir {data_dir}: there is no such folder")
    if (data_dir / "etcd").is_dir() and (data_dir / "data").is_dir():
        data_dir /= "data"
    clock = SystemClock()
    mark = StoreMark(data_dir)
    unfit = await _why_unfit(settings, mark)
    store = await _connect(settings, repairing=unfit is not None)
    ledgers = FileLedgerStore(data_dir)
    repaired: list[Finding] = []
    try:
        if unfit is not None and repair:
            work = Repair(store, ledgers, mark, clock, SystemRandom(), tcids=settings.tcids, on_progress=on_progress)
            repaired, unfit = await work.run(str(unfit)), None
        on_progress("etcd")
        picture = await take_picture(store)
        findings = [] if unfit is None else [("store_is_fit", str(unfit))]
        findings += broken_invariants(picture, now_ms=clock.wall_ms())
        async for finding in broken_ledgers(picture, ledgers, on_progress, now=Now(store)):
            findings.append(finding)
    finally:
        await ledgers.close()
        await store.close()
    return Checked(picture.revision, findings, repaired)


async def _connect(settings: ServerSettings, *, repairing: bool) -> EtcdStore:
    chosen = msgspec.structs.replace(etcd_settings(settings), repairing=repairing)
    return await EtcdStore.connect(chosen, clock=SystemClock(), random=SystemRandom())


async def _why_unfit(settings: ServerSettings, mark: StoreMark) -> StoreUnfit | None:
    try:
        store = await _connect(settings, repairing=False)
        try:
            revision, (record,) = await store.get_many([keys.INCARNATION])
            if record is not None:
                mark.judge(decode(Incarnation, record.value, key=keys.INCARNATION), revision)
        finally:
            await store.close()
    except StoreUnfit as error:
        return error
    return None
