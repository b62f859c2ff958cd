"""`txnctl transactions …`"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from txnctl.commands.shared.asking import DEFAULT_URL, Url, asking
from txnctl.commands.shared.groups import group
from txnctl.commands.shared.output import Format, Output, cell, printable, say, show_done, show_json, show_rows
from txnctl.commands.shared.running import run
from txnctl.commands.shared.typed import seconds
from txnwire.ids import TxnId
from txnwire.proto import txn_pb2 as pb

app = group("Transactions: open ones, what they hold back, how they ended.")

Id = Annotated[str, typer.Argument(help="transaction id, as 0003-00000000000004d2")]


@app.command(name="list")
def list_transactions(
    state: Annotated[str | None, typer.Option(help="OPEN, COMMITTED or ABORTED")] = None,
    older_than: Annotated[float | None, seconds(help="begun longer ago than this")] = None,
    owner: Annotated[str | None, typer.Option(help="of this owner")] = None,
    segment: Annotated[str | None, typer.Option(help="with operations on this segment")] = None,
    transaction_key: Annotated[str | None, typer.Option(help="of holders of this transaction key")] = None,
    limit: Annotated[int, typer.Option(min=1, help="at most so many")] = 1000,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Transactions whose headers are still in etcd, oldest first per coordinator."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask(
                "transactions.list",
                state=state,
                older_than_s=older_than,
                owner=owner,
                segment=segment,
                transaction_key=transaction_key,
                limit=limit,
            )
        columns = ["txn", "state", "age_s", "timeout_in_s", "owner", "reason"]
        for column in ("name", "transaction_key"):
            columns += [column] * any(row[column] for row in answer["transactions"])
        columns += ["error"] * any("error" in row for row in answer["transactions"])
        show_rows(answer["transactions"], columns, output, empty="no such transactions")
        if sum("error" not in row for row in answer["transactions"]) == limit:
            print(f"the first {limit:,} only: --limit shows more, --state OPEN those that are open", file=sys.stderr)

    run(work())


@app.command()
def describe(
    txn: Annotated[str | None, typer.Argument(help="transaction id, as 0003-00000000000004d2")] = None,
    name: Annotated[str | None, typer.Option(help="the one this name was last begun as, instead of an id")] = None,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Header, operations and outcome of one transaction."""
    if (txn is None) == (name is None):
        raise typer.BadParameter("name one transaction: by its id, or with --name")

    async def work() -> None:
        asked = {"name": name} if txn is None else {"txn": str(TxnId.parse(txn))}
        async with asking(url) as cluster:
            answer = await cluster.ask("transactions.describe", **asked)
        if output is Format.JSON:
            show_json(answer)
            return
        _describe(answer)

    run(work())


@app.command()
def hanging(
    older_than: Annotated[float, seconds(help="open, or left behind, for longer than this")] = 5.0,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Which readers are held back, where, by which open transaction, and whose it is; and leftovers that are stuck."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask("transactions.hanging", older_than_s=older_than)
        columns = ["txn", "age_s", "owner", "segment", "held_at", "entries_behind", "waiting", "readers", "why"]
        nothing = f"nothing hangs that was begun more than {older_than:g} s ago (--older-than)"
        columns += ["error"] * any("error" in row for row in answer["hanging"])
        show_rows(answer["hanging"], columns, output, empty=nothing)

    run(work())


@app.command()
def abort(txn: Id, output: Output = Format.TABLE, url: Url = DEFAULT_URL) -> None:
    """Abort an open transaction by force (reason: admin); its writers learn of it at their next call."""

    async def work() -> None:
        txn_id = TxnId.parse(txn)
        async with asking(url) as cluster:
            end = pb.EndTxn(
                txnid_most_bits=txn_id.most_bits,
                txnid_least_bits=txn_id.least_bits,
                action=pb.TXN_ACTION_ABORT,
                forced=True,
            )
            await cluster.call(pb.Command(end_txn=end))
        show_done(f"{txn}: ABORTED", {"txn": txn, "outcome": "ABORTED"}, output)

    run(work())


@app.command()
def stats(output: Output = Format.TABLE, url: Url = DEFAULT_URL) -> None:
    """Per coordinator: open, begun, committed, aborted, latencies since its start; and the records in etcd."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask("transactions.stats")
        if output is Format.JSON:
            show_json(answer)
            return
        rows = [*answer["coordinators"], {"coordinator": "total", **answer["total"]}]
        columns = ["coordinator", "active", "oldest_open_s", "created", "committed", "aborted", "timed_out"]
        columns += ["commit_p50_ms", "commit_p99_ms", "sweep_backlog", "stuck"]
        show_rows(rows, columns + ["error"] * any("error" in row for row in rows), output, empty="no coordinators")
        say(f"{cell(answer['headers'])} headers and {cell(answer['op_records'])} op records in etcd")

    run(work())


def _describe(answer: dict[str, Any]) -> None:
    header = answer["header"]
    reason = f", reason: {header['reason']}" if header and header["reason"] else ""
    print(f"{answer['txn']}: {answer['outcome']}{reason}")
    if header is None:
        print("its header has been collected: no more than the outcome is kept")
        if answer.get("writers") is not None:
            print(f"{len(answer['writers'])} writers count: {' '.join(answer['writers'])}")
    else:
        ended = f", ended {_when(header['finalized_ms'])}" if header["finalized_ms"] else ""
        deadline = "" if ended else f", aborted at the latest {_when(header['timeout_ms'])}"
        print(f"owner {cell(header['owner'])}, begun {_when(header['created_ms'])}{ended}{deadline}")
        if header["name"] is not None:
            counted = "" if header["writers"] is None else f", {len(header['writers'])} writers count"
            print(f"name {printable(header['name'])}{counted}")
        if header["txn_key"] is not None:
            print(f"transaction key {printable(header['txn_key'])}, epoch {header['key_epoch']}")
    if answer.get("note"):  # ▲ a server of an earlier version sends none
        print(f"note {printable(answer['note'])}")
    if "keep_ms" in answer:
        newest = ", and for ever while it is the newest commit of its prefix" if answer["keep_newest"] else ""
        print(f"how it ended is known for {timedelta(milliseconds=answer['keep_ms'])} after its end{newest}")
    columns = ["kind", "segment", "subscription", "producer", "consumer", "messages", "bytes"]
    columns += ["writer"] * any(op.get("writer") for op in answer["operations"])
    show_rows(answer["operations"], columns, Format.TABLE, empty="no operation records (none yet, or cleaned up)")


def _when(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(sep=" ", timespec="milliseconds")
