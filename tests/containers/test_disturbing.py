"""The faults do what they say: without that, surviving them would mean nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.containers.disturbing import deafen, device_of, hear, mend, spoil
from tests.containers.engine import ETCD_IMAGE, IMAGE, Container, Engine, why_no_faults
from txnstore.etcd.embedded_etcd import wait_etcd_ready

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(120),
    pytest.mark.skipif(why_no_faults() is not None, reason=str(why_no_faults())),
]
ALONE = [
    "etcd", "--data-dir=/var/lib/etcd/member", "--listen-client-urls=http://0.0.0.0:2379",
    "--advertise-client-urls=http://etcd:2379",
]  # fmt: skip
REACH = "import socket, sys; socket.create_connection((sys.argv[1], 2379), timeout=2)"


def reaches(one: Container, other: Container) -> bool:
    return one.run("python3", "-c", REACH, other.address)[0] == 0


def rules(one: Container) -> int:
    """Of its firewall."""
    return len([line for line in one.in_network("iptables", "-S").splitlines() if line.startswith("-A")])


async def test_partitions_cut_and_are_taken_back(engine: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "etcd"
    folder.mkdir()
    folder.chmod(0o777)
    member = engine.create("etcd", ETCD_IMAGE, ALONE, volumes={str(folder): "/var/lib/etcd"})
    client = engine.create("client", IMAGE, ["600"], entrypoint=["sleep"])
    for one in (member, client):
        one.start()
    await wait_etcd_ready(f"http://{member.address}:2379")

    def disturb() -> None:
        assert reaches(client, member)
        for deaf, other in ((member, client), (client, member)):
            deafen(deaf, other)
            assert not reaches(client, member)
            hear(deaf, other)
            hear(deaf, other)  # nothing is left to take back
        engine.disconnect(member)
        assert not reaches(client, member)
        engine.connect(member)
        assert reaches(client, member)
        spoil(member)
        assert rules(member) == 2
        assert member.in_network("tc", "qdisc", "show", "dev", device_of(member)).split()[1] in ("netem", "tbf")
        mend(member)
        assert rules(member) == 0

    await asyncio.to_thread(disturb)
