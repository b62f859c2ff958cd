"""From what the winning task attempts report to what the driver commits. Pure. Source: DESIGN §10, "named transaction".

▲ The driver ends exactly the transaction that the winners have written in. It never begins the name in order to commit:
had theirs been aborted meanwhile, that would be a fresh one without their rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from pyspark_txnstore.sink.content import NOTHING, Content, total
from txnwire.errors import InvalidTxnState


@dataclass
class Written(WriterCommitMessage):
    """What one task attempt has done: one writer of one named transaction, flushed. Not frozen, as its base is not."""

    name: str
    former: str = ""
    """What an earlier version would have called the batch; empty: it has no such name."""
    txn_id: str | None = None
    """None: it had no rows, and has begun nothing."""
    writer_id: int = 0
    content: Content = NOTHING
    """Of the rows that it was given, also where none of them was sent."""
    committed: bool = False
    """The transaction was found committed by an earlier run of the batch: nothing of this one counts."""
    run: bytes = b""
    """Stamp of the run that it belongs to (`runs.Run`)."""


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
    """The batch was committed before, by another run. `content`: of the rows of this one, which are left out."""

    name: str
    txn_id: str
    content: Content


def to_commit(
    messages: Sequence[WriterCommitMessage | None], batch_id: int | None = None
) -> BatchCommit | Repeat | None:
    """What to commit, or that another run has committed it; None where no task had a row.

    `batch_id`: of the micro-batch that Spark commits. Raises `InvalidTxnState` where the attempts do not belong
    together; the batch is to be run again then, and is whole in one transaction.
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
    """▲ What looks like a repeat may be other rows under the same name, of which nothing would ever be heard again: a
    checkpoint that has lost its newest batches gives their numbers out anew, for whatever there is to read by then.

    `note`: of the commit under the `name`. `content`: of this run, which is left out. Gives what to tell of that beyond
    it; None: nothing. Raises `InvalidTxnState` where the two differ, unless that is allowed.
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
    """What to do where the outcome of a commit is not known. ▲ A write without a name of its own is another one when it
    is run again: its rows would be there twice."""
    unknown = f"whether {name!r} is committed is not known"
    if repeatable:
        return f"{unknown}: run it again, and it will find out"
    return (
        f"{unknown}: look before you write again (txnctl transactions describe --name {name}), or the rows may be "
        "there twice; with the option writeId a write can be repeated"
    )


def told(messages: Sequence[WriterCommitMessage | None]) -> Written | None:
    """By a task of a failed batch, of what name and run it is: one that had no row tells as well. None: by no task."""
    return next((message for message in messages if isinstance(message, Written)), None)


def _checked(message: WriterCommitMessage | None) -> Written:
    if not isinstance(message, Written):
        raise InvalidTxnState(f"a task has reported {message!r} where what it has written was expected: run again")
    return message
