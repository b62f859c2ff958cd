"""Alerts and dashboards beside a release that runs: each alert fires once what it warns of is done, and stops once that
is mended as docs/operations.md says. `TaskEnded` warns of a defect, which cannot be done: `test_alert_rules` has it."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import txnclient
from tests.charts.kubelet import Kubelet, RunningPod, running_release
from tests.charts.prometheus import WINDOW, Prometheus, groups, hastened, program, running_prometheus
from tests.charts.rendering import NAMESPACE, of_kind, render
from tests.etcd_members import Tap
from tests.waiting import until_answer

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(900),
    pytest.mark.skipif("ALERTS" not in os.environ, reason="it takes five minutes: make alerts"),
]

MONITORED: dict[str, Any] = {
    "settings": {
        "min_free_bytes": 1048576,
        "lease_ttl_s": 3,
        "header_retention_s": 2,
        "client_grace_s": 2,
        "names_max": "2000000, crowded=10",
    },
    "coordinator": {"replicas": 1},
    "controller": {"replicas": 1},
    "broker": {"replicas": 2, "persistence": {"accessMode": "ReadWriteMany"}},
    "etcd": {"replicas": 1},
    "serviceMonitor": {"enabled": True},
    "prometheusRule": {"enabled": True},
    "dashboards": {"enabled": True},
}
THRESHOLDS = {
    "ReadersHeldBack": ("> 600", "> 2"),
    "SubscriptionBehind": ("> 100000", "> 50"),
    "SubscriptionLate": ("> 3600", "> 5"),
    "CollectionStuck": ("> 100", "> 5"),
    "SweepBehind": ("> 1000", "> 5"),
}
"""What would take a load of hours to reach."""
FILLING_BYTES = 1_400_000
TOPIC = "topic://public/alerts/load"
SLOW_SYNC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
    if (access("%s", F_OK) == 0) usleep(300000);
    return real(fd);
}
"""
"""A disk that takes 0.3 s for a sync, while a file is there."""


