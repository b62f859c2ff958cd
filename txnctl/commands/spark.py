"""`txnctl spark …`: shows in words what Spark keeps of a query. Needs no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from txnctl.commands.shared.asking import DEFAULT_URL, Asking, Url, asking
from txnctl.commands.shared.groups import group
from txnctl.commands.shared.output import Format, Output, cell, say, show_json, show_rows
from txnctl.commands.shared.running import run
from txnwire.errors import DataCorrupt, InvalidArgument, TxnNotFound

if TYPE_CHECKING:
    from pyspark_txnstore.checkpoint import Checkpoint, CheckpointBatch
    from txnclient.reading.snapshot import Snapshot

app = group("Spark: how far a query is, by its checkpoint.")

_BATCH_COLUMNS = ["batch", "spark_commit", "source", "revision", "pending"]
_OFFSET_COLUMNS = ["source", "topic", "segment", "begin", "end", "resolved", "sealed"]


@app.command()
def checkpoint(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="a folder of this machine, as checkpointLocation says")],
    sink_name: Annotated[str | None, typer.Option(help="the sink's option sinkName; default: spark")] = None,
    topic: Annotated[str | None, typer.Option(help="the sink's option topic; - if rows name theirs")] = None,
    last: Annotated[int, typer.Option(min=1, help="the number of newest batches")] = 10,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Show how far a query is, and what a restart would do. With --topic or --sink-name, ask the service which batches
    our sink has committed. The query may be running."""
    from pyspark_txnstore.checkpoint import checkpoint_folder, read_checkpoint, restart
    from pyspark_txnstore.sink import batch_names

    found = read_checkpoint(checkpoint_folder(folder), last=last)
    to_restart = restart(found)
    sink = None
    if sink_name is not None or topic is not None:
        sink = batch_names.stream_sink(sink_name, None if topic in (None, "-") else topic)
    batches = [_batch(found, one) for one in found.batches[-last:]]

    async def work() -> None:
        begins_at = None if to_restart.again else to_restart.batch
        answer: dict[str, Any] = {
            "query_id": found.query_id,
            "batches": batches,
            "restart": {"batch": to_restart.batch, "again": to_restart.again, "obstacle": to_restart.obstacle},
        }
        if sink is not None:
            async with asking(url) as cluster:
                for one in batches:
                    one |= await _outcome(cluster, sink, found.query_id, one["batch"])
                if begins_at is not None:
                    answer["restart"] |= await _outcome(cluster, sink, found.query_id, begins_at)
        if to_restart.again:
            answer["restart"] |= {key: batches[-1][key] for key in ("transaction", "outcome") if key in batches[-1]}
        if output is Format.JSON:
            show_json(answer)
        else:
            _show(answer)

    run(work())


async def _outcome(cluster: Asking, sink: Any, query_id: str, batch: int) -> dict[str, Any]:
    """Outcome of a batch's transaction, also under the name of an earlier version. None: unknown, never begun or
    forgotten."""
    from pyspark_txnstore.sink import batch_names

    name = batch_names.micro_batch_name(sink, query_id, batch)
    outcome = await _outcome_of(cluster, name.text)
    if outcome != "COMMITTED" and await _outcome_of(cluster, name.former) == "COMMITTED":
        return {"transaction": name.former, "outcome": "COMMITTED"}
    return {"transaction": name.text, "outcome": outcome}


async def _outcome_of(cluster: Asking, name: str) -> str | None:
    try:
        return str((await cluster.ask("transactions.describe", name=name))["outcome"])
    except TxnNotFound:
        return None


# ---- as JSON --------------------------------------------------------------------------------------------------------


def _batch(found: Checkpoint, batch: CheckpointBatch) -> dict[str, Any]:
    from pyspark_txnstore.checkpoint import stretches

    try:
        offsets = [one._asdict() for one in stretches(found, batch)]
    except InvalidArgument as error:
        raise DataCorrupt(f"offsets/{batch.number} of the checkpoint is damaged: {error}") from error
    sources = [
        {"source": one.source, "offset": None if one.is_ours else one.text, **_cut(one.cut)} for one in batch.ends
    ]
    return {"batch": batch.number, "spark_commit": batch.committed, "sources": sources, "offsets": offsets}


def _cut(cut: Snapshot | None) -> dict[str, Any]:
    if cut is None:
        return {"revision": None, "segments": None, "pending": []}
    return {
        "revision": cut.revision,
        "segments": len(cut.segments),
        "pending": [str(txn_id) for txn_id in sorted(cut.pending)],
    }


# ---- as text --------------------------------------------------------------------------------------------------------


def _show(answer: dict[str, Any]) -> None:
    say(f"query {answer['query_id']}")
    batches = answer["batches"]
    rows = [
        {
            **batch,
            **source,
            "pending": None if source["revision"] is None else len(source["pending"]),
            "outcome": batch.get("outcome"),
        }
        for batch in batches
        for source in batch["sources"] or [{"source": None, "offset": None, "revision": None, "pending": []}]
    ]
    columns = _BATCH_COLUMNS + ["offset"] * any(row["offset"] for row in rows)
    show_rows(
        rows,
        columns + ["transaction", "outcome"] * any("transaction" in row for row in rows),
        Format.TABLE,
        empty="no batch has been planned yet",
    )
    if batches and batches[-1]["offsets"]:
        say(f"batch {batches[-1]['batch']} reads, after begin and up to end:")
        show_rows(batches[-1]["offsets"], _OFFSET_COLUMNS, Format.TABLE, empty="")
    say(_restart(answer["restart"], batches))


def _restart(restart: dict[str, Any], batches: list[dict[str, Any]]) -> str:
    """Describes a restart of the query in a sentence or two."""
    batch = restart["batch"]
    if restart["obstacle"] is not None:
        return f"a restart fails: {restart['obstacle']}"
    if not restart["again"]:
        if not batches:
            return "a restart begins with batch 0, where startingOffsets say: nothing is planned yet"
        said = (
            f"a restart continues with batch {batch}, from where batch {batches[-1]['batch']} ended: all of it is done"
        )
        if restart.get("outcome") == "COMMITTED":
            said += (
                f". But {restart['transaction']} is COMMITTED already, by another run of this checkpoint or a copy of "
                f"it: the rows of batch {batch} would be left out"
            )
        return said
    said = f"a restart runs batch {batch} again, from begin to end as above: Spark has not noted that it is done"
    if "transaction" not in restart:
        return f"{said}. Whether the sink has committed it: --topic, --sink-name"
    return f"{said}. {restart['transaction']} {_means(restart['outcome'])}"


def _means(outcome: str | None) -> str:
    if outcome == "COMMITTED":
        return "is COMMITTED: its rows are left out, nothing is written twice"
    if outcome == "OPEN":
        return "is OPEN, of a run that died or is still at work: the new run aborts it and writes again"
    if outcome == "ABORTED":
        return "is ABORTED: it does not count, and the batch is written again"
    if outcome is None:
        return "was never begun: the batch is written"
    return f"is {cell(outcome)}: whether its rows count is not known"
