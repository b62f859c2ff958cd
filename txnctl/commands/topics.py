"""`txnctl topics …`"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from txnclient.connection.topic_layout import TopicLayout
from txnctl.commands.shared.asking import DEFAULT_URL, Url, Yes, asking, connected, expect_yes
from txnctl.commands.shared.drawing import draw
from txnctl.commands.shared.groups import group
from txnctl.commands.shared.output import Format, Output, counted, say, show_done, show_json, show_rows
from txnctl.commands.shared.running import run
from txnctl.commands.shared.typed import milliseconds, size
from txnctl.process.amounts import seconds_of, size_of
from txnwire.errors import InvalidArgument
from txnwire.names import SEGMENT_SCHEME

app = group("Topics and their segments.")

Topic = Annotated[str, typer.Argument(help="topic://tenant/namespace/name")]
RetentionMs = Annotated[
    int | None, milliseconds("--retention-ms", "--retention", help="retention may delete older messages", least=1)
]
RetentionBytes = Annotated[int | None, size(help="beyond so many bytes the oldest may go", least=1)]
TrimUndrained = Annotated[
    bool | None, typer.Option(help="retention also deletes messages that a subscription has not consumed yet")
]
Autoscale = Annotated[
    str | None,
    typer.Option(
        help='segments are split and merged with the load: "off", or thresholds as in '
        "max_segments=8,split_messages_per_s=5000; docs/operations.md lists them"
    ),
]
SegmentName = Annotated[
    str, typer.Argument(help="segment://tenant/namespace/topic/<lo>-<hi>-<id>, or without segment://")
]


@app.command()
def create(
    topic: Topic,
    segments: Annotated[int, typer.Option(min=1, help="active segments to begin with")] = 1,
    retention_ms: RetentionMs = None,
    retention_bytes: RetentionBytes = None,
    trim_undrained: TrimUndrained = None,
    autoscale: Autoscale = None,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Create a topic; fine if it exists with the same shape."""
    thresholds = None if autoscale is None else thresholds_of(autoscale)

    async def work() -> None:
        async with connected(url) as client:
            layout = await client.create_topic(
                topic,
                segments=segments,
                retention_ms=retention_ms,
                retention_bytes=retention_bytes,
                trim_undrained=trim_undrained,
                autoscale=thresholds,
            )
        said = f"{topic}: {counted(len(layout.segments), 'segment', 'segments')}, layout epoch {layout.epoch}"
        show_done(said, {"topic": topic, "segments": len(layout.segments), "epoch": layout.epoch}, output)

    run(work())


@app.command()
def update(
    topic: Topic,
    retention_ms: RetentionMs = None,
    retention_bytes: RetentionBytes = None,
    trim_undrained: TrimUndrained = None,
    autoscale: Autoscale = None,
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
        "autoscale": None if autoscale is None else thresholds_of(autoscale),
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
        said = ", ".join(f"{name} {_as_typed(value)}" for name, value in changes.items())
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
def split(
    segment: SegmentName,
    at: Annotated[
        str | None, typer.Option(help="first hash of the upper part, four hex digits; default: the middle")
    ] = None,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Split an active segment into two; producers and consumers follow, transactions continue."""
    upper = None if at is None else _hash_of(at)

    async def work() -> None:
        async with connected(url) as client:
            _show_layout(await client.split(segment, at=upper), f"{segment} split", [segment], output)

    run(work())


@app.command()
def merge(segment: SegmentName, neighbour: SegmentName, output: Output = Format.TABLE, url: Url = DEFAULT_URL) -> None:
    """Merge two adjacent active segments into one; producers and consumers follow, transactions continue."""

    async def work() -> None:
        async with connected(url) as client:
            layout = await client.merge(segment, neighbour)
            _show_layout(layout, f"{segment} and {neighbour} merged", [segment, neighbour], output)

    run(work())


def _hash_of(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        raise InvalidArgument(f"--at {text!r}: expected a hash in hex digits, as in the names of segments") from None


def _show_layout(layout: TopicLayout, said: str, parents: list[str], output: Format) -> None:
    """Shows what a change has made of the named segments."""
    paths = [name.removeprefix(SEGMENT_SCHEME) for name in parents]
    made = dict.fromkeys(
        child
        for one in layout.segments.values()
        if one.path in paths
        for child in one.children
        if child in layout.segments
    )
    children = [layout.segments[child].path for child in made]
    names = " and ".join(path.rpartition("/")[2] for path in children)
    answer = {"topic": layout.topic, "epoch": layout.epoch, "parents": paths, "children": children}
    show_done(f"{said} into {names}, layout epoch {layout.epoch}", answer, output)


def thresholds_of(text: str) -> str | dict[str, Any]:
    """Parses a policy as people type it: `off`, or `name=number` with commas between. Raises `InvalidArgument`."""
    if text == "off":
        return text
    thresholds: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        try:
            thresholds[name.strip()] = _threshold(name.strip(), value)
        except (ValueError, InvalidArgument):
            raise _no_thresholds(part) from None
        if not equals:
            raise _no_thresholds(part)
    return thresholds


def _threshold(name: str, value: str) -> float:
    if "bytes" in name:
        return size_of(value)
    if name.endswith("_s") and "per_s" not in name:
        return seconds_of(value)
    return float(value) if "." in value or "e" in value else int(value)


def _as_typed(value: Any) -> str:
    """A policy's new value, in the words of the command line."""
    if value is None:
        return "dropped"
    return ",".join(f"{name}={number}" for name, number in value.items()) if isinstance(value, dict) else str(value)


def _no_thresholds(part: str) -> InvalidArgument:
    return InvalidArgument(
        f"--autoscale {part!r}: expected off, or name=number,name=number; --drop autoscale is back to the defaults"
    )


@app.command()
def describe(
    topic: Topic,
    everything: Annotated[
        bool, typer.Option("--all", help="also segments sealed long ago that no subscription needs")
    ] = False,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """The topic's segments as a DAG: ranges, states, owners, load, backlogs, which transactions hold readers back."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask("topics.describe", topic=topic)
        if output is Format.JSON:
            show_json(answer)
        else:
            for line in draw(answer, everything=everything):
                say(line)

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
        columns = ["segment", "state", "owner", "entries", "last_confirmed", "max_read_position", "open_transactions"]
        columns += ["producers", "readers", "subscriptions", "clean_up_backlog"]
        print(answer["topic"])
        show_rows(rows, columns + ["error"] * any("error" in row for row in rows), output, empty="no segments")

    run(work())
