"""`txnctl subscriptions …`"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from txnctl.commands.piping import SubscriptionKind
from txnctl.commands.shared.asking import DEFAULT_URL, Url, Yes, asking, connected, expect_yes, start_of
from txnctl.commands.shared.groups import group
from txnctl.commands.shared.output import Format, Output, cell, counted, show_done, show_json, show_rows
from txnctl.commands.shared.running import run
from txnctl.commands.shared.typed import TIMES
from txnwire.errors import NotAllowed

app = group("Subscriptions, their consumers and unacked messages.")

LAG = ("lag_messages", "lag_seconds")

Topic = Annotated[str, typer.Argument(help="topic://tenant/namespace/name")]
Name = Annotated[str, typer.Argument(help="the subscription's name")]


@app.command(name="list")
def list_subscriptions(topic: Topic, output: Output = Format.TABLE, url: Url = DEFAULT_URL) -> None:
    """List the topic's subscriptions with their lag: the number of unacked messages, and the age of the oldest."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask("subscriptions.list", topic=topic)
        columns = ["subscription", "type", "start", "consumers", "assignment_epoch", *LAG]
        rows = answer["subscriptions"]
        if output is Format.TABLE:
            rows = [row | _lag_cells(row) | {"consumers": [_name_of(one) for one in row["consumers"]]} for row in rows]
        columns += ["error"] * any("error" in row for row in rows)
        show_rows(rows, columns, output, empty=f"{topic} has no subscriptions")

    run(work())


@app.command()
def create(
    topic: Topic,
    subscription: Name,
    kind: Annotated[
        SubscriptionKind, typer.Option("--type", help="stream: in order per key; queue: any free consumer")
    ] = SubscriptionKind.STREAM,
    start: Annotated[
        str, typer.Option(help=f"where it begins: earliest, latest, a message id, or a time: {TIMES}")
    ] = "earliest",
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Create a subscription without reading: from now on retention keeps its unconsumed messages."""
    where = start_of(start)

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask("subscriptions.list", topic=topic)
        there = next((one for one in answer["subscriptions"] if one["subscription"] == subscription), None)
        if there is not None and there["type"] != kind.value:
            raise NotAllowed(f"{subscription} on {topic} is there already, of type {there['type']}")
        if there is None:
            async with (
                connected(url) as client,
                await client.consumer(topic, subscription, type=kind.value, start=where, prefetch=1),
            ):
                pass
        made = there is None
        said = f"{subscription} on {topic}: {'created' if made else 'is there already, nothing is changed'}"
        facts = {"topic": topic, "subscription": subscription, "type": kind.value, "created": made}
        show_done(said, facts, output)

    run(work())


@app.command()
def describe(
    topic: Topic,
    subscription: Name,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Per segment: the consumer, mark-delete position, messages not acked and the age of the oldest of them, backlog in
    entries, and pending acks; of a queue, where its entries are."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask("subscriptions.describe", topic=topic, subscription=subscription)
        if output is Format.JSON:
            show_json(answer)
            return
        print(f"{subscription} on {topic}: {answer['type']}, starts at {answer['start']['kind']}, {_behind(answer)}")
        rows = [
            row
            | _lag_cells(row)
            | {
                "segment": row["segment"].rpartition("/")[2],
                "assigned_to": _name_of(row["assigned_to"]),
                "consumers": len(row.get("consumers", [])),
            }
            for row in answer["segments"]
        ]
        shared = ["consumers", "mark_delete", *LAG, "backlog", "unacked", "set_aside", "delayed"]
        alone = ["assigned_to", "mark_delete", *LAG, "backlog", "delivered"]
        columns = ["segment", *(shared if answer["type"] == "queue" else alone), "pending_acks", "pending_in"]
        show_rows(rows, columns + ["error"] * any("error" in row for row in rows), output, empty="no segments")

    run(work())


@app.command()
def seek(
    topic: Topic,
    subscription: Name,
    start: Annotated[str, typer.Argument(help=f"earliest, latest, a message id, or a time: {TIMES}")],
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Move a subscription to a start, with or without consumers; messages received before cannot be acked."""

    async def work() -> None:
        where = start_of(start)
        async with connected(url) as client:
            await client.seek_subscription(topic, subscription, where)
        said = f"{subscription} on {topic}: continues at {start}"
        show_done(said, {"topic": topic, "subscription": subscription, "start": start}, output)

    run(work())


@app.command()
def delete(
    topic: Topic,
    subscription: Name,
    force: Annotated[bool, typer.Option("--force", help="also while consumers are connected")] = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Delete a subscription, its position, and its acks in open transactions."""
    expect_yes(f"Delete subscription {subscription} of {topic}?", yes=yes)

    async def work() -> None:
        async with connected(url) as client:
            await client.delete_subscription(topic, subscription, force=force)
        said = f"{subscription} on {topic}: deleted"
        show_done(said, {"topic": topic, "subscription": subscription, "deleted": True}, output)

    run(work())


def _name_of(consumer: str | None) -> str | None:
    """The given name in `name@incarnation`."""
    return None if consumer is None else consumer.partition("@")[0]


def _lag_cells(row: Mapping[str, Any]) -> dict[str, Any]:
    """Shows an unknown value as "?": a dash would read as none."""
    return {name: "?" if row.get(name) is None else row[name] for name in LAG}


def _behind(answer: Mapping[str, Any]) -> str:
    messages, age_s = answer.get("lag_messages"), answer.get("lag_seconds")
    if messages is None:
        return "? messages not acked"
    oldest = f", the oldest {'?' if age_s is None else cell(age_s)} s old" if messages else ""
    return f"{counted(messages, 'message', 'messages')} not acked{oldest}"
