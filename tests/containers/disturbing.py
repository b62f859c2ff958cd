"""Partitions and bad networks: rules inside the network of one container."""

from __future__ import annotations

import subprocess

from tests.containers.engine import Container

LOSS = 0.05
LIMITED = ("tbf", "rate", "2mbit", "burst", "32kbit", "latency", "400ms")


def deafen(one: Container, *others: Container) -> None:
    """One way: `one` hears nothing of the others, while its own packets reach them."""
    for other in others:
        one.in_network("iptables", "-I", "INPUT", "-s", other.address, "-j", "DROP")


def hear(one: Container, *others: Container) -> None:
    """Takes `deafen` back; a container that was started anew since then has forgotten it by itself."""
    for other in others:
        try:
            one.in_network("iptables", "-D", "INPUT", "-s", other.address, "-j", "DROP")
        except subprocess.CalledProcessError as error:
            if error.returncode != 1:
                raise


def dropped(one: Container) -> int:
    """Packets that it did not hear, by the rules that hold now."""
    listed = one.in_network("iptables", "-n", "-v", "-x", "-L", "INPUT").splitlines()
    return sum(int(line.split()[0]) for line in listed if " DROP " in line)


def spoil(one: Container) -> None:
    """A network that loses packets both ways, and is slow where the kernel can make it so."""
    for chain in ("INPUT", "OUTPUT"):
        one.in_network(
            "iptables", "-I", chain, "-m", "statistic", "--mode", "random", "--probability", str(LOSS), "-j", "DROP"
        )
    device = device_of(one)
    try:
        one.in_network("tc", "qdisc", "add", "dev", device, "root", "netem", "delay", "40ms", "20ms")
    except subprocess.CalledProcessError:  # a kernel without that discipline
        one.in_network("tc", "qdisc", "add", "dev", device, "root", *LIMITED)


def device_of(one: Container) -> str:
    """The name of its interface: another one once it was taken off its network."""
    return one.in_network("ip", "-o", "-4", "addr", "show", "to", one.address).split()[1]


def mend(one: Container) -> None:
    for chain in ("INPUT", "OUTPUT"):
        one.in_network("iptables", "-F", chain)
    try:
        one.in_network("tc", "qdisc", "del", "dev", device_of(one), "root")
    except subprocess.CalledProcessError as error:
        if "No such file" not in error.stderr and "handle of zero" not in error.stderr:
            raise
