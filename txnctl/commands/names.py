"""`txnctl names …`"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from txnctl.commands.shared.asking import DEFAULT_URL, Url, Yes, asking, expect_yes
from txnctl.commands.shared.groups import group
from txnctl.commands.shared.output import Format, Output, show_done, show_rows
from txnctl.commands.shared.running import run
from txnwire.errors import InvalidArgument, InvalidTxnState, NameNotFound

app = group("Names of transactions: which are kept, and forgetting some.")

COLUMNS = ["name", "txn", "state", "ended_s", "known_for_s", "keep_newest"]

PASSES = 3
"""Over all names of a prefix. One request spares the newest commits that it has read; the next pass deletes them."""


@app.command(name="list")
def list_names(
    prefix: Annotated[str, typer.Option(help="names that start with this")] = "",
    namespace: Annotated[
        str | None, typer.Option(help="names with this before their first /; '': those without a /")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="at most so many")] = 1000,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Names that are kept: how their last transaction ended, and for how long that is still known."""

    async def work() -> None:
        async with asking(url) as cluster:
            answer = await cluster.ask("names.list", prefix=prefix, namespace=namespace, limit=limit)
        columns = COLUMNS + ["note"] * any(row.get("note") for row in answer["names"])
        columns += ["error"] * any("error" in row for row in answer["names"])
        show_rows(answer["names"], columns, output, empty="no such names")
        if sum("error" not in row for row in answer["names"]) == limit:
            print(f"the first {limit:,} only: --limit shows more, --prefix others", file=sys.stderr)

    run(work())


@app.command()
def delete(
    name: Annotated[str | None, typer.Argument(help="the name, as begin(name=…) has it")] = None,
    prefix: Annotated[str | None, typer.Option(help="all names that start with this, instead of one")] = None,
    yes: Yes = False,
    output: Output = Format.TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Forget how transactions of these names ended. A program that begins such a name again does its work again."""
    if (name is None) == (prefix is None):
        raise typer.BadParameter("name one, or a prefix of several with --prefix")
    if prefix == "":  # ▲ a variable of a script that is not set: jobs of every namespace would run again
        raise InvalidArgument(
            "--prefix is empty, so every name of the cluster would be deleted: name the beginning of the names"
        )
    what = f"the name {name}" if name is not None else f"all names that start with {prefix!r}"
    expect_yes(f"forget {what}? A program that begins one again does its work again", yes=yes)

    async def work() -> None:
        async with asking(url) as cluster:
            if name is not None:
                answer = await cluster.ask("names.delete", name=name)
                _expect_deleted(name, answer)
            else:
                answer = await _delete_all(cluster, prefix or "")
        show_done(_said(answer, name), answer, output)

    run(work())


async def _delete_all(cluster: Any, prefix: str) -> dict[str, Any]:
    total = {"deleted": 0}
    for _ in range(PASSES):
        told: dict[str, Any] = {"after": None}
        requests, before = 0, ""
        left = {"open": 0, "kept": 0, "changed": 0}
        while requests == 0 or told["after"] not in (None, before):
            before = told["after"]
            told = await cluster.ask("names.delete", prefix=prefix, after=told["after"])
            requests += 1
            total["deleted"] += told["deleted"]
            left = {each: count + told[each] for each, count in left.items()}
        if (requests == 1 or not left["kept"]) and not left["changed"]:
            break
    return {**total, **left}


def _expect_deleted(name: str, answer: dict[str, Any]) -> None:
    if answer["open"]:
        raise InvalidTxnState(
            f"the transaction of {name!r} is open: commit or abort it first (txnctl transactions describe --name)"
        )
    if answer["kept"]:
        raise InvalidTxnState(
            f"{name!r} stays: its begin asked for keep_newest, and it is the newest commit of its prefix"
        )
    if answer["changed"]:
        raise InvalidTxnState(f"{name!r} was changed meanwhile: look again (txnctl names list --prefix), then repeat")
    if not answer["deleted"]:
        raise NameNotFound(f"no transaction is known by the name {name!r}: never begun, or forgotten")


def _said(answer: dict[str, Any], name: str | None) -> str:
    if name is not None:
        return f"{name}: forgotten"
    said = f"{answer['deleted']:,} names forgotten"
    said += f", {answer['open']:,} are open and stay" if answer["open"] else ""
    said += f", {answer['kept']:,} stay as the newest of their prefix (keep_newest)" if answer["kept"] else ""
    said += f", {answer['changed']:,} could not be read or changed meanwhile: repeat" if answer["changed"] else ""
    return said
