"""`txnctl snapshot`"""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from txnclient.reading.snapshot import Snapshot
from txnctl.commands.shared.asking import DEFAULT_URL, Url, connected
from txnctl.commands.shared.output import Format, Output, say, show_json, show_rows
from txnctl.commands.shared.running import run


def snapshot(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", help="topic://tenant/namespace/name")],
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Print a snapshot of some topics: how far each segment is decided. With -o json: a start or end for a reader."""

    async def work() -> None:
        async with connected(url) as client:
            taken = await client.snapshot(topics)
        if output is Format.JSON:
            show_json(msgspec.json.decode(taken.to_json()))
        else:
            _show(taken)

    run(work())


def _show(taken: Snapshot) -> None:
    rows = [
        {"segment": path, "resolved": str(bounds.resolved), "end": str(bounds.end)}
        for path, bounds in taken.segments.items()
    ]
    show_rows(rows, ["segment", "resolved", "end"], Format.TABLE, empty="the topics have no segments")
    say(f"revision {taken.revision}, {len(taken.pending)} transactions pending")