@asynccontextmanager
async def under_load(client: txnclient.Client) -> AsyncIterator[None]:
    """Some twenty transactions a second over all segments, whatever happens to them. Each is open for a while, so that
    some end while brokers stand still."""

    async def work(number: int) -> None:
        async with await client.producer(TOPIC) as producer:
            for count in range(1_000_000):
                with suppress(txnclient.TxnError, TimeoutError):
                    async with asyncio.timeout(10):
                        txn = await client.begin(timeout=5.0)
                        await producer.send(b"load", key=f"{number}-{count}", txn=txn)
                        await asyncio.sleep(0.2)
                        await (txn.abort() if count % 4 == 3 else txn.commit())

    tasks = [asyncio.create_task(work(number)) for number in range(4)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def stopping_again_and_again(pods: list[RunningPod], stopped_s: float, going_s: float) -> AsyncIterator[None]:
    """Pauses of processes, until left."""

    async def pause() -> None:
        while True:
            try:
                for pod in pods:
                    pod.signal(signal.SIGSTOP)
                await asyncio.sleep(stopped_s)
            finally:
                for pod in pods:
                    pod.signal(signal.SIGCONT)
            await asyncio.sleep(going_s)

    task = asyncio.create_task(pause())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def send(pods: list[RunningPod], number: int) -> None:
    for pod in pods:
        pod.signal(number)


class Scene:
    """One release under load, and its Prometheus. Each scenario does harm, waits for its alerts, and mends it."""

    def __init__(
        self, release: Kubelet, prometheus: Prometheus, client: txnclient.Client, slow: Path, tap: Tap
    ) -> None:
        self.release, self.prometheus, self.client, self.slow, self.tap = release, prometheus, client, slow, tap
        self.brokers, self.etcd = release.of("broker"), release.of("etcd")
        (self.admin,) = release.of("admin")

    async def txnctl(self, *words: str) -> str:
        code, printed = await self.release.execute(self.admin, ["txnctl", *words])
        assert code == 0, printed
        return printed

    async def serving(self) -> None:
        await self.release.wait_probe(self.release.served, "readinessProbe")

    async def held_back(self) -> None:
        """An open transaction; `transactions hanging` names it."""
        topic = "topic://public/alerts/held"
        await self.client.create_topic(topic)
        async with await self.client.producer(topic) as producer:
            txn = await self.client.begin(timeout=300.0)
            await producer.send(b"first", txn=txn)
            await producer.send(b"behind")
            await self.prometheus.wait_firing("ReadersHeldBack")
            assert str(txn.id) in await self.txnctl("transactions", "hanging", "--older-than", "1")
            coordinators = f"txn://{self.release.of('coordinator')[0].address}:6650"
            await self.txnctl("transactions", "abort", str(txn.id), "--url", coordinators)
            await self.prometheus.wait_silent("ReadersHeldBack")

    async def behind(self) -> None:
        """A subscription that nobody consumes; a consumer comes."""
        topic = "topic://public/alerts/behind"
        await self.client.create_topic(topic)
        async with await self.client.producer(topic, linger_ms=0) as producer:
            await producer.send(b"first")
            async with await self.client.consumer(topic, "idle", start="earliest") as consumer:
                await consumer.ack(await consumer.receive(timeout=10.0))
            for number in range(100):
                await producer.send(b"%d" % number)
        names = ("SubscriptionBehind", "SubscriptionLate")
        await self.prometheus.wait_firing(*names)
        async with await self.client.consumer(topic, "idle") as consumer:
            for _ in range(100):
                await consumer.ack(await consumer.receive(timeout=10.0))
            await self.prometheus.wait_silent(*names)

    async def names_pile_up(self) -> None:
        """New ones are refused; some are deleted. Names are counted every ten minutes, and soon after an election."""
        for number in range(10):
            await (await self.client.begin(name=f"crowded/{number}")).commit()
        with pytest.raises(txnclient.TooManyNames):
            await self.client.begin(name="crowded/10")
        coordinators = self.release.of("coordinator")
        send(coordinators, signal.SIGKILL)
        await self.prometheus.wait_firing("NamesAlmostFull", timeout_s=150.0)
        await self.txnctl("names", "delete", "--prefix", "crowded/", "--yes")
        send(coordinators, signal.SIGKILL)
        await self.prometheus.wait_silent("NamesAlmostFull", timeout_s=150.0)
        await self.serving()
        await (await self.client.begin(name="crowded/10")).commit()

    async def brokers_hang(self) -> None:
        """Both stand still, while transactions are committed; a supervisor kills and starts them."""
        topic = "topic://public/alerts/stuck"
        await self.client.create_topic(topic)
        async with await self.client.producer(topic) as producer:
            open_ones = [await self.client.begin() for _ in range(10)]
            for txn in open_ones:
                await producer.send(b"written", txn=txn)
            send(self.brokers, signal.SIGSTOP)
            for txn in open_ones:
                await txn.commit()
            names = ("ProcessGone", "SegmentsUnowned", "CollectionStuck")
            await self.prometheus.wait_firing(*names)
            send(self.brokers, signal.SIGKILL)
            await self.prometheus.wait_silent(*names)

    async def etcd_hangs(self) -> None:
        """Leases end; it goes on."""
        send(self.etcd, signal.SIGSTOP)
        names = ("ProcessNotReady", "NobodySweeps")
        try:
            await self.prometheus.wait_firing(*names)
        finally:
            send(self.etcd, signal.SIGCONT)
        await self.prometheus.wait_silent(*names)

    async def aborts_wait(self) -> None:
        """For an etcd that stands still when they are due, each time for less than a lease: without its lease a
        coordinator has nothing that could be due."""

        async def again_and_again() -> None:
            while True:
                await asyncio.gather(*(self.client.begin(timeout=0.5) for _ in range(20)), return_exceptions=True)
                try:
                    send(self.etcd, signal.SIGSTOP)
                    await asyncio.sleep(2.5)
                finally:
                    send(self.etcd, signal.SIGCONT)
                await asyncio.sleep(2.0)

        task = asyncio.create_task(again_and_again())
        try:
            await self.prometheus.wait_firing("SweepBehind")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.prometheus.wait_silent("SweepBehind")

    async def etcd_is_slow(self) -> None:
        async with stopping_again_and_again(self.etcd, 0.4, 0.4):
            await self.prometheus.wait_firing("CommitsSlow")
        await self.prometheus.wait_silent("CommitsSlow")

    async def brokers_are_late(self) -> None:
        async with stopping_again_and_again(self.brokers, 1.6, 0.6):
            await self.prometheus.wait_firing("VisibilityLags")
        await self.prometheus.wait_silent("VisibilityLags")

    async def disk_is_slow(self) -> None:
        self.slow.touch()
        await self.prometheus.wait_firing("LedgerDiskSlow")
        self.slow.unlink()
        await self.prometheus.wait_silent("LedgerDiskSlow")

    async def broker_is_cut_off(self) -> None:
        """From etcd, and from nothing else: it answers Prometheus, and hears of no transaction."""
        self.tap.cut()
        await self.prometheus.wait_firing("WatchStarved")
        self.tap.join()
        self.tap.reset()
        await self.prometheus.wait_silent("WatchStarved")

    async def ledger_is_damaged(self) -> None:
        """A file loses its end; it is put back, and the brokers are started anew."""
        topic = "topic://public/alerts/damaged"
        await self.client.create_topic(topic, autoscale="off")
        async with await self.client.producer(topic) as producer:
            for _ in range(3):
                async with self.client.transaction() as txn:
                    await producer.send(b"kept", txn=txn)
        await self.serving()
        ledgers = self.release.folder / "claims" / "demo-txnstore-broker" / "ledgers"
        (ledger,) = [path for path in ledgers.rglob("*.ledger") if "damaged" in str(path)]
        send(self.brokers, signal.SIGSTOP)
        whole = ledger.read_bytes()
        ledger.write_bytes(whole[:64])
        send(self.brokers, signal.SIGKILL)
        await self.prometheus.wait_firing("SegmentCorrupt")
        assert "damaged" in await self.txnctl("brokers", "list", "-o", "json")
        send(self.brokers, signal.SIGSTOP)
        ledger.write_bytes(whole)
        send(self.brokers, signal.SIGKILL)
        await self.prometheus.wait_silent("SegmentCorrupt")

    async def nobody_answers(self) -> None:
        servers = [pod for pod in self.release.served if pod.component != "etcd"]
        send(servers, signal.SIGSTOP)
        try:
            await self.prometheus.wait_firing("NobodyAnswers")
        finally:
            send(servers, signal.SIGCONT)
        await self.prometheus.wait_silent("NobodyAnswers")


@asynccontextmanager
async def scene_of(folder: Path) -> AsyncIterator[Scene]:
    program("prometheus")
    objects = render(MONITORED)
    slow, library = folder / "slow", folder / "slow.so"
    source = folder / "slow.c"
    source.write_text(SLOW_SYNC % slow)
    compiler = shutil.which("gcc") or pytest.skip("there is no gcc here: a slow disk cannot be made")
    await asyncio.to_thread(
        subprocess.run, [compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True
    )
    taps: list[Tap] = []

    async def prepare(release: Kubelet) -> None:
        (etcd,) = release.of("etcd")
        tap = Tap(etcd.port("etcd"), target_host=etcd.address)
        await tap.start()
        taps.append(tap)
        first, second = release.of("broker")
        release.overrides[first.name] = {"LD_PRELOAD": str(library), "TXN_ETCD": f"http://127.0.0.1:{tap.port}"}
        release.overrides[second.name] = {"LD_PRELOAD": str(library)}

    try:
        async with (
            running_release(objects, folder / "pods", before_start=prepare) as release,
            running_prometheus(release, folder / "prometheus", hastened(groups(objects), THRESHOLDS)) as prometheus,
            txnclient.connect(f"txn://{release.of('coordinator')[0].address}:6650", timeout=10.0) as client,
        ):
            await client.create_topic(TOPIC, segments=4, autoscale="off")
            async with under_load(client):
                yield Scene(release, prometheus, client, slow, taps[0])
    finally:
        for tap in taps:
            await tap.close()


async def test_each_alert_fires_on_its_harm_and_stops_once_that_is_mended(tmp_path: Path) -> None:
    async with scene_of(tmp_path) as scene:
        scenarios: list[Callable[[], Any]] = [
            scene.held_back,
            scene.behind,
            scene.names_pile_up,
            scene.disk_is_slow,
            scene.etcd_is_slow,
            scene.brokers_are_late,
            scene.brokers_hang,
            scene.broker_is_cut_off,
            scene.aborts_wait,
            scene.etcd_hangs,
            scene.ledger_is_damaged,
            scene.nobody_answers,
        ]
        clock = asyncio.get_running_loop().time
        for scenario in scenarios:
            began = clock()
            await scenario()
            await scene.serving()
            print(f"{scenario.__name__}: {clock() - began:.1f} s")


def call_etcd(etcd: RunningPod, what: str, **arguments: str) -> None:
    """A call of etcd's JSON gateway; keys and values are base64. Blocks."""
    body = json.dumps({name: base64.b64encode(value.encode()).decode() for name, value in arguments.items()})
    url = f"http://{etcd.address}:{etcd.port('etcd')}/v3/kv/{what}"
    with urllib.request.urlopen(urllib.request.Request(url, body.encode(), method="POST"), timeout=10):
        pass


async def test_a_full_etcd_is_told_and_gives_its_room_back_by_itself(tmp_path: Path) -> None:
    """The elected coordinator compacts what is older than a minute, and defragments: nobody does anything."""
    quota = 256 * 1024**2  # etcd's file grows by 16 MiB at a time: with less of a quota it would jump over the limits
    objects = render(
        {**MONITORED, "rolesTogether": True, "broker": {"replicas": 1}, "etcd": {"replicas": 1, "quotaBytes": quota}}
    )
    program("prometheus")
    names = ("EtcdAlmostFull", "EtcdFileAlmostFull", "NewTransactionsRefused")
    async with (
        running_release(objects, tmp_path / "pods") as release,
        running_prometheus(release, tmp_path / "prometheus", hastened(groups(objects), {})) as prometheus,
    ):
        (etcd,) = release.of("etcd")
        for number in range(int(0.88 * quota) // FILLING_BYTES + 1):
            await asyncio.to_thread(call_etcd, etcd, "put", key=f"/filling/{number}", value="x" * FILLING_BYTES)
        await prometheus.wait_firing(*names)
        await asyncio.to_thread(call_etcd, etcd, "deleterange", key="/filling/", range_end="/filling0")
        await prometheus.wait_silent(*names, timeout_s=240.0)


async def test_each_panel_of_the_dashboards_returns_data(tmp_path: Path) -> None:
    program("prometheus")
    objects = render({**MONITORED, "rolesTogether": True, "broker": {"replicas": 1}})
    async with (
        running_release(objects, tmp_path / "pods") as release,
        running_prometheus(release, tmp_path / "prometheus", {"groups": []}) as prometheus,
        txnclient.connect(f"txn://{release.of('broker')[0].address}:6650", timeout=10.0) as client,
    ):
        await client.create_topic(TOPIC, segments=4)
        async with await client.consumer(TOPIC, "audit"), under_load(client):
            for config in of_kind(objects, "ConfigMap"):
                for file, text in config["data"].items():
                    if file.endswith(".json"):
                        await expect_data(prometheus, json.loads(text))


async def expect_data(prometheus: Prometheus, dashboard: dict[str, Any]) -> None:
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$namespace", NAMESPACE).replace("$__rate_interval", WINDOW)
            await until_answer(
                partial(prometheus.query, expression),
                _shown,
                f"{dashboard['title']}, {panel['title']}: data of {expression}",
                within_s=45,
                longest_poll_s=0.2,
            )


def _shown(series: list[dict[str, Any]]) -> bool:
    return any(not math.isnan(float(one["value"][1])) for one in series)
