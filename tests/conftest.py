"""An etcd for the tests, and stores over it: see `etcd`, `etcd_process`, `store`, `memory_etcd` and `memory_store`."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.order import is_soak, ordered, workers_of_run
from txnstore.etcd.embedded_etcd import EmbeddedEtcd, EtcdCommand, find_etcd, free_port, wait_etcd_ready
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import InternalError

ETCD_IMAGE = "quay.io/coreos/etcd:v3.5.21"
_prefixes = itertools.count(1)

# A property is judged by what it finds, not by the time that a busy machine takes for one example; CI's own profile has
# neither limit. A failure prints how to reproduce it.
settings.register_profile(
    "whatever the load", settings.default, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("whatever the load")

# A shell starts background processes with Ctrl-C ignored, and their children inherit that: tests that end processes
# with Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_itemcollected(item: pytest.Item) -> None:
    if is_soak(item.path):
        item.add_marker("soak")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = ordered([(item, item.path) for item in items], workers_of_run())


def pytest_collection_finish() -> None:
    """▲ Each scenario in virtual time ends with a full collection, which would walk all modules and all tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """The same behind each file: reports and imports pile up."""
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        gc.freeze()


def _has_etcd() -> bool:
    try:
        find_etcd()
    except InternalError:
        return False
    return True


def _container() -> Iterator[str]:
    from testcontainers.core.container import DockerContainer

    command = "etcd --listen-client-urls http://0.0.0.0:2379 --advertise-client-urls http://0.0.0.0:2379"
    container = DockerContainer(ETCD_IMAGE).with_exposed_ports(2379)
    container.with_command(f"{command} --max-txn-ops 10000 --grpc-keepalive-min-time 1s")
    with container:
        url = f"http://{container.get_container_host_ip()}:{container.get_exposed_port(2379)}"
        asyncio.run(wait_etcd_ready(url))
        yield url


def _process(directory: Path) -> Iterator[str]:
    etcd = EmbeddedEtcd(EtcdCommand(data_dir=directory / "etcd", client_port=free_port()))
    asyncio.run(etcd.start())
    try:
        yield etcd.url
    finally:
        asyncio.run(etcd.stop())


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of one etcd for all tests of this worker: a process of the local binary, which `make setup` installs.

    Uses a container only without the binary: a running engine may not reach a registry, and a failing pull would fail
    every test. `TXN_TEST_ETCD`, the URL of another one, comes first: many short runs share one.
    """
    if given := os.environ.get("TXN_TEST_ETCD"):
        yield given
    elif _has_etcd():
        yield from _process(tmp_path_factory.mktemp("etcd"))
    else:
        yield from _container()


@pytest.fixture
async def etcd_process(tmp_path: Path) -> AsyncIterator[EmbeddedEtcd]:
    """A freshly started etcd of this test's own, to kill, pause and restart. Skips without a local binary."""
    if not _has_etcd():
        pytest.skip("no etcd binary: make setup installs one")
    etcd = EmbeddedEtcd(EtcdCommand(data_dir=tmp_path / "etcd", client_port=free_port()))
    await etcd.start()
    try:
        yield etcd
    finally:
        await etcd.stop()


@pytest.fixture
def key_prefix() -> str:
    """A prefix never used before on this worker's etcd, and by no other process on one that is shared."""
    return f"/test-{os.getpid()}-{next(_prefixes)}"


@pytest.fixture
async def store(etcd: str, key_prefix: str) -> AsyncIterator[EtcdStore]:
    """A store on the real etcd, under a key prefix of its own."""
    settings = EtcdSettings(endpoints=(etcd,), prefix=key_prefix, development=True)
    store = await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())
    try:
        yield store
    finally:
        await store.close()


@pytest.fixture
async def memory_etcd() -> MemoryEtcd:
    return MemoryEtcd(SystemClock())


@pytest.fixture
async def memory_store(memory_etcd: MemoryEtcd) -> AsyncIterator[MemoryStore]:
    """A store on an etcd in memory; more clients may be made on the same `memory_etcd`."""
    store = MemoryStore(memory_etcd, SystemClock(), random.Random(0))
    try:
        yield store
    finally:
        await store.close()
