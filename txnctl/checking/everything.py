"""The whole check: etcd at one revision, then every closed ledger."""

from __future__ import annotations

from collections.abc import Callable

from segments.file_ledger import FileLedgerStore
from txnctl.checking.invariants import broken_invariants
from txnctl.checking.ledgers import broken_ledgers, still_listed
from txnctl.checking.picture import take_picture
from txnctl.serve import etcd_settings
from txnctl.settings import ServerSettings
from txnstore.etcd_store import EtcdStore
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import InvalidArgument

Finding = tuple[str, str]


async def check_everything(settings: ServerSettings, on_progress: Callable[[str], None]) -> tuple[int, list[Finding]]:
    """The revision of the picture, and (rule, what is wrong) of everything broken.

    The data folder may be that of `txnctl dev`, which has the ledgers in a folder of its own. Raises `InvalidArgument`
    for one that is none: nothing found there would look like nothing broken."""
    data_dir = settings.data_dir
    if not data_dir.is_dir():
        raise InvalidArgument(f"--data-dir {data_dir}: there is no such folder")
    if (data_dir / "etcd").is_dir() and (data_dir / "data").is_dir():
        data_dir /= "data"
    clock = SystemClock()
    store = await EtcdStore.connect(etcd_settings(settings), clock=clock, random=SystemRandom())
    ledgers = FileLedgerStore(data_dir)
    try:
        on_progress("etcd")
        picture = await take_picture(store)
        findings = broken_invariants(picture, now_ms=clock.wall_ms())
        async for finding in broken_ledgers(picture, ledgers, on_progress, still_listed=still_listed(store)):
            findings.append(finding)
    finally:
        await ledgers.close()
        await store.close()
    return picture.revision, findings
