"""`txnctl transactions …`"""

from __future__ import annotations

from typing import Annotated

import typer

from txnctl.commands.asking import DEFAULT_URL, Url, asking
from txnctl.commands.output import Format, Output, show_json, show_rows
from txnctl.commands.running import run
from txnwire.ids import TxnId
from txnwire.proto import txn_pb2 as pb

app = typer.Typer(help="Transactions: what is open, what it holds back, how it ended.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="transaction id, as 0003-00000000000004d2")]


@app.command(name="list")
def list_transactions(
    state: Annotated[str | None, typer.Option(help="OPEN, COMMITTED or ABORTED")] = None,
    older_than: Annotated[float | None, typer.Option(help="begun more than so many seconds ago")] = None,
    owner: Annotated[str | None, typer.Option(help="of this owner")] = None,
    segment: Annotated[str | None, typer.Option(help="with operations on segment://…")] = None,
    limit: Annotated[int, typer.Option(min=1, help="at most so many")] = 1000,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Transactions whose headers are still in etcd, oldest first per coordinator."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask(
                "transactions.list", state=state, older_than_s=older_than, owner=owner, segment=segment, limit=limit
            )
        columns = ["txn", "state", "age_s", "timeout_in_s", "owner", "reason"]
        show_rows(answer["transactions"], columns, output, empty="no such transactions")

    run(work())


@app.command()
def describe(txn: Id, output: Output = Format.TABLE, url: Url = DEFAULT_URL) -> None:
    """Header, operations and outcome of one transaction."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask("transactions.describe", txn=str(TxnId.parse(txn)))
        if output is Format.JSON:
            show_json(answer)
            return
        header = answer.get("header") or {}
        print(f"{txn}: {answer['outcome']}" + (f", reason {header['reason']}" if header.get("reason") else ""))
        columns = ["kind", "segment", "subscription", "producer", "messages", "bytes"]
        show_rows(answer["operations"], columns, output, empty="no operation records (none yet, or cleaned up)")

    run(work())


@app.command()
def hanging(output: Output = Format.TABLE, url: Url = DEFAULT_URL) -> None:
    """Which readers are held back, where, by which open transaction, and whose it is; and leftovers that are stuck."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask("transactions.hanging")
        columns = ["txn", "age_s", "owner", "segment", "held_at", "entries_behind", "waiting", "why"]
        show_rows(answer["hanging"], columns, output, empty="nothing hangs")

    run(work())


@app.command()
def abort(txn: Id, url: Url = DEFAULT_URL) -> None:
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
        print(f"{txn}: ABORTED")

    run(work())
