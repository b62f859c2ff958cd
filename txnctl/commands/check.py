"""`txnctl check`: reads etcd and ledgers and lists every broken invariant."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from segments.file_ledger import FileLedgerStore
from txnctl.checking.invariants import broken_invariants
from txnctl.checking.ledgers import broken_ledgers
from txnctl.checking.picture import take_picture
from txnctl.commands.output import Format, Output, show_json
from txnctl.commands.running import run
from txnctl.serve import etcd_settings
from txnctl.settings import load
from txnstore.etcd_store import EtcdStore
from txnwire.clock import SystemClock, SystemRandom


def check(
    etcd: Annotated[str | None, typer.Option(help="etcd endpoints, comma-separated")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where ledgers are kept")] = None,
    etcd_prefix: Annotated[str | None, typer.Option(help="put before every key")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with any of the settings")] = None,
    output: Output = Format.TABLE,
) -> None:
    """List every broken invariant of etcd and the ledgers; exit 1 if any is. Changes nothing, may run any time."""
    settings = load(config, etcd=etcd, data_dir=data_dir, etcd_prefix=etcd_prefix, allow_development_etcd=True)

    async def work() -> int:
        clock, console = SystemClock(), Console(stderr=True)
        store = await EtcdStore.connect(etcd_settings(settings), clock=clock, random=SystemRandom())
        ledgers = FileLedgerStore(settings.data_dir)
        try:
            with console.status("reading etcd") as status:
                picture = await take_picture(store)
                findings = broken_invariants(picture, now_ms=clock.wall_ms())
                async for finding in broken_ledgers(picture, ledgers, lambda text: status.update(f"reading {text}")):
                    findings.append(finding)
        finally:
            await ledgers.close()
            await store.close()
        _show(findings, picture.revision, output)
        return 1 if findings else 0

    run(work())


def _show(findings: list[tuple[str, str]], revision: int, output: Format) -> None:
    if output is Format.JSON:
        show_json({"revision": revision, "broken": [{"rule": rule, "finding": text} for rule, text in findings]})
        return
    for rule, text in findings:
        print(f"{rule}: {text}")
    print(f"{len(findings)} broken invariants at revision {revision}" if findings else f"sound at revision {revision}")
