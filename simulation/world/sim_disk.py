"""Disks of simulated hosts: files with their durable parts, and disk faults.

Power fails (`power_failure`); syncs take time, fail, stall; there is no room; reads take time, fail, or tell one bit
wrong; a bit on the disk flips (`damage`) until it is put right again from a copy (`repair`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from segments.ledger import ledger_format
from segments.ledger.ledger import LedgerFailed, LedgerUnreadable
from simulation.world.trace import Trace

Key = tuple[str, int]
Part = Literal["data", "footer", "sidecar"]

IO_ERROR = "input/output error"
NO_SPACE = "no space left on device"
GONE = "the data folder is missing"


@dataclass(frozen=True, slots=True)
class DiskFaults:
    """Shares of syncs and of reads. Slow syncs take up to `slow_s`; failing ones kill their ledger. `stalled`: no sync
    ends while it lasts. `full`: no writes, only reads. `gone`: the folder is missing, only open files work."""

    sync_s: tuple[float, float] = (0.0, 0.0)
    slow_s: tuple[float, float] = (0.1, 2.0)
    slow_share: float = 0.0
    failing_share: float = 0.0
    unrecorded_share: float = 0.0
    """Share of failed syncs after which the disk does not record either where the ledger ends."""
    stalled: bool = False
    full: bool = False
    gone: bool = False
    read_s: tuple[float, float] = (0.0, 0.0)
    read_failing_share: float = 0.0
    flip_share: float = 0.0
    """Share of reads with one wrong bit, which is right again the next time."""


@dataclass(slots=True)
class SimFile:
    """`data` is what the kernel has, `durable` how much of it is on the disk; `bound`: entries once counted. `dropped`:
    a sync has failed from there on: the kernel still returns what it has, and never writes it again."""

    data: bytearray = field(default_factory=bytearray)
    durable: int = 0
    dropped: int | None = None
    fenced: bool = False
    bound: int | None = None
    created: bool = False
    deleted: bool = False
    footer: bytes | None = None
    sidecar: bytes | None = None

    @property
    def present(self) -> bool:
        """Whether it holds anything but a fence."""
        return self.created or self.footer is not None or self.sidecar is not None


@dataclass(frozen=True, slots=True, eq=False)
class Damage:
    """A bit that has flipped on the disk, until it is repaired."""

    file: SimFile
    part: Part
    offset: int
    good: int
    bad: int


class SimDisk:
    """One host's files and disk faults. `faults` are its usual ones; `inject` adds to them for a while."""

    def __init__(
        self,
        seed: int | str,
        *,
        faults: DiskFaults | None = None,
        trace: Trace | None = None,
        forgives_untold_ends: bool = False,
    ) -> None:
        """`forgives_untold_ends`: if an owner is gone before this disk or etcd has recorded where its ledger ends, the
        kernel's data reaches the disk after all (docs/limits.md, *Repairs*, describes what else may happen)."""
        self.random = random.Random(f"{seed}/disk")
        self._forgives_untold_ends = forgives_untold_ends
        self.faults = faults or DiskFaults()
        self.files: dict[Key, SimFile] = {}
        self.trace = trace or Trace()
        self.mark: str | None = None
        self.witnesses: list[Callable[[str, str], None]] = []
        """Called with what was just done ("sync", "footer", "sidecar", "create") to a ledger of which segment."""
        self.did: dict[str, int] = dict.fromkeys(("refused", "failed", "torn"), 0)
        """Entries of a former owner refused by their fence; failed syncs; files torn by a power failure."""
        self.flips = 0
        """Bits wrong so far, on the disk or in one read."""
        self.unreadable: dict[str, None] = {}
        """Files that could not be read at some time, by name."""
        self._troubles: dict[int, DiskFaults] = {}
        self._next_trouble = 0
        self._moving = asyncio.Event()
        self._moving.set()
        self._damaged: dict[Damage, None] = {}

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def tell(self, what: str, segment: str) -> None:
        for witness in self.witnesses:
            witness(what, segment)

    # --- faults ---

    def inject(self, faults: DiskFaults) -> Callable[[], None]:
        """Adds these faults, until the returned call."""
        number, self._next_trouble = self._next_trouble, self._next_trouble + 1
        self._troubles[number] = faults
        self._look_whether_stalled()

        def end() -> None:
            self._troubles.pop(number, None)
            self._look_whether_stalled()

        return end

    def heal(self) -> None:
        """Ends all faults, and repairs every flipped bit."""
        self._troubles.clear()
        self._look_whether_stalled()
        for damage in list(self._damaged):
            self.repair(damage)

    def power_failure(self) -> None:
        """Everything not synced is lost, torn, or there after all, sector by sector."""
        for key, file in self.files.items():
            self._tear(file)
            self.trace.record(0.0, "power", *key, len(file.data))

    def _tear(self, file: SimFile) -> None:
        if file.dropped is not None:
            del file.data[file.dropped :]
            file.dropped = None
        suffix = bytes(file.data[file.durable :])
        if not suffix:
            return
        self.did["torn"] += 1
        match self.random.randrange(3):
            case 0:
                del file.data[file.durable :]
            case 1:
                del file.data[file.durable + self.random.randrange(len(suffix)) :]
            case _:
                self._lose_sectors(file)
        file.durable = len(file.data)

    def _lose_sectors(self, file: SimFile) -> None:
        sector = ledger_format.SECTOR_BYTES
        for start in range(file.durable // sector * sector, len(file.data), sector):
            if self.random.random() < 0.5:
                begin, end = max(start, file.durable), min(start + sector, len(file.data))
                file.data[begin:end] = bytes(end - begin)

    def damage(self, key: Key, part: Part, chance: random.Random) -> Damage | None:
        """Flips a bit on the disk for good: in the durable part of a ledger, or anywhere in a small file. None if there
        is none."""
        file = self.files[key]
        content = file.data[: file.durable] if part == "data" else getattr(file, part)
        if not content:
            return None
        offset = chance.randrange(len(content))
        good = content[offset]
        damage = Damage(file, part, offset, good, good ^ 1 << chance.randrange(8))
        if any((other.file, other.part, other.offset) == (file, part, offset) for other in self._damaged):
            return None
        self._set_byte(damage, damage.bad)
        self._damaged[damage] = None
        self.flips += 1
        return damage

    def repair(self, damage: Damage) -> None:
        """▲ Leaves later writes alone: a small file may have been replaced."""
        if self._damaged.pop(damage, damage) is None:
            content = damage.file.data if damage.part == "data" else getattr(damage.file, damage.part)
            if content is not None and damage.offset < len(content) and content[damage.offset] == damage.bad:
                self._set_byte(damage, damage.good)

    def _set_byte(self, damage: Damage, value: int) -> None:
        if damage.part == "data":
            damage.file.data[damage.offset] = value
            return
        content = bytearray(getattr(damage.file, damage.part))
        content[damage.offset] = value
        setattr(damage.file, damage.part, bytes(content))

    def entries(self) -> Iterator[tuple[str, bytes]]:
        """(segment, entry) of every whole entry in the ledgers, for checkers."""
        for (segment, ledger_id), file in self.files.items():
            if file.created:
                read_at, where = self.reader(file), f"{segment}/{ledger_id}.ledger"
                opened = ledger_format.decode_header(read_at, where)
                found = ledger_format.scan(read_at, len(file.data), opened, where, bound=file.bound)
                if not found.entries:
                    continue
                for _, entry in ledger_format.read_entries(
                    read_at, opened.marker, found.index.floor(0), 0, found.entries - 1,
                    max_bytes=len(file.data), where=where,
                ):  # fmt: skip
                    yield segment, entry

    def counted_by_another(self, file: SimFile) -> None:
        """A process that cannot know where it ends counts what it holds."""
        if self._forgives_untold_ends and file.bound is None:
            file.dropped = None

    def forget_unwritten(self, file: SimFile) -> None:
        """A sync of it has failed, and the kernel drops what it could not write."""
        self._lose_sectors(file)

    def sync_to(self, file: SimFile, end: int) -> None:
        """A sync of it has succeeded, as the kernel reports."""
        file.durable = max(file.durable, end if file.dropped is None else min(end, file.dropped))

    def _all_faults(self) -> Iterator[DiskFaults]:
        yield self.faults
        yield from self._troubles.values()

    def _look_whether_stalled(self) -> None:
        if any(faults.stalled for faults in self._all_faults()):
            self._moving.clear()
        else:
            self._moving.set()

    # --- used by the ledger stores ---

    @property
    def gone(self) -> bool:
        return any(faults.gone for faults in self._all_faults())

    def expect_here(self, what: str) -> None:
        """Raises `LedgerFailed`."""
        if self.gone:
            raise LedgerFailed(f"{what}: {GONE}")

    def takes_the_end(self) -> bool:
        """Whether it records, after a failed sync, where the ledger ends."""
        fails = [self.random.random() < faults.unrecorded_share for faults in self._all_faults()]
        return not any(fails)

    @property
    def is_full(self) -> bool:
        return any(faults.full for faults in self._all_faults())

    async def sync_pause(self) -> str | None:
        """Waits as long as a sync takes; returns why it failed, if it did."""
        pause_s = 0.0
        for faults in list(self._all_faults()):
            slow = self.random.random() < faults.slow_share
            pause_s = max(pause_s, self.random.uniform(*(faults.slow_s if slow else faults.sync_s)))
        await asyncio.sleep(pause_s)
        await self._moving.wait()
        if self.is_full:
            return NO_SPACE
        fails = [self.random.random() < faults.failing_share for faults in self._all_faults()]
        return IO_ERROR if any(fails) else None

    async def put_in_place(self, what: str, put: Callable[[], None]) -> None:
        """Puts a whole file under its name, or replaces one. Raises `LedgerFailed`; the file may exist then, or if its
        writer dies waiting: it has its name before its folder is synced."""
        self.expect_here(what)
        early = self.random.random() < 0.5 and not self.is_full
        if early:
            put()
        failed = await self.sync_pause()
        if failed is not None:
            raise LedgerFailed(f"{what}: {failed}")
        self.expect_here(what)
        if not early:
            put()

    async def read_pause(self, what: str, *, by_name: bool = False) -> None:
        """Waits as long as a read takes, of an open file or one looked up `by_name`. Raises `LedgerUnreadable`."""
        pause_s = max(self.random.uniform(*faults.read_s) for faults in list(self._all_faults()))
        await asyncio.sleep(pause_s)
        fails = [self.random.random() < faults.read_failing_share for faults in self._all_faults()]
        if any(fails) or (by_name and self.gone):
            self.unreadable[what] = None
            raise LedgerUnreadable(f"reading {what}: {IO_ERROR if any(fails) else GONE}")

    def reader(self, file: SimFile) -> ledger_format.ReadAt:
        return lambda offset, length: self.as_read(bytes(file.data[offset : offset + length]))

    def as_read(self, content: bytes) -> bytes:
        if not self._troubles or not content:
            return content
        flips = [self.random.random() < faults.flip_share for faults in self._troubles.values()]
        if not any(flips):
            return content
        self.flips += 1
        wrong = bytearray(content)
        wrong[self.random.randrange(len(wrong))] ^= 1 << self.random.randrange(8)
        return bytes(wrong)
