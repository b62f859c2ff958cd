"""`txnctl topics …`"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console

from txnctl.commands.asking import DEFAULT_URL, Url, asking, connected
from txnctl.commands.output import Format, Output, show_json, show_rows
from txnctl.commands.running import run

app = typer.Typer(help="Topics and their segments.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(help="topic://tenant/namespace/name")]


@app.command()
def create(
    topic: Topic,
    segments: Annotated[int, typer.Option(min=1, help="active segments to begin with")] = 1,
    url: Url = DEFAULT_URL,
) -> None:
    """Create a topic; fine if it exists with the same shape."""

    async def work() -> None:
        async with connected(url) as client:
            layout = await client.create_topic(topic, segments=segments)
        print(f"{topic}: {len(layout.segments)} segments, layout epoch {layout.epoch}")

    run(work())


@app.command(name="list")
def list_topics(
    prefix: Annotated[str, typer.Argument(help="tenant/ or tenant/namespace/")] = "",
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Names of topics."""

    async def work() -> None:
        async with connected(url) as client:
            names = await client.list_topics(prefix)
        show_rows([{"topic": name} for name in names], ["topic"], output, empty="no topics")

    run(work())


@app.command()
def describe(topic: Topic, output: Output = Format.TABLE, url: Url = DEFAULT_URL) -> None:
    """The topic's segments as a DAG: ranges, states, owners, backlog, and what pins each."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask("topics.describe", topic=topic)
        if output is Format.JSON:
            show_json(answer)
        else:
            _draw(answer)

    run(work())


@app.command()
def stats(topic: Topic, output: Output = Format.TABLE, url: Url = DEFAULT_URL) -> None:
    """Per segment: entries, bytes, positions, open transactions, subscriptions."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask("topics.stats", topic=topic)
        columns = ["segment", "owner", "entries", "bytes", "last_confirmed", "max_read_position", "open_transactions"]
        show_rows(answer["segments"], columns, output, empty="no segments")

    run(work())


def _draw(answer: dict[str, Any]) -> None:
    console = Console(highlight=False)
    console.print(f"{answer['topic']}  layout epoch {answer['epoch']}")
    by_id = {segment["id"]: segment for segment in answer["segments"]}
    roots = [segment for segment in answer["segments"] if not segment["parents"]]
    for root in roots:
        _draw_segment(console, root, by_id, depth=0)


def _draw_segment(console: Console, segment: dict[str, Any], by_id: dict[int, dict[str, Any]], *, depth: int) -> None:
    share = (segment["hi"] - segment["lo"] + 1) / 0x10000
    bar = "█" * max(1, round(share * 32))
    owner = segment["owner"] or "nobody"
    facts = f"{segment['state']:<7} owner {owner}  end {segment.get('last_confirmed') or '?'}"
    console.print(f"{'   ' * depth}{'└─ ' if depth else ''}{segment['descriptor']:<16} {bar:<32} {facts}")
    for pin in segment.get("pinned_by", []):
        console.print(f"{'   ' * depth}      held at {pin['position']} by {pin['txn']} (owner {pin['owner']})")
    for child in segment["children"]:
        _draw_segment(console, by_id[child], by_id, depth=depth + 1)
