"""The ledger port: append-only files of entries, one writer each, fenced by whoever takes over (DESIGN §7, "Ledger").

`segments.ledger.file_ledger.FileLedgerStore` is the one users run; the simulation has its own with crash semantics.
Both pass one contract suite. Entry ids count up from 0 in every ledger; segments are named by path.
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
    """The disk did not let a file be read; names it. Nothing is wrong with what is in it, as far as anybody knows.

    ▲ To clients it is `StoreUnavailable`: nothing was done, and the next try may succeed, here or at the next owner.
    They wait within the time of their call, and are told which file it was when that is up."""

    code = StoreUnavailable.code
    grpc_status = StoreUnavailable.grpc_status
    retriable = True


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a fenced ledger holds, durably: entries 0 … `entries` - 1. A torn tail behind them has been cut off.
    `present`: whether it is there at all; one that was never created is not."""

    entries: int
    bytes: int
    present: bool = True


class LedgerPlace(NamedTuple):
    """Where ledgers are kept: `id` for ever and for every process that sees it, None where it has none; `place` for
    people."""

    id: str | None
    place: str


class DiskRoom(NamedTuple):
    """Of the disk that ledgers are kept on; `free_bytes` as far as this process may use them."""

    free_bytes: int
    total_bytes: int


class LedgerWriter(Protocol):
    """The open ledger of one segment. Appending and syncing are apart, so that one sync serves many appends."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def last_confirmed(self) -> int:
        """The last entry id that is durable and that this writer may still expose; -1 for none."""

    @property
    def appended_bytes(self) -> int:
        """Of entries appended so far: the caller rolls to a new ledger when this passes its bound (64 MiB)."""

    def append(self, entry: bytes) -> int:
        """Buffer one entry and return its entry id. Raises `LedgerFailed` or `LedgerFenced`."""

    async def sync(self) -> int:
        """Make everything appended before this call durable, check the fence, advance `last_confirmed`, return it.

        ▲ The fence is checked after the sync and before the last confirmed entry moves. Raises `LedgerFenced` or
        `LedgerFailed`; either is final.
        """

    async def read(self, first: int, last: int, *, max_bytes: int) -> Sequence[tuple[int, bytes]]:
        """Confirmed entries from `first` to at most `last` (inclusive), as many as fit in `max_bytes`, at least one."""

    async def close(self, footer: bytes) -> Recovered:
        """Sync, write `footer` beside the ledger and end it. The caller then records its length in `/ledger`."""

    def abandon(self) -> None:
        """Let go at once, writing nothing more (ownership lost, process going down)."""

    async def unrecorded_end(self) -> Recovered | None:
        """What the ledger holds, where a sync has failed and this could not be kept beside the ledger; None otherwise.
        Waits for a sync that is under way. ▲ The caller keeps it elsewhere before it gives up its ownership: a
        successor would count what is not on the disk."""


class LedgerStore(Protocol):
    @property
    def kind(self) -> str:
        """The `store` field of `/ledger`: "file", "memory"."""

    async def identity(self, mark: str | None) -> LedgerPlace:
        """Which place this is. One that has no id is given `mark`, durably, if there is one; of several that mark it at
        once the first counts. Raises `LedgerFailed`.

        ▲ From then on a place without that id is one that has gone: everything fails as `LedgerFailed`, what reads as
        `LedgerUnreadable`, and nothing counts as never created."""

    async def room(self) -> DiskRoom | None:
        """None where the store has no bound of its own. Raises `LedgerFailed`."""

    async def keep_reserve(self, size: int) -> None:
        """Set so much room aside, at most, for all but appending: fencing, closing, opening, footers, sidecars and
        deletion use it where there is none else. Idempotent; what was used is set aside anew. Raises `LedgerFailed`."""

    async def create(self, segment: str, ledger_id: int, *, incarnation: str) -> LedgerWriter:
        """A new, empty ledger, durable before this returns. Raises `LedgerFailed` if it already exists."""

    async def fence(self, segment: str, ledger_id: int) -> Recovered:
        """Take a ledger from whoever writes it: fence durably, ▲ sync what is read before counting it, validate every
        entry's checksum from the start. A tail whose sync never finished ends it. Nothing is written to the
        foreign file itself. Idempotent: the first count stands, whatever a late writer adds. A ledger that was never
        created counts as empty (its creator died). Raises `DataCorrupt` naming file and offset for any other damage:
        what may have been acknowledged is never cut off silently.
        """

    async def look_at(self, segment: str, ledger_id: int) -> Recovered | None:
        """For a check or a repair: how much of a ledger is there, whatever was counted in it; None where nothing is.
        Fences and changes nothing. Raises `DataCorrupt`, `LedgerUnreadable`."""

    async def read(
        self, segment: str, ledger_id: int, first: int, last: int, *, max_bytes: int
    ) -> Sequence[tuple[int, bytes]]:
        """Entries of a closed ledger, as `LedgerWriter.read`; `last` never passes its closed length. Raises
        `DataCorrupt` naming file and offset, `InvalidArgument` for a ledger that is not there, `LedgerUnreadable`."""

    async def read_footer(self, segment: str, ledger_id: int) -> bytes | None:
        """What `close` wrote; None where the owner died before. Raises `DataCorrupt` if it is damaged."""

    async def write_footer(self, segment: str, ledger_id: int, footer: bytes) -> None:
        """A file of its own beside the ledger: a successor's footer for one it has fenced, or a checkpoint beside one
        that is open. Atomic and durable; replaces an earlier one. Fences nothing."""

    async def read_sidecar(self, segment: str, ledger_id: int) -> bytes | None:
        """What `write_sidecar` wrote, None where there is nothing. Raises `DataCorrupt` if it is damaged."""

    async def write_sidecar(self, segment: str, ledger_id: int, sidecar: bytes) -> bytes:
        """A file of its own beside a closed ledger: what of it was aborted (`segments.ledger.sidecars`).

        ▲ Immutable: of several writers the first counts, and this returns what it wrote. ▲ Durable before this returns,
        for records in etcd go once it stands. Raises `DataCorrupt` where what stands there is damaged."""

    async def delete(self, segment: str, ledger_id: int) -> None:
        """Remove a ledger and what stands beside it. Idempotent. ▲ A writer of it that still lives acks nothing more,
        and where it was fenced before it was created, its late creator is still refused."""

    async def delete_segment(self, segment: str) -> None:
        """Remove every ledger of a segment that is never to be again, listed or not, and what stands beside them.
        Idempotent; writers and late creators fare as with `delete`, and nothing else is left."""

    async def list(self) -> Sequence[tuple[str, int]]:
        """Every (segment, ledger id) of which anything but a fence is present, for `txnctl check`."""

    async def close(self) -> None:
        """Stop threads, close files. Bounded."""
