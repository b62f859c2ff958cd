"""`txnctl subscriptions …`"""

from __future__ import annotations

from typing import Annotated

import typer

from txnctl.commands.asking import DEFAULT_URL, Url, asking
from txnctl.commands.output import Format, Output, show_json, show_rows
from txnctl.commands.running import run

app = typer.Typer(help="Subscriptions, their consumers and what they have not acked.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(help="topic://tenant/namespace/name")]


@app.command(name="list")
def list_subscriptions(topic: Topic, output: Output = Format.TABLE, url: Url = DEFAULT_URL) -> None:
    """The topic's subscriptions."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask("subscriptions.list", topic=topic)
        columns = ["subscription", "type", "start", "consumers", "assignment_epoch"]
        show_rows(answer["subscriptions"], columns, output, empty=f"{topic} has no subscriptions")

    run(work())


@app.command()
def describe(
    topic: Topic,
    subscription: Annotated[str, typer.Argument()],
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Per segment: the consumer, mark-delete position, backlog and pending acks."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask("subscriptions.describe", topic=topic, subscription=subscription)
        if output is Format.JSON:
            show_json(answer)
            return
        print(f"{subscription} on {topic}: {answer['type']}, starts at {answer['start']['kind']}")
        rows = [row | {"segment": row["segment"].rpartition("/")[2]} for row in answer["segments"]]
        columns = ["segment", "assigned_to", "mark_delete", "backlog", "delivered", "pending_acks", "pending_in"]
        show_rows(rows, columns + ["error"] * any("error" in row for row in rows), output, empty="no segments")

    run(work())
