"""`txnctl check`: reads etcd and ledgers and lists every broken invariant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from txnctl.commands.output import Format, Output, show_json
from txnctl.commands.running import run
from txnctl.settings import load


def check(
    etcd: Annotated[str | None, typer.Option(help="etcd endpoints, comma-separated")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where ledgers are kept")] = None,
    etcd_prefix: Annotated[str | None, typer.Option(help="put before every key")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with any of the settings")] = None,
    output: Output = Format.TABLE,
) -> None:
    """List every broken invariant of etcd and the ledgers; exit 1 if any is. Changes nothing, may run any time."""
    from txnctl.checking.everything import check_everything

    settings = load(config, etcd=etcd, data_dir=data_dir, etcd_prefix=etcd_prefix, allow_development_etcd=True)

    async def work() -> int:
        with Console(stderr=True).status("reading etcd") as status:
            revision, findings = await check_everything(settings, lambda what: status.update(f"reading {what}"))
        _show(findings, revision, output)
        return 1 if findings else 0

    run(work())


def _show(findings: list[tuple[str, str]], revision: int, output: Format) -> None:
    if output is Format.JSON:
        show_json({"revision": revision, "broken": [{"rule": rule, "finding": text} for rule, text in findings]})
        return
    for rule, text in findings:
        print(f"{rule}: {text}")
    print(f"{len(findings)} broken invariants at revision {revision}" if findings else f"sound at revision {revision}")
