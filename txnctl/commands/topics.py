"""`txnctl topics …`"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txnctl.commands.asking import DEFAULT_URL, Url, Yes, asking, connected, expect_yes
from txnctl.commands.output import Format, Output, cell, counted, say, show_done, show_json, show_rows
from txnctl.commands.running import run
from txnwire.errors import InvalidArgument

BAR_WIDTH = 16
HASHES = 0x10000

app = typer.Typer(help="Topics and their segments.", no_args_is_help=True)

Topic = Annotated[str, typer.Argument(help="topic://tenant/namespace/name")]
RetentionMs = Annotated[int | None, typer.Option(min=1, help="what is older, in milliseconds, may go")]
RetentionBytes = Annotated[int | None, typer.Option(min=1, help="beyond so many bytes the oldest may go")]
TrimUndrained = Annotated[
    bool | None, typer.Option(help="retention also takes what a subscription has not consumed yet")
]


@app.command()
def create(
    topic: Topic,
    segments: Annotated[int, typer.Option(min=1, help="active segments to begin with")] = 1,
    retention_ms: RetentionMs = None,
    retention_bytes: RetentionBytes = None,
    trim_undrained: TrimUndrained = None,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Create a topic; fine if it exists with the same shape."""

    async def work() -> None:
        async with connected(url) as client:
            layout = await client.create_topic(
                topic,
                segments=segments,
                retention_ms=retention_ms,
                retention_bytes=retention_bytes,
                trim_undrained=trim_undrained,
            )
        said = f"{topic}: {len(layout.segments)} segments, layout epoch {layout.epoch}"
        show_done(said, {"topic": topic, "segments": len(layout.segments), "epoch": layout.epoch}, output)

    run(work())


@app.command()
def update(
    topic: Topic,
    retention_ms: RetentionMs = None,
    retention_bytes: RetentionBytes = None,
    trim_undrained: TrimUndrained = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="take this policy away, e.g. retention_ms; may be repeated")
    ] = None,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Change the policies that are named; the others stay."""
    given: dict[str, Any] = {
        "retention_ms": retention_ms,
        "retention_bytes": retention_bytes,
        "trim_undrained": trim_undrained,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    for name in drop or ():
        if name not in given:
            raise InvalidArgument(f"--drop {name}: expected one of {', '.join(given)}")
        if name in changes:
            raise InvalidArgument(f"{name} is both set and dropped")
        changes[name] = None

    async def work() -> None:
        async with connected(url) as client:
            await client.update_topic(topic, **changes)
        said = ", ".join(f"{name} {'dropped' if value is None else value}" for name, value in changes.items())
        show_done(f"{topic}: {said}", {"topic": topic, "changed": changes}, output)

    run(work())


@app.command()
def delete(
    topic: Topic,
    force: Annotated[bool, typer.Option("--force", help="also while producers or consumers are connected")] = False,
    yes: Yes = False,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Delete a topic with all its messages and subscriptions; done once no record and no file of it is left."""
    expect_yes(f"Delete {topic} with all its messages and subscriptions?", yes=yes)

    async def work() -> None:
        async with connected(url) as client:
            await client.delete_topic(topic, force=force)
        show_done(f"{topic}: deleted", {"topic": topic, "deleted": True}, output)

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
    """The topic's segments as a DAG: ranges, states, owners, positions, and which transactions hold readers back."""

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
    """Per segment: entries, ledgers, positions, open transactions, producers, readers, subscriptions."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask("topics.stats", topic=topic)
        if output is Format.JSON:
            show_json(answer)
            return
        rows = [row | {"segment": row["segment"].rpartition("/")[2]} for row in answer["segments"]]
        columns = ["segment", "owner", "entries", "last_confirmed", "max_read_position", "open_transactions"]
        columns += ["producers", "readers", "subscriptions", "clean_up_backlog"]
        print(answer["topic"])
        show_rows(rows, columns + ["error"] * any("error" in row for row in rows), output, empty="no segments")

    run(work())


def _draw(answer: dict[str, Any]) -> None:
    """The DAG, one line a segment and never folded: parents first, children below them."""
    policies = ", ".join(f"{name} {cell(value)}" for name, value in answer["policies"].items())
    say(f"{answer['topic']}  layout epoch {answer['epoch']}{'  ' if policies else ''}{policies}")
    by_id = {segment["id"]: segment for segment in answer["segments"]}
    for segment in answer["segments"]:
        if not segment["parents"]:
            _draw_segment(segment, by_id, depth=0)


def _draw_segment(segment: dict[str, Any], by_id: dict[int, dict[str, Any]], *, depth: int) -> None:
    first, last = segment["lo"] * BAR_WIDTH // HASHES, max(1, -(-(segment["hi"] + 1) * BAR_WIDTH // HASHES))
    bar = "·" * first + "█" * (last - first) + "·" * (BAR_WIDTH - last)
    indent = "   " * (depth - 1) + "└─ " if depth else ""
    say(f"{indent + segment['descriptor']:<20} {bar} {segment['state'].lower():<6}  {_facts(segment)}")
    for pin in segment["pinned_by"]:
        held = f"held at {pin['position']} by {pin['txn']} of {pin['owner']}"
        say(f"{'':<20} {held}, {counted(pin['entries_behind'], 'entry', 'entries')} behind it")
    for child in segment["children"]:
        if min(by_id[child]["parents"]) == segment["id"]:  # a merged one is drawn once
            _draw_segment(by_id[child], by_id, depth=depth + 1)


def _facts(segment: dict[str, Any]) -> str:
    owner = f"on {segment['owner']}" if segment["owner"] else "nobody owns it"
    if segment["error"]:
        return f"{owner}  {segment['error']}"
    end, readable = segment["last_confirmed"], segment["max_read_position"]
    return f"{owner}  {cell(segment['entries'])} entries to {end}, readable to {readable}"
