"""`txnctl dev`'s cluster with one server more: one of two coordinators and controllers is killed at a time."""

from __future__ import annotations

from dataclasses import replace

from txnctl.launch.dev import CONTROL, DevCluster
from txnctl.launch.supervisor import Child
from txnstore.etcd.embedded_etcd import free_port

SERVERS = (CONTROL, "server-2")


def add_second_server(cluster: DevCluster) -> None:
    spec, address = cluster.children[CONTROL].spec, f"127.0.0.1:{free_port()}"
    command = list(spec.command)
    for option, value in (("--id", SERVERS[1]), ("--listen", address), ("--admin-listen", "127.0.0.1:0")):
        command[command.index(option) + 1] = value
    log_path = spec.log_path.with_name(f"{SERVERS[1]}.log")
    cluster.children[SERVERS[1]] = Child(replace(spec, name=SERVERS[1], command=command, log_path=log_path))


def url(cluster: DevCluster) -> str:
    second = cluster.children[SERVERS[1]].spec.command
    return f"{cluster.url},{second[second.index('--listen') + 1]}"
