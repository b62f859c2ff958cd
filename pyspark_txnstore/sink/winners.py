"""Turns the winning task attempts' reports into the driver's commit. Pure. Source: DESIGN §10, "named transaction".

▲ The driver ends the transaction that the winners wrote in, and never begins the name to commit: if theirs was aborted
meanwhile, it would commit a new one without their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_txnstore.sink.content import NOTHING, Content, total
from txnwire.errors import InvalidTxnState


@dataclass
class Written(WriterCommitMessage):
    """Result of one task attempt: one writer of one named transaction, flushed. Not frozen, because its base is not."""

    name: str
    former: str = ""
    """An earlier version's name for the batch; empty: it has none."""
    txn_id: str | None = None
    """None: the attempt had no rows and has begun no transaction."""
    writer_id: int = 0
    content: Content = NOTHING
    """The content of all rows of the attempt, even if none was sent."""
    committed: bool = False
    """An earlier run of the batch has committed the transaction: nothing of this attempt counts."""
    run: bytes = b""
    """Stamp of its run (`runs.Run`)."""


@dataclass(frozen=True)
class BatchCommit:
    """One decision for all winners. `content`: of their rows."""

    name: str
    txn_id: str
    writers: tuple[int, ...]
    content: Content = NOTHING
    former: str = ""


@dataclass(frozen=True)
class Repeat:
    """Another run has committed the batch before. `content`: of this run's rows, which are left out."""

    name: str
    txn_id: str
    content: Content


def to_commit(
    messages: Sequence[WriterCommitMessage | None], batch_id: int | None = None
) -> BatchCommit | Repeat | None:
    """Returns what to commit, or that another run has committed it; None if no task had a row.

    `batch_id`: of the micro-batch that Spark commits. Raises `InvalidTxnState` if the attempts do not belong together;
    the batch must run again then, whole in one transaction.
    """
    written = [_checked(message) for message in messages]
    names = list(dict.fromkeys(one.name for one in written))
    if len(names) > 1 or (batch_id is not None and names and not names[0].endswith(f"/{batch_id}")):
        raise InvalidTxnState(f"tasks wrote for {', '.join(names)}, and batch {batch_id} is to be committed: run again")
    having = [one for one in written if one.txn_id is not None]
    txn_ids = list(dict.fromkeys(str(one.txn_id) for one in having))
    if len(txn_ids) > 1:
        raise InvalidTxnState(
            f"the tasks of {names[0]!r} were parted by an abort, they wrote in the transactions {', '.join(txn_ids)}: "
            "run the batch again, and raise transactionTimeoutMs if batches take longer than that"
        )
    if not having:
        return None
    content = total(one.content for one in having)
    if any(one.committed for one in having):
        return Repeat(names[0], txn_ids[0], content)
    return BatchCommit(names[0], txn_ids[0], tuple(sorted(one.writer_id for one in having)), content, having[0].former)


def check_repeat(name: str, note: str | None, content: Content, *, allow_different: bool) -> str | None:
    """▲ An apparent repeat may have other rows under the same name, which would be lost silently: a checkpoint that
    lost its newest batches reuses their numbers for whatever there is to read by then.

    `note`: of the commit under the `name`. `content`: of this run, which is left out. Returns what else to report about
    that, or None. Raises `InvalidTxnState` if the two differ, unless that is allowed.
    """
    committed = Content.parse(note)
    if committed is None:
        return "whether both have the same rows is not known: an earlier version has committed it"
    if committed == content:
        return None
    if allow_different:
        return f"they are not those that count ({committed}, this run has {content}): allowDifferentReplay is set"
    raise InvalidTxnState(
        f"{name!r} is committed with {committed}, and this run of it has {content}: other rows, of which none was "
        "written. Either the checkpoint has lost its newest batches or was put back from a copy, so that their numbers "
        "were given out again; or two writes share a writeId; or the query makes other rows whenever it runs. "
        "docs/spark.md, 'Other rows under an old name', says how to go on; allowDifferentReplay=true keeps what is "
        "committed and leaves the rows of this run out for good"
    )


def advice(name: str, *, repeatable: bool) -> str:
    """Advises the user if a commit's outcome is not known. ▲ A repeat of a write without a name of its own is another
    write: its rows would be stored twice."""
    unknown = f"whether {name!r} is committed is not known"
    if repeatable:
        return f"{unknown}: run it again, and it will find out"
    return (
        f"{unknown}: look before you write again (txnctl transactions describe --name {name}), or the rows may be "
        "there twice; with the option writeId a write can be repeated"
    )


def told(messages: Sequence[WriterCommitMessage | None]) -> Written | None:
    """Name and run of a failed batch as its tasks reported them; a task without rows reports as well. None: no task
    did."""
    return next((message for message in messages if isinstance(message, Written)), None)


def _checked(message: WriterCommitMessage | None) -> Written:
    if not isinstance(message, Written):
        raise InvalidTxnState(f"a task has reported {message!r} where what it has written was expected: run again")
    return message
