"""`txnctl keys …`, and the same as `txnctl transactions list-transaction-keys|…` (003, "CLI Commands")."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from txnctl.commands.shared.asking import DEFAULT_URL, Url, Yes, asking, expect_yes
from txnctl.commands.shared.groups import group
from txnctl.commands.shared.output import Format, Output, show_done, show_json, show_rows
from txnctl.commands.shared.running import run
from txnwire.transport.serving import ANONYMOUS

app = group("Transaction keys: list their holders, and delete one.")

Key = Annotated[str, typer.Argument(help="the transaction key, as clients connect with it")]
Owner = Annotated[str, typer.Option(help="whose key it is; without authentication everybody is anonymous")]

COLUMNS = ["key", "owner", "epoch", "state", "held_s", "begins", "txn", "txn_state", "txn_age_s"]


def list_keys(
    owner: Annotated[str | None, typer.Option(help="only of this owner")] = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="also those that were deleted")] = False,
    limit: Annotated[int, typer.Option(min=1, help="at most so many")] = 1000,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Transaction keys, their epochs, and the newest transaction of each holder."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask("keys.list", owner=owner, deleted=deleted, limit=limit)
        columns = COLUMNS + ["error"] * any("error" in row for row in answer["keys"])
        show_rows(answer["keys"], columns, output, empty="there are no transaction keys")
        if sum("error" not in row for row in answer["keys"]) == limit:
            print(f"the first {limit:,} only: --limit shows more", file=sys.stderr)

    run(work())


def get_key(key: Key, owner: Owner = ANONYMOUS, output: Output = Format.TABLE, url: Url = DEFAULT_URL) -> None:
    """One transaction key: its epoch, and the newest transaction of its holder."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask("keys.get", key=key, owner=owner)
        if output is Format.JSON:
            show_json(answer)
        else:
            show_rows([answer], COLUMNS, output, empty="")

    run(work())


def delete_key(
    key: Key, owner: Owner = ANONYMOUS, yes: Yes = False, output: Output = Format.TABLE, url: Url = DEFAULT_URL
) -> None:
    """Fence the holder of a key and abort its open transaction. A new holder gets a higher epoch."""
    expect_yes(f"fence the holder of transaction key {key} of {owner}?", yes=yes)

    async def work() -> None:
        async with asking(url) as cluster:
            found = await cluster.ask("keys.get", key=key, owner=owner)
            answer = await cluster.ask("keys.delete", key=key, owner=owner, epoch=found["epoch"])
        aborted = f", {found['txn']} aborted" if found["txn_state"] == "OPEN" else ""
        show_done(f"{key}: deleted{aborted}", answer, output)

    run(work())


def also_as_commands_of(transactions: typer.Typer) -> None:
    """Also registers the commands under the names of 003."""
    for name, command in (("list", list_keys), ("get", get_key), ("delete", delete_key)):
        app.command(name=name)(command)
        plural = "keys" if name == "list" else "key"
        transactions.command(name=f"{name}-transaction-{plural}", rich_help_panel="The same as `txnctl keys …`")(
            command
        )
