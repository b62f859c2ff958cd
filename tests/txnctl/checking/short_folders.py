"""A data folder whose ledgers are shorter than etcd says, written straight into a store in memory and real files; and
repairs of it, which may be cut off at any step."""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from segments.ledger.file_ledger import FileLedgerStore
from segments.ledger.ledger import Recovered
from segments.ledger.sidecars import decode_sidecar, encode_sidecar
from segments.log.ledgers.dedup_footer import DedupFooter
from segments.log.sends.dedup import Dedup
from txnctl.checking.invariants import broken_invariants
from txnctl.checking.ledgers import broken_ledgers
from txnctl.checking.picture import Picture, take_picture
from txnctl.checking.repair import Finding, Repair
from txnctl.checking.written import AbortedAt
from txnctl.process.store_mark import StoreMark
from txnstore import keys, records
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import OPEN, Header, LedgerInfo, LedgerRecord, Op, TxnSeq
from txnstore.store import Commit, CommitVerdict, Put
from txnwire.clock import SystemClock
from txnwire.entry import OutgoingMessage, encode_entry
from txnwire.ids import Position, TxnId

NOW_MS = 10


class Crash(Exception):
    pass


class Written(NamedTuple):
    """An entry, of a transaction or a plain one."""

    text: str
    txn_id: TxnId | None = None
    writer: int = 0


class Ledger(NamedTuple):
    """`entries`: what it had by etcd; `left`: how many of them its file holds, None for no file. A footer covers all
    that it had. `aborted`: what its sidecar lists."""

    ledger_id: int
    entries: Sequence[Written]
    left: int | None
    open: bool = False
    aborted: dict[TxnId, Position] = {}  # noqa: RUF012
    sidecar: bool = True
    """Whether the file of it is there."""


class Steps:
    """Of one repair: writes to etcd and changes of files. The process dies at number `dies_at`."""

    def __init__(self, dies_at: int = 0) -> None:
        self.done = 0
        self._dies_at = dies_at

    def step(self) -> None:
        self.done += 1
        if self.done == self._dies_at:
            raise Crash(f"at step {self.done}")


class SteppedStore(MemoryStore):
    steps: Steps

    async def commit(self, commit: Commit, *, timeout_s: float = 10.0) -> CommitVerdict:
        self.steps.step()
        return await super().commit(commit, timeout_s=timeout_s)


class SteppedLedgers(FileLedgerStore):
    def __init__(self, root: Path, steps: Steps) -> None:
        super().__init__(root)
        self._steps = steps

    async def fence(self, segment: str, ledger_id: int) -> Recovered:
        self._steps.step()
        return await super().fence(segment, ledger_id)

    async def cut(self, segment: str, ledger_id: int, entries: int) -> None:
        self._steps.step()
        await super().cut(segment, ledger_id, entries)

    async def discard_footer(self, segment: str, ledger_id: int) -> None:
        self._steps.step()
        await super().discard_footer(segment, ledger_id)

    async def discard_sidecar(self, segment: str, ledger_id: int) -> None:
        self._steps.step()
        await super().discard_sidecar(segment, ledger_id)

    async def write_sidecar(self, segment: str, ledger_id: int, sidecar: bytes) -> bytes:
        self._steps.step()
        return await super().write_sidecar(segment, ledger_id, sidecar)


