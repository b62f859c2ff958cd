"""`txnctl brokers …`"""

from __future__ import annotations

from txnctl.commands.shared.asking import DEFAULT_URL, Url, asking
from txnctl.commands.shared.groups import group
from txnctl.commands.shared.output import Format, Output, show_rows
from txnctl.commands.shared.running import run

app = group("Brokers: which are alive and which segments each serves.")


@app.command(name="list")
def list_brokers(output: Output = Format.TABLE, url: Url = DEFAULT_URL) -> None:
    """Registered brokers, their segments, and where each serves /metrics."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask("brokers.list")
        rows = answer["brokers"]
        columns = ["broker", "pid", "address", "segments", "taking", "failed", "connections", "uptime_s", "admin"]
        columns += ["version"]
        for column in ("not_ready", "error"):
            columns += [column] * any(row.get(column) for row in rows)
        show_rows(rows, columns, output, empty="no broker is registered")

    run(work())
