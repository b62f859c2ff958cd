"""What `FileLedgerStore` has told outlives a power failure at any moment behind that (DESIGN §6, §7; L5)."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import LedgerFailed, LedgerFenced, LedgerWriter, Recovered
from segments.ledger.ledger_files import paths_of
from tests.segments.power_failures import Died, RecordedDisk, Tree, make_tree, tree_of
from txnwire.errors import DataCorrupt

SEGMENT = "public/default/orders/0000-ffff-0"
OTHER = "public/default/bills/0000-ffff-3"
BOUND = 1 << 20
TOLD = "what was told:"
WORST = "nothing unsynced stays"

Ledger = tuple[str, int]
Moment = tuple[str, dict[str, Tree], "Told"]
"""Behind which call, what a power failure leaves then, and what had been told."""


@dataclass
class Told:
    """What a store has answered, and nobody may find otherwise from then on."""

    mark: str | None = None
    acked: dict[Ledger, list[bytes]] = field(default_factory=dict)
    """Of each ledger that was created: entries of which a sync told."""
    counted: dict[Ledger, int] = field(default_factory=dict)
    never_created: set[Ledger] = field(default_factory=set)
    """Fenced before they were there: nobody creates them any more."""
    footers: dict[Ledger, bytes | None] = field(default_factory=dict)
    sidecars: dict[Ledger, bytes | None] = field(default_factory=dict)
    gone: set[Ledger] = field(default_factory=set)
    fenced: set[Ledger] = field(default_factory=set)
    """Whoever had it finds the fence for as long as the ledger is there."""
    erased: set[str] = field(default_factory=set)
    """Segments of which nothing is left."""
    aside: set[str] = field(default_factory=set)

    def forget(self, ledger: Ledger) -> None:
        """It is about to be deleted: from now on it may be there or not."""
        for what in (self.acked, self.counted, self.footers, self.sidecars):
            what.pop(ledger, None)


async def broken(folder: Path, told: Told) -> list[str]:
    """What of it does not hold in this folder, by the code that reads it."""
    found: list[str] = []
    store = FileLedgerStore(folder)

    async def look(what: str, question: Callable[[], Awaitable[object]], wanted: object) -> None:
        try:
            answer = await question()
        except (LedgerFailed, DataCorrupt) as error:
            answer = error
        if answer != wanted:
            found.append(f"{what}: {answer!r}, told was {wanted!r}")

    async def fenced(ledger: Ledger) -> tuple[bool, list[bytes]]:
        recovered = await store.fence(*ledger)
        read = await store.read(*ledger, 0, recovered.entries - 1, max_bytes=BOUND)
        most = told.counted.get(ledger, len(told.acked.get(ledger, ())))
        return recovered.present, [entry for _, entry in read][:most]

    async def count(ledger: Ledger) -> int:
        return (await store.fence(*ledger)).entries

    async def creation(ledger: Ledger) -> str:
        try:
            writer = await store.create(*ledger, incarnation="late")
        except LedgerFenced:
            return "refused"
        writer.abandon()
        return "created"

    async def listed() -> set[Ledger]:
        return set(await store.list()) & told.gone

    async def stands() -> set[str]:
        return {segment for segment, _ in await store.list()} & told.aside

    try:
        await look("deleted ledgers that stand", listed, set())
        await look("segments set aside that stand", stands, set())
        left = {segment for segment in told.erased if paths_of(folder / "ledgers", segment, 0).directory.exists()}
        if left:
            found.append(f"what is left of deleted segments: {left}")
        for ledger in told.fenced:
            paths = paths_of(folder / "ledgers", *ledger)
            if paths.ledger.exists() and not paths.fence.exists():
                found.append(f"{ledger} is there without its fence")
        if told.mark is not None:
            await look("mark", lambda: identity(store), told.mark)
        for ledger, payload in told.footers.items():
            await look(f"footer of {ledger}", lambda of=ledger: store.read_footer(*of), payload)
        for ledger, payload in told.sidecars.items():
            await look(f"sidecar of {ledger}", lambda of=ledger: store.read_sidecar(*of), payload)
        for ledger, entries in told.acked.items():
            await look(f"entries of {ledger}", lambda of=ledger: fenced(of), (True, entries))
        for ledger, entries in told.counted.items():
            await look(f"count of {ledger}", lambda of=ledger: count(of), entries)
        for ledger in sorted(told.never_created):
            await look(f"late creation of {ledger}", lambda of=ledger: creation(of), "refused")
    finally:
        await store.close()
    return found


async def identity(store: FileLedgerStore) -> str | None:
    return (await store.identity(None)).id


class Scene:
    """Owners and successors at work in a folder whose power may fail at any moment."""

    def __init__(self, folder: Path, judged: dict[str, list[str]] | None = None) -> None:
        """`judged`: folders that were looked at already, shared by scenes that have much in common."""
        self.folder = folder
        self.disk = RecordedDisk(folder)
        self.told = Told()
        self.moments: list[Moment] = []
        self.disk.happened = self._happened
        self.stores: list[FileLedgerStore] = []
        self._judged = {} if judged is None else judged

    def _happened(self, call: str) -> None:
        self.moments.append((call, self.disk.outcomes(), deepcopy(self.told)))

    def tell(self, what: str) -> None:
        self._happened(f"{TOLD} {what}")

    def open(self) -> FileLedgerStore:
        """What another process would have open."""
        self.stores.append(FileLedgerStore(self.folder, threads=1))
        return self.stores[-1]

    async def close(self) -> None:
        for store in self.stores:
            await store.close()
        self.disk.close_files()

    # ---- what a store is asked for ----------------------------------------------------------------------------------

    async def mark(self, store: FileLedgerStore, mark: str) -> None:
        self.told.mark = (await store.identity(mark)).id
        self.tell("the mark")

    async def create(self, store: FileLedgerStore, ledger: Ledger) -> LedgerWriter:
        writer = await store.create(*ledger, incarnation="one")
        self.told.acked[ledger] = []
        self.tell(f"the creation of {ledger}")
        return writer

    async def append(self, writer: LedgerWriter, ledger: Ledger, *entries: bytes) -> None:
        for entry in entries:
            writer.append(entry)
        await writer.sync()
        self.told.acked[ledger] += entries
        self.tell(f"entries of {ledger}")

    async def end(self, writer: LedgerWriter, ledger: Ledger, footer: bytes) -> None:
        await writer.close(footer)
        self.told.footers[ledger] = footer
        self.tell(f"the end of {ledger}")

    async def fence(self, store: FileLedgerStore, ledger: Ledger) -> Recovered:
        found = await store.fence(*ledger)
        self.told.fenced.add(ledger)
        if found.present:
            read = await store.read(*ledger, 0, found.entries - 1, max_bytes=BOUND)
            self.told.acked[ledger] = [entry for _, entry in read]
            self.told.counted[ledger] = found.entries
        else:
            self.told.never_created.add(ledger)
        self.tell(f"the fence of {ledger}")
        return found

    async def footer(self, store: FileLedgerStore, ledger: Ledger, footer: bytes) -> None:
        self.told.footers.pop(ledger, None)  # until then it is the old one or the new one
        await store.write_footer(*ledger, footer)
        self.told.footers[ledger] = footer
        self.tell(f"the footer of {ledger}")

    async def sidecar(self, store: FileLedgerStore, ledger: Ledger, sidecar: bytes) -> None:
        self.told.sidecars[ledger] = await store.write_sidecar(*ledger, sidecar)
        self.tell(f"the sidecar of {ledger}")

    async def delete(self, store: FileLedgerStore, ledger: Ledger) -> None:
        self.told.forget(ledger)
        await store.delete(*ledger)
        self.told.gone.add(ledger)
        self.tell(f"the deletion of {ledger}")

    async def delete_segment(self, store: FileLedgerStore, segment: str, *ledgers: Ledger) -> None:
        for ledger in ledgers:
            self.told.forget(ledger)
        await store.delete_segment(segment)
        self.told.gone.update(ledgers)
        self.told.erased.add(segment)
        self.tell(f"the deletion of {segment}")

    # ---- the judgement ----------------------------------------------------------------------------------------------

    async def findings(self, scratch: Path, moments: Iterable[Moment] | None = None) -> list[str]:
        """Power fails at each of these moments, or all."""
        found: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            for name in ("fsync", "fdatasync"):
                patch.setattr(os, name, lambda _: None)  # the judge's folders are for nobody
            for call, outcomes, told in self.moments if moments is None else moments:
                for outcome, tree in outcomes.items():
                    for text in await self._broken(tree, told, scratch):
                        found.append(f"power fails behind {call}, {outcome}: {text}")
        return found

    async def _broken(self, tree: Tree, told: Told, scratch: Path) -> list[str]:
        known = repr((sorted(tree.items()), told))
        if known not in self._judged:
            folder = scratch / str(len(self._judged))
            make_tree(folder, tree)
            self._judged[known] = await broken(folder, told)
        return self._judged[known]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    folder = tmp_path / "data"
    folder.mkdir()
    return Scene(folder)


FIRST, SECOND, NEVER, FOREIGN = (SEGMENT, 0), (SEGMENT, 1), (SEGMENT, 2), (OTHER, 0)


async def owner_at_work(scene: Scene) -> None:
    """It writes its mark, fills a ledger, rolls, and keeps what it needs beside them."""
    owner = scene.open()
    await scene.mark(owner, "m1")
    writer = await scene.create(owner, FIRST)
    await scene.append(writer, FIRST, b"a", b"b")
    await scene.append(writer, FIRST, b"c" * 300)
    await scene.end(writer, FIRST, b"footer of the first")
    writer = await scene.create(owner, SECOND)
    await scene.footer(owner, SECOND, b"checkpoint beside the open one")
    await scene.append(writer, SECOND, b"d")
    await scene.sidecar(owner, FIRST, b"aborted in the first")
    await scene.append(writer, SECOND, b"e", b"f")


async def successor_at_work(scene: Scene) -> None:
    """It fences what there is and what may come, repeats what its predecessor may have done, and trims."""
    store = scene.open()
    await scene.mark(store, "m2")
    for ledger in (FIRST, SECOND, NEVER):
        await scene.fence(store, ledger)
    if SECOND in scene.told.counted:
        await scene.footer(store, SECOND, b"footer of the second")
        await scene.sidecar(store, SECOND, b"aborted in the second")
    if FIRST in scene.told.counted:
        await scene.sidecar(store, FIRST, b"of the first, by the successor")
    writer = await scene.create(store, (SEGMENT, 3))
    await scene.append(writer, (SEGMENT, 3), b"g")
    writer = await scene.create(store, FOREIGN)
    await scene.append(writer, FOREIGN, b"h")
    await scene.delete(store, FIRST)
    await scene.delete_segment(store, OTHER, FOREIGN)


async def test_l5_what_was_told_outlives_a_power_failure_at_any_moment(scene: Scene, tmp_path: Path) -> None:
    with scene.disk.recording():
        await owner_at_work(scene)
        await successor_at_work(scene)
    assert scene.disk.everything() == tree_of(scene.folder)  # no call went past the recorder
    assert await scene.findings(tmp_path / "after") == []
    await scene.close()


async def test_l5_what_a_successor_tells_holds_whatever_its_predecessor_died_at(tmp_path: Path) -> None:
    found: list[str] = []
    judged: dict[str, list[str]] = {}
    number, died = 0, True
    while died:
        number += 1
        folder = tmp_path / f"data-{number}"
        folder.mkdir()
        scene = Scene(folder, judged)
        scene.disk.happened = lambda _: None  # the moments between are the first test's
        with scene.disk.recording():
            died = await dies_at(number, scene)
            behind = len(scene.moments)
            await successor_at_work(scene)
        for call, outcomes, told in scene.moments[behind:]:
            lost = {WORST: outcomes[WORST]}
            found += await scene.findings(tmp_path / "after", [(f"{call}, died at {number}", lost, told)])
        await scene.close()
    assert found == []
    assert number > 50


async def dies_at(number: int, scene: Scene) -> bool:
    """Whether the owner came so far."""
    scene.disk.dies_at = number
    try:
        await owner_at_work(scene)
    except (Died, LedgerFailed):
        return True
    finally:
        scene.disk.dies_at = None
    return False


async def test_l5_the_end_that_a_failed_sync_leaves_outlives_a_power_failure(scene: Scene, tmp_path: Path) -> None:
    with scene.disk.recording():
        owner = scene.open()
        writer = await scene.create(owner, FIRST)
        await scene.append(writer, FIRST, b"a", b"b")
        scene.disk.fails["fdatasync"] = OSError(errno.EIO, "the disk has gone bad")
        writer.append(b"never acked")
        with pytest.raises(LedgerFailed):
            await writer.sync()
        assert await writer.unrecorded_end() is None
        scene.told.counted[FIRST] = 2
        scene.tell("the end of a ledger whose sync has failed")
        await scene.fence(scene.open(), FIRST)
    assert await scene.findings(tmp_path / "after") == []
    await scene.close()


async def test_l5_what_a_repair_has_told_outlives_a_power_failure(scene: Scene, tmp_path: Path) -> None:
    with scene.disk.recording():
        await owner_at_work(scene)
        repair, told = scene.open(), scene.told
        await scene.fence(repair, SECOND)
        told.counted.pop(SECOND)
        told.acked.pop(SECOND)
        await repair.cut(*SECOND, 1)
        told.counted[SECOND], told.acked[SECOND] = 1, [b"d"]
        scene.tell("the cut")
        told.footers.pop(SECOND)
        await repair.discard_footer(*SECOND)
        told.footers[SECOND] = None
        scene.tell("the footer that was discarded")
        told.sidecars.pop(FIRST)
        await repair.discard_sidecar(*FIRST)
        told.sidecars[FIRST] = None
        scene.tell("the sidecar that was discarded")
        for ledger in (FIRST, SECOND):
            told.forget(ledger)
        await repair.set_aside(SEGMENT, "repair-1")
        told.aside.add(SEGMENT)
        scene.tell("what was set aside")
    aside = f"set-aside/repair-1/{SEGMENT}/0.ledger"
    assert all(aside in tree for tree in scene.disk.outcomes().values())
    assert scene.disk.everything() == tree_of(scene.folder)
    assert await scene.findings(tmp_path / "after") == []
    await scene.close()