class ShortFolder:
    def __init__(self, etcd: MemoryEtcd, data: Path) -> None:
        self.etcd, self.data = etcd, data
        self.store = MemoryStore(etcd, SystemClock(), random.Random(0))
        self._texts = 0

    async def close(self) -> None:
        await self.store.close()

    # ---- what stands there ------------------------------------------------------------------------------------------

    async def record(self, key: bytes, value: msgspec.Struct) -> None:
        await self.store.commit(Commit(puts=(Put(key, records.encode(value)),)))

    async def segment(self, path: str, *ledgers: Ledger, sealed: tuple[int, int] | None = None) -> None:
        files = FileLedgerStore(self.data)
        infos, made = [], None
        for ledger in ledgers:
            entries = [self._entry(one) for one in ledger.entries]
            closed = None if ledger.open else len(entries)
            aborted = len(ledger.aborted)
            made = ledger.ledger_id if ledger.open else made
            size = sum(map(len, entries))
            infos.append(
                LedgerInfo(
                    ledger_id=ledger.ledger_id, closed_length=closed, bytes=0 if ledger.open else size, aborted=aborted
                )
            )
            if ledger.left is not None:
                await self._file(files, path, ledger, entries)
            if ledger.aborted and ledger.sidecar:
                listed: AbortedAt = {(txn_id, None): position for txn_id, position in ledger.aborted.items()}
                await files.write_sidecar(path, ledger.ledger_id, encode_sidecar(ledger.ledger_id, listed))
        await files.close()
        await self.record(keys.ledger(path), LedgerRecord(ledgers=infos, sealed=sealed, made=made))

    async def _file(self, files: FileLedgerStore, path: str, ledger: Ledger, entries: Sequence[bytes]) -> None:
        identity = await self.store.identity()
        writer = await files.create(path, ledger.ledger_id, incarnation=identity.id)
        for entry in entries[: ledger.left]:
            writer.append(entry)
        await writer.sync()
        covers = DedupFooter(
            ledger_id=ledger.ledger_id, entries=len(entries), dedup=Dedup[object](idle_s=1.0).snapshot(0.0)
        )
        footer = msgspec.msgpack.encode(covers)
        if ledger.open:
            await files.write_footer(path, ledger.ledger_id, footer)
            writer.abandon()
        else:
            await writer.close(footer)

    def _entry(self, one: Written) -> bytes:
        self._texts += 1
        message = OutgoingMessage(value=one.text.encode())
        return encode_entry(
            [message],
            producer="p",
            incarnation=1,
            sequence_id=self._texts,
            publish_time_ms=0,
            txn_id=one.txn_id,
            writer=one.writer,
        )

    async def header(self, txn_id: TxnId, state: str, writers: list[str] | None = None) -> None:
        seq = TxnSeq(next=1000, indexed_below=1000)
        await self.record(keys.txn_seq(txn_id.tcid), seq)
        begun = Header(state=OPEN, timeout_ms=NOW_MS, created_ms=1)
        await self.record(keys.txn(txn_id), begun)
        if state != OPEN:  # version 2 of the key
            await self.record(keys.txn(txn_id), msgspec.structs.replace(begun, state=state, writers=writers))

    async def ops(self, txn_id: TxnId, segment: str, count: int, subscription: str = "") -> None:
        for number in range(count):
            if subscription:
                prefix, index = (
                    keys.ack_ops(txn_id, segment, subscription),
                    keys.ack_index(segment, subscription, txn_id),
                )
                op = Op(v=1, kind="ack", segment=segment, subscription=subscription, positions=[(1, 0, 1, "")])
            else:
                prefix, index = keys.write_ops(txn_id, segment), keys.write_index(segment, txn_id)
                op = Op(v=1, kind="write", segment=segment, producer="p", sequence_id=number, messages=1)
            await self.record(keys.op(prefix, 1, number), op)
            await self.store.commit(Commit(puts=(Put(index, b""),)))

    async def mark(self) -> None:
        """The folder's, as of now."""
        revision, _ = await self.store.get_many([keys.INCARNATION])
        StoreMark(self.data).write(await self.store.identity(), revision)

    # ---- repairs ----------------------------------------------------------------------------------------------------

    def copy(self, to: Path) -> ShortFolder:
        """The same etcd and the same files once more."""
        etcd = MemoryEtcd(SystemClock())
        etcd.mvcc = copy.deepcopy(self.etcd.mvcc)
        shutil.copytree(self.data, to)
        return ShortFolder(etcd, to)

    async def repair(self, *, dies_at: int = 0) -> list[Finding]:
        """`dies_at`: the step that its process does not live to do. Raises `Crash` then."""
        self.steps = Steps(dies_at)
        store = SteppedStore(self.etcd, SystemClock(), random.Random(self.etcd.mvcc.revision))
        store.steps = self.steps
        files = SteppedLedgers(self.data, self.steps)
        work = Repair(
            store,
            files,
            StoreMark(self.data),
            SystemClock(),
            random.Random(dies_at),
            tcids=2,
            on_progress=lambda _: None,
        )
        try:
            return await work.run("the folder is older")
        finally:
            await files.close()
            await store.close()

    async def repair_again_and_again(self, *, dies_at: int) -> bool:
        """A repair that dies at that step, and its repetition. False if it had no such step."""
        with suppress(Crash):
            await self.repair(dies_at=dies_at)
            return False
        await self.repair()
        return True

    async def findings(self) -> list[Finding]:
        """Of `txnctl check`, but for open ledgers."""
        files = FileLedgerStore(self.data)
        picture = await take_picture(self.store)
        found = broken_invariants(picture, now_ms=NOW_MS)
        found += [one async for one in broken_ledgers(picture, files, lambda _: None)]
        await files.close()
        return found

    async def picture(self) -> Picture:
        return await take_picture(self.store)

    async def state(self) -> dict[str, object]:
        """All that a repair decides, but for what rises with each try: ids, epochs and counts."""
        picture = await take_picture(self.store)
        found: dict[str, object] = {}
        for txn_id, header in picture.headers.items():
            found[f"header {txn_id}"] = (header.state, header.reason, header.writers)
        for segment, mark in picture.watermarks.items():
            found[f"watermark {segment}"] = mark.position
        for (segment, txn_id, writer), aborted in picture.aborted.items():
            found[f"aborted {segment} {txn_id} {writer}"] = aborted.max_position
        for (segment, name), cursor in picture.marks.items():
            found[f"mark {segment} {name}"] = cursor.position
        for (segment, name), blocks in picture.blocks.items():
            found |= {f"block {segment} {name} {block}": one for block, one in blocks.items()}
        for place, drained in picture.drained.items():
            found[f"drained {place}"] = drained.end
        files = FileLedgerStore(self.data)
        for segment, record in picture.ledgers.items():
            found[f"seal {segment}"] = (record.sealed, record.trimmed_below)
            for info in record.ledgers:
                there = await files.look_at(segment, info.ledger_id)
                sidecar = await files.read_sidecar(segment, info.ledger_id)
                found[f"ledger {segment} {info.ledger_id}"] = (
                    info.closed_length,
                    info.bytes,
                    bool(info.closed_ms),
                    info.aborted,
                    there is not None,
                    await files.read_footer(segment, info.ledger_id) is not None,
                    sidecar and decode_sidecar(sidecar, info.ledger_id, "sidecar"),
                )
        await files.close()
        return found

    async def aborted(self) -> dict[tuple[str, TxnId, int | None], tuple[int, int] | None]:
        return {place: record.max_position for place, record in (await self.picture()).aborted.items()}
