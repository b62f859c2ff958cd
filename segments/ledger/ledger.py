"""Defines the ledger port: append-only files of entries, one writer each, fenced by a new owner (DESIGN §7, "Ledger").

Users run `segments.ledger.file_ledger.FileLedgerStore`; the simulation has its own with crash semantics. Both pass one
contract suite. Entry ids count up from 0 in every ledger; segments are named by path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from txnwire.errors import ServiceError, StoreUnavailable


class LedgerFenced(ServiceError):
    """Another owner has fenced this ledger: nothing more may be acked or exposed from it by this writer."""


class LedgerFailed(ServiceError):
    """A sync or write failed; the ledger is dead (▲ §7: never retried). The caller gives the segment up or rolls."""


class LedgerUnreadable(LedgerFailed):
    """Reading a file failed; the message names it. Its content is not known to be damaged.

    ▲ To clients it is `StoreUnavailable`: nothing was done, and the next try may succeed, here or at the next owner.
    They retry until their call's time is up, then the error names the file."""

    code = StoreUnavailable.code
    grpc_status = StoreUnavailable.grpc_status
    retriable = True


@dataclass(frozen=True, slots=True)
class Recovered:
    """The durable content of a fenced ledger: entries 0 … `entries` - 1, without a torn tail. `present`: False if the
    ledger was never created."""

    entries: int
    bytes: int
    present: bool = True


class LedgerPlace(NamedTuple):
    """Names the place of the ledgers: `id` never changes and is the same for every process, None if there is none;
    `place` is for people."""

    id: str | None
    place: str


class DiskRoom(NamedTuple):
    """Space on the disk that holds the ledgers; `free_bytes` counts what this process may use."""

    free_bytes: int
    total_bytes: int


class LedgerWriter(Protocol):
    """Appends to the open ledger of one segment. Append and sync are separate, so that one sync serves many appends."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def last_confirmed(self) -> int:
        """The last entry id that is durable and that this writer may still expose; -1 for none."""

    @property
    def appended_bytes(self) -> int:
        """Bytes of all entries appended so far: the caller rolls to a new ledger above its bound (64 MiB)."""

    def append(self, entry: bytes) -> int:
        """Buffer one entry and return its entry id. Raises `LedgerFailed` or `LedgerFenced`."""

    async def sync(self) -> int:
        """Make everything appended before this call durable, check the fence, advance `last_confirmed`, return it.

        ▲ Checks the fence after the sync and before `last_confirmed` advances. Raises `LedgerFenced` or
        `LedgerFailed`; either is final.
        """

    async def read(self, first: int, last: int, *, max_bytes: int) -> Sequence[tuple[int, bytes]]:
        """Confirmed entries from `first` to at most `last` (inclusive), as many as fit in `max_bytes`, at least one."""

    async def close(self, footer: bytes) -> Recovered:
        """Sync, write `footer` beside the ledger and end it. The caller then records its length in `/ledger`."""

    def abandon(self) -> None:
        """Release the ledger at once without another write (ownership lost, process stopping)."""

    async def unrecorded_end(self) -> Recovered | None:
        """The ledger's content, if a sync failed and its end could not be stored beside the ledger; else None. Waits
        for a running sync. ▲ The caller stores it elsewhere before it gives up its ownership: else a successor would
        count entries that are not on the disk."""


class LedgerStore(Protocol):
    @property
    def kind(self) -> str:
        """The `store` field of `/ledger`: "file", "memory"."""

    async def identity(self, mark: str | None) -> LedgerPlace:
        """Return this place; gives a place without id the id `mark`, durably, unless that is None. Among concurrent
        marks the first wins. Raises `LedgerFailed`.

        ▲ From then on a place without that id counts as lost: reads fail with `LedgerUnreadable`, all else with
        `LedgerFailed`, and no ledger counts as never created."""

    async def room(self) -> DiskRoom | None:
        """The disk's space, None if the store has no bound of its own. Raises `LedgerFailed`."""

    async def keep_reserve(self, size: int) -> None:
        """Reserve at most `size` bytes for everything but appends: fencing, closing, opening, footers, sidecars and
        deletion use it on a full disk. Idempotent; fills the reserve again after use. Raises `LedgerFailed`."""

    async def create(self, segment: str, ledger_id: int, *, incarnation: str) -> LedgerWriter:
        """Create an empty ledger, durable before this returns. Raises `LedgerFailed` if it already exists."""

    async def fence(self, segment: str, ledger_id: int) -> Recovered:
        """Take a ledger from its writer: fence durably, ▲ sync what is read before counting it, validate every entry's
        checksum from the start. The ledger ends before a tail whose sync never finished. Writes nothing to the foreign
        file itself. Idempotent: the first count stands, whatever a late writer adds. A ledger that was never created
        counts as empty (its creator died). Raises `DataCorrupt` that names file and offset for any other damage: never
        silently cuts off entries that may have been acknowledged.
        """

    async def look_at(self, segment: str, ledger_id: int) -> Recovered | None:
        """For a check or a repair: how much a ledger's file holds, ignoring any recorded count; None if there is no
        file. Fences and changes nothing. Raises `DataCorrupt`, `LedgerUnreadable`."""

    async def read(
        self, segment: str, ledger_id: int, first: int, last: int, *, max_bytes: int
    ) -> Sequence[tuple[int, bytes]]:
        """Entries of a closed ledger, as `LedgerWriter.read`; `last` is below its closed length. Raises `DataCorrupt`
        that names file and offset, `InvalidArgument` for a ledger that is not there, `LedgerUnreadable`."""

    async def read_footer(self, segment: str, ledger_id: int) -> bytes | None:
        """The footer that `close` wrote; None if the owner died before. Raises `DataCorrupt` if it is damaged."""

    async def write_footer(self, segment: str, ledger_id: int, footer: bytes) -> None:
        """Write the footer as a separate file: a successor's for a ledger it has fenced, or a checkpoint beside an open
        ledger. Atomic and durable; replaces an earlier footer. Does not fence."""

    async def read_sidecar(self, segment: str, ledger_id: int) -> bytes | None:
        """The content that `write_sidecar` wrote, or None. Raises `DataCorrupt` if it is damaged."""

    async def write_sidecar(self, segment: str, ledger_id: int, sidecar: bytes) -> bytes:
        """Write a closed ledger's aborted records as a separate file (`segments.ledger.sidecars`).

        ▲ Immutable: the first of several writers wins, and this returns its content. ▲ Durable before this returns,
        because the caller then deletes the records in etcd. Raises `DataCorrupt` if the existing file is damaged."""

    async def delete(self, segment: str, ledger_id: int) -> None:
        """Remove a ledger and the files beside it. Idempotent. ▲ A writer that still lives acks nothing more; if the
        ledger was fenced before it was created, its late creator still fails."""

    async def delete_segment(self, segment: str) -> None:
        """Remove every ledger, listed or not, of a segment that is gone for ever, and the files beside them.
        Idempotent; writers and late creators fail as with `delete`, and nothing else is left."""

    async def list(self) -> Sequence[tuple[str, int]]:
        """Every (segment, ledger id) with any file other than a fence, for `txnctl check`."""

    async def close(self) -> None:
        """Stop threads, close files. Bounded."""
