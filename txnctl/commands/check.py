"""`txnctl check`: reads etcd and ledgers and lists every broken invariant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from txnctl.commands.shared.beside import settings_beside
from txnctl.commands.shared.output import Format, Output, show_json
from txnctl.commands.shared.running import run
from txnctl.process import logs

if TYPE_CHECKING:
    from txnctl.checking.everything import Checked


def check(
    etcd: Annotated[str | None, typer.Option(help="etcd endpoints, comma-separated")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where ledgers are kept")] = None,
    etcd_prefix: Annotated[str | None, typer.Option(help="put before every key")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with any of the settings")] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="after a restore of etcd or the data folder; stop all first")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """List every broken invariant of etcd and the ledgers; exit 1 if any is. Changes nothing, may run any time.

    Without --etcd and --data-dir it looks where a server on this machine, or at TXN_URL, works.

    With --repair: if etcd was restored from a backup, or the data folder is older than etcd, first do what must be done
    before anybody works with them."""
    from txnctl.checking.everything import check_everything

    logs.configure("critical")  # logs nothing less: faults are reported as findings here

    async def work() -> int:
        settings = await settings_beside(config, etcd=etcd, data_dir=data_dir, etcd_prefix=etcd_prefix)
        with Console(stderr=True).status("reading etcd") as status:
            checked = await check_everything(settings, lambda what: status.update(f"reading {what}"), repair=repair)
        show_checked(checked, output, repair=repair)
        return 1 if checked.findings else 0

    run(work())


def show_checked(checked: Checked, output: Format, *, repair: bool, also: Mapping[str, object] | None = None) -> None:
    """`also`: further fields of the JSON object."""
    revision, findings, repaired, reports = checked
    if output is Format.JSON:
        broken = [{"rule": rule, "finding": text} for rule, text in findings]
        done = [{"what": what, "finding": text} for what, text in repaired]
        show_json({**(also or {}), "revision": revision, "broken": broken} | ({"repaired": done} if repair else {}))
        return
    for what, text in repaired:
        print(f"repair: {what}: {text}")
    if repair and not repaired:
        print("repair: nothing to do: as far as is known etcd was not restored, and the data folder lacks nothing")
        if reports is not None:  # ▲ that of a repair which ended, and whose check did not, was never printed
            print(f"repair: {reports} has what earlier repairs did")
    for rule, text in findings:
        print(f"{rule}: {text}")
    print(f"{len(findings)} broken invariants at revision {revision}" if findings else f"sound at revision {revision}")
