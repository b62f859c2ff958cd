"""What a commit asks for: which writers count, and a note."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from txnclient.transactions.outcome import CommitResult
from txnwire.errors import InvalidArgument, TxnDecided
from txnwire.ids import TxnId
from txnwire.names import validate_note
from txnwire.proto import txn_pb2 as pb


def checked_writers(writers: Iterable[int] | None, txn_id: TxnId, name: str | None) -> tuple[int, ...] | None:
    """Distinct writers in rising order; None: all. Raises `InvalidArgument`."""
    if writers is None:
        return None
    if name is None:
        raise InvalidArgument(f"transaction {txn_id} has no name, so it has no writers: commit it without a list")
    if not isinstance(writers, Iterable):
        raise InvalidArgument(f"writers is a list of writer ids, not {writers!r}")
    given = list(writers)
    for writer in given:
        if not isinstance(writer, int) or not 0 <= writer < 1 << 64:
            raise InvalidArgument(f"{writer!r} is no writer id: expected an unsigned 64-bit number, as `writer_id` is")
    return tuple(sorted(dict.fromkeys(given)))


def check_note(note: str | None, txn_id: TxnId, name: str | None) -> None:
    """Raises `InvalidArgument`."""
    if note is None:
        return
    if name is None:
        raise InvalidArgument(
            f"transaction {txn_id} has no name under which a note could be found: commit without a note"
        )
    validate_note(note)


def same_again(result: CommitResult, counted: tuple[int, ...] | None, note: str | None, txn_id: TxnId) -> CommitResult:
    """The result of a commit that is repeated. Raises `TxnDecided` if another list or note was given first."""
    if result.writers != counted:
        raise TxnDecided(
            f"transaction {txn_id} is COMMITTED already, with another list of writers: "
            f"{_shown(result.writers)}, asked for {_shown(counted)}"
        )
    if None not in (note, result.note) and note != result.note:
        raise TxnDecided(
            f"transaction {txn_id} is COMMITTED already, with another note: {result.note!r}, asked for {note!r}"
        )
    return result


def listed(reply: pb.EndTxnOk | pb.NewTxnOk) -> tuple[int, ...] | None:
    """The writers that count, from a reply: without a list all count, with an empty one none."""
    return tuple(sorted(reply.writers.writers)) if reply.HasField("writers") else None


def _shown(writers: Sequence[int] | None) -> str:
    return "all" if writers is None else f"{len(writers)} of them"
