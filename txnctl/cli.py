"""The commands of `txnctl`. A command imports slow libraries itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import structlog
import typer
import uvloop

from txnctl.commands import (
    backups,
    bench,
    brokers,
    check,
    health,
    keys,
    names,
    piping,
    reading,
    snapshots,
    spark,
    subscriptions,
    topics,
    transactions,
)
from txnctl.commands.shared.groups import group
from txnctl.commands.shared.output import Format, Output, show_rows
from txnctl.commands.shared.running import run
from txnctl.commands.shared.typed import seconds, size
from txnctl.process import logs
from txnctl.process.settings import ServerSettings, effective, load, unknown_in_environment

app = group("txnstore: transactions for streams that live in metadata, not in the data.")


app.add_typer(topics.app, name="topics")
app.add_typer(subscriptions.app, name="subscriptions")
app.add_typer(transactions.app, name="transactions")
app.add_typer(keys.app, name="keys")
keys.also_as_commands_of(transactions.app)
app.add_typer(names.app, name="names")
app.add_typer(brokers.app, name="brokers")
app.add_typer(bench.app, name="bench")
app.add_typer(spark.app, name="spark")
app.command()(check.check)
app.command()(backups.backup)
app.command()(backups.restore)
app.command()(health.health)
app.command()(piping.produce)
app.command()(piping.consume)
app.command()(reading.read)
topics.app.command()(reading.peek)
app.command()(snapshots.snapshot)


@app.command()
def serve(
    roles: Annotated[str | None, typer.Option(help="some of coordinator,controller,broker,admin; default: all")] = None,
    etcd: Annotated[str | None, typer.Option(help="etcd endpoints, comma-separated")] = None,
    etcd_prefix: Annotated[str | None, typer.Option(help="put before every key")] = None,
    etcd_user: Annotated[
        str | None, typer.Option(help="etcd user; the password comes from TXN_ETCD_PASSWORD or the file")
    ] = None,
    etcd_ca: Annotated[
        Path | None, typer.Option(help="PEM file of the authority that signed etcd's certificate")
    ] = None,
    etcd_cert: Annotated[Path | None, typer.Option(help="PEM file: our certificate towards etcd")] = None,
    etcd_key: Annotated[Path | None, typer.Option(help="PEM file: its private key")] = None,
    etcd_quota_bytes: Annotated[
        int | None, size(help="etcd's --quota-backend-bytes, which it does not tell before 3.6")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="where ledgers are kept")] = None,
    listen: Annotated[str | None, typer.Option(help="host:port to serve")] = None,
    advertise: Annotated[
        str | None, typer.Option(help="host:port that others connect to; default: the bound address")
    ] = None,
    admin_listen: Annotated[
        str | None, typer.Option(help="host:port of /healthz, /readyz and /metrics; default: any port; off: none")
    ] = None,
    id: Annotated[str | None, typer.Option(help="name of this server, unique in the cluster")] = None,
    tcids: Annotated[int | None, typer.Option(help="coordinator ids of the whole cluster")] = None,
    lease_ttl_s: Annotated[float | None, seconds(help="how long a dead server's work stays unowned")] = None,
    header_retention_s: Annotated[float | None, seconds(help="how long decided headers are kept")] = None,
    max_transaction_timeout_s: Annotated[float | None, seconds(help="longest timeout a client may ask for")] = None,
    client_grace_s: Annotated[float | None, seconds(help="after how long a vanished client is given up")] = None,
    consumer_grace_s: Annotated[
        float | None, seconds(help="after how long a vanished consumer's segments go to others")
    ] = None,
    clock_warn_s: Annotated[
        float | None, seconds(help="warn where the wall clock differs by more from the cluster's")
    ] = None,
    ledger_roll_bytes: Annotated[int | None, size(help="a ledger file is closed at this size")] = None,
    min_free_bytes: Annotated[int | None, size(help="with less free on the disk, sends are refused")] = None,
    autoscale: Annotated[
        bool | None, typer.Option("--autoscale/--no-autoscale", help="split and merge segments with the load")
    ] = None,
    max_connections: Annotated[int | None, typer.Option(help="served at once; one more is refused")] = None,
    max_open_transactions: Annotated[
        int | None, typer.Option(help="of each coordinator id; beyond it a begin is refused")
    ] = None,
    names_keep: Annotated[
        str | None, typer.Option(help="how long outcomes of names are known, as 7d or 7d,NAMESPACE=90d")
    ] = None,
    names_max: Annotated[
        str | None, typer.Option(help="names of a namespace, as 2000000 or 2000000,NAMESPACE=100000")
    ] = None,
    config: Annotated[Path | None, typer.Option(envvar="TXN_CONFIG", help="TOML file with any of the settings")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error")] = None,
    allow_development_etcd: Annotated[
        bool | None, typer.Option("--allow-development-etcd", help="accept etcd 3.5.0-3.5.2, which can lose data")
    ] = None,
) -> None:
    """One server process. Settings: --config file, then environment TXN_…, then flags; see `txnctl settings`."""
    from txnctl.process.serve import serve as serve_until_stopped

    given = {name: value for name, value in locals().items() if name in ServerSettings.model_fields}
    settings = load(config, **given)
    logs.configure(settings.log_level)
    for line in unknown_in_environment():
        structlog.get_logger().warning("environment", about=line)
    uvloop.run(serve_until_stopped(settings))


@app.command(name="settings")
def show_settings(
    config: Annotated[Path | None, typer.Option(envvar="TXN_CONFIG", help="TOML file with any of the settings")] = None,
    output: Output = Format.TABLE,
) -> None:
    """What `serve` would run with, and where each setting comes from: file, environment or default."""
    found = effective(config)
    for line in unknown_in_environment():
        print(f"txnctl: {line}", file=sys.stderr)
    rows = [{"setting": one.setting, "value": one.value, "source": one.source} for one in found]
    show_rows(rows, ["setting", "value", "source"], output, empty="no settings")


@app.command()
def dev(
    data_dir: Annotated[Path, typer.Option(help="where everything is kept")] = Path("txnstore-data"),
    listen: Annotated[str, typer.Option(help="host:port for clients (port 0: any)")] = "127.0.0.1:6650",
    admin: Annotated[
        str, typer.Option(help="host:port of /healthz, /readyz, /metrics (port 0: any)")
    ] = "127.0.0.1:6660",
    etcd_port: Annotated[
        int, typer.Option(min=0, max=65535, help="client port of the etcd that is started (0: any)")
    ] = 2379,
    brokers: Annotated[int, typer.Option(min=1, help="broker processes")] = 1,
) -> None:
    """A whole cluster on one machine, with its own etcd. Prints one line when ready; Ctrl-C stops everything."""
    from txnctl.launch.dev import DevSettings, run_until_cancelled

    logs.configure("warning")
    settings = DevSettings(data_dir=data_dir, listen=listen, admin=admin, etcd_port=etcd_port, brokers=brokers)
    run(run_until_cancelled(settings), terminated=0)


@app.command()
def demo(
    keep: Annotated[Path | None, typer.Option(help="keep the cluster's data in this folder")] = None,
    workers: Annotated[int, typer.Option(min=2, help="worker processes, without --spark")] = 3,
    flights: Annotated[int | None, typer.Option(min=1000, help="only the first so many flights")] = None,
    spark: Annotated[bool, typer.Option("--spark", help="let Spark do the work, and kill it (needs Java 17)")] = False,
) -> None:
    """The main job on real data: 336,776 flights consumed, transformed and produced in transactions, under kills."""
    logs.configure("error")
    if spark:
        from txnctl.demo.spark.demo import SparkDemoSettings, run_spark_demo

        run(run_spark_demo(SparkDemoSettings(keep=keep, flights=flights)))
        return
    from txnctl.demo.demo import DemoSettings, run_demo

    run(run_demo(DemoSettings(keep=keep, workers=workers, flights=flights)))
