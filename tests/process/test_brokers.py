"""Several broker processes: who dies, leaves, comes back or only sleeps costs a pause, and never a message."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import txnclient
from tests.process import pausing_broker
from tests.process.traffic import Traffic, keys_of
from tests.processes import kill, process_cluster, read_all
from tests.waiting import until_answer
from txnctl.launch.dev import DevCluster
from txnstore import keys, records
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnwire.clock import SystemClock, SystemRandom

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

TOPIC = "topic://public/default/shared"
ROOT = Path(__file__).parents[2]
LEASE_S = 15.0
"""So long that half of it is no hand-over, also on a busy machine."""


@asynccontextmanager
async def store_of(cluster: DevCluster) -> AsyncIterator[EtcdStore]:
    settings = EtcdSettings(endpoints=(cluster.etcd_url,), development=True)
    store = await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())
    try:
        yield store
    finally:
        await store.close()


async def owners(store: EtcdStore) -> dict[str, str]:
    """Segment path → broker."""
    found = await store.range(keys.OWNER, keys.prefix_end(keys.OWNER))
    return {
        record.key[len(keys.OWNER) :].decode(): records.decode(records.OwnerRecord, record.value, key=record.key).broker
        for record in found.records
    }


async def wait_owners(
    store: EtcdStore, wanted: Callable[[Counter[str]], bool], *, timeout_s: float = 40.0
) -> dict[str, str]:
    return await until_answer(
        lambda: owners(store), lambda found: wanted(Counter(found.values())), "the wanted owners", within_s=timeout_s
    )


async def test_whoever_dies_leaves_or_comes_back_costs_a_pause_and_no_message(tmp_path: Path) -> None:
    """Seven segments on three brokers: SIGTERM of one, SIGKILL of another; both come back, and everything lies evenly
    again. A hand-over takes much less than a lease, a take-over one lease and little more."""
    async with (
        process_cluster(tmp_path, brokers=3, flags=("--lease-ttl-s", f"{LEASE_S:g}")) as cluster,
        store_of(cluster) as store,
        txnclient.connect(cluster.url, timeout=60.0) as client,
        Traffic(client, TOPIC, segments=7) as traffic,
    ):
        await wait_owners(store, lambda found: sorted(found.values()) == [2, 2, 3])

        begun_s = time.monotonic()
        await cluster.children["broker-1"].stop()
        await wait_owners(store, lambda found: sorted(found.values()) == [3, 4] and not found["broker-1"])
        await traffic.wait_flowing()
        for side in ("sent", "received"):
            assert traffic.longest_silence_s(side, since_s=begun_s) < LEASE_S / 2, side

        begun_s = time.monotonic()
        await cluster.children["broker-2"].stop(signal.SIGKILL)
        await wait_owners(store, lambda found: found == {"broker-3": 7})
        await traffic.wait_flowing()
        for side in ("sent", "received"):
            assert LEASE_S / 2 < traffic.longest_silence_s(side, since_s=begun_s) < LEASE_S + 5, side

        for name in ("broker-1", "broker-2"):
            await cluster.children[name].start()
        begun_s = time.monotonic()
        placed = await wait_owners(store, lambda found: sorted(found.values()) == [2, 2, 3])
        await traffic.wait_flowing()
        assert traffic.longest_silence_s("sent", since_s=begun_s) < LEASE_S / 2
        await traffic.wait_flowing()
        assert await owners(store) == placed
        await traffic.finish()


async def test_a_broker_that_is_started_again_serves_before_its_lease_ends(tmp_path: Path) -> None:
    """Alone, so nobody else can take over: it revokes its predecessor's lease."""
    async with (
        process_cluster(tmp_path, flags=("--lease-ttl-s", "30")) as cluster,
        txnclient.connect(cluster.url, timeout=60.0) as client,
        Traffic(client, TOPIC, segments=4) as traffic,
    ):
        begun_s = time.monotonic()
        await kill(cluster, "broker-1")
        await traffic.wait_flowing()
        assert traffic.longest_silence_s("sent", since_s=begun_s) < 15
        await traffic.finish()


async def test_l3_paused_between_op_record_and_append_a_broker_wakes_fenced(tmp_path: Path) -> None:
    """Its segments are served by another one; what it still wanted to append is there once, from its successor; readers
    that were attached to it miss nothing, and get nothing twice."""
    pause, keys_used = tmp_path / "pause", keys_of(4)
    adapt = partial(_pausing, name="broker-1", pause=pause)
    flags = ("--lease-ttl-s", "3")
    async with (
        process_cluster(tmp_path / "cluster", brokers=2, flags=flags, before_start=adapt) as cluster,
        store_of(cluster) as store,
        txnclient.connect(cluster.url, timeout=60.0) as client,
        txnclient.connect(cluster.url) as onlooker,
    ):
        await client.create_topic(TOPIC, segments=4)
        await wait_owners(store, lambda found: found == {"broker-1": 2, "broker-2": 2})
        reader = await onlooker.reader(TOPIC, start="earliest")
        producer = await client.producer(TOPIC)
        async with client.transaction(timeout=60) as txn:
            for key in keys_used:
                await producer.send(f"{key} before".encode(), key=key, txn=txn)
        pause.touch()
        txn = await client.begin(timeout=60)
        sends = [producer.send_nowait(f"{key} paused".encode(), key=key, txn=txn) for key in keys_used]
        await asyncio.gather(*sends)  # two of them are stored by the successor
        assert not pause.exists(), "it has paused"
        assert set((await owners(store)).values()) == {"broker-2"}
        await txn.commit()
        cluster.children["broker-1"].signal(signal.SIGCONT)
        expected = sorted(f"{key} {when}".encode() for key in keys_used for when in ("before", "paused"))
        assert sorted([(await reader.receive(timeout=30)).value for _ in expected]) == expected
        await wait_owners(store, lambda found: found == {"broker-1": 2, "broker-2": 2})  # it is one of them again
        await producer.send(b"last", key=keys_used[0])
        assert (await reader.receive(timeout=30)).value == b"last"
        assert sorted(await read_all(client, TOPIC)) == sorted([*expected, b"last"])
        await producer.close()
        await reader.close()


def _pausing(cluster: DevCluster, name: str, pause: Path) -> None:
    child = cluster.children[name]
    command = list(child.spec.command)
    command[command.index("txnctl")] = pausing_broker.__name__
    environment = {pausing_broker.PAUSE_FILE: str(pause), "PYTHONPATH": str(ROOT)}
    child.spec = replace(child.spec, command=command, environment=environment)


async def test_a_broker_pointed_at_another_folder_says_so_and_ends(tmp_path: Path) -> None:
    async with process_cluster(tmp_path / "cluster") as cluster:
        child = cluster.children["broker-1"]
        await child.stop()
        command = list(child.spec.command)
        command[command.index("--data-dir") + 1] = str(tmp_path / "elsewhere")
        refused = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        output, _ = await asyncio.wait_for(refused.communicate(), 30)
        assert refused.returncode == 1
        assert "all brokers need the same one (data_dir)" in output.decode()
