"""`txnctl serve`: one server process over real ports, until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import threading
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import structlog
from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector

from segments.ledger.data_folder import expect_shared_folder
from segments.ledger.file_ledger import FileLedgerStore
from txnctl.metrics.catalogue import families
from txnctl.process.founding import found_cluster
from txnctl.process.full_collections import FullCollections
from txnctl.process.http import HttpEndpoint
from txnctl.process.pauses import Pauses
from txnctl.process.served import write_served
from txnctl.process.server import START_TIMEOUT_S, Server
from txnctl.process.settings import NO_ADMIN, ServerSettings, etcd_settings
from txnctl.process.store_mark import StoreMark, follow_identity
from txnstore.access.lineage import StoreUnfit
from txnstore.etcd.etcd_store import EtcdStore
from txnstore.records import Incarnation
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import InternalError, Timeout, again
from txnwire.ports import Clock, Random
from txnwire.tasks import cancel_all, restarted
from txnwire.transport.grpc_transport import GrpcTransport

log = structlog.get_logger()
T = TypeVar("T")

OTHER_FILES = 1000
"""Files open besides connections to clients: ledgers, logs, sockets to etcd and to other servers."""
THREADS_END_S = 5.0
"""How long the end of a process waits for its threads."""


def allow_open_files(connections: int) -> None:
    """Raises the limit of open files to the need of so many connections, or as far as this process may."""
    needed = connections + OTHER_FILES
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY or allowed >= needed:
        return
    allowed = needed if most == resource.RLIM_INFINITY else min(needed, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))
    if allowed < needed:
        log.warning("open files limited", allowed=allowed, needed=needed, advice="raise `ulimit -Hn`")


async def serve(settings: ServerSettings) -> None:
    """Serves until SIGTERM or SIGINT, then hands over its segments and ids and returns; also while it starts. A
    second signal kills."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_or_die, stop, number)
    allow_open_files(settings.max_connections)
    with suppress(_StoppedEarly):
        await _serve(settings, stop)
    log.info("stopped", id=settings.id)


async def _serve(settings: ServerSettings, stop: asyncio.Event) -> None:
    """Raises `_StoppedEarly`, and the errors of a start and of roles that fail."""
    clock, random = SystemClock(), SystemRandom()
    store = await _unless(stop, EtcdStore.connect(etcd_settings(settings), clock=clock, random=random))
    ledgers = FileLedgerStore(settings.data_dir)
    try:
        await _unless(stop, _take_folder(settings, store, ledgers, clock, random))
        server = Server(
            settings, store=store, ledgers=ledgers, transport=GrpcTransport(clock), clock=clock, random=random
        )
        server.pauses = pauses = Pauses(clock)
        with server.tasks.in_charge():
            own = (
                restarted(pauses.run, name="pauses"),
                restarted(FullCollections().run, name="full collections"),
            )
        http = _http(server, settings)  # before the roles: /readyz says "not ready" while they start
        try:
            await _unless(stop, server.start())
            await _serve_until(stop, server, store, settings)
        finally:
            try:
                await server.close()  # /readyz says that it is going down, however long that takes
            finally:
                if http is not None:
                    await http.close()
                for task in own:
                    task.cancel()
                await asyncio.wait(own)
    finally:
        await ledgers.close()
        await store.close()
        _end_without_threads()


class _StoppedEarly(Exception):
    """It was told to stop before it served."""


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, or its error. ▲ A stop cancels it, and raises `_StoppedEarly`: otherwise a start that waits
    for a disk or for etcd would not heed SIGTERM."""
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _StoppedEarly
        return task.result()
    finally:
        await cancel_all((task, stopped))


async def _take_folder(
    settings: ServerSettings, store: EtcdStore, ledgers: FileLedgerStore, clock: Clock, random: Random
) -> None:
    """▲ In threads and with a time limit, as its disk may never answer. Raises `Timeout`; `NotAllowed` and `StoreUnfit`
    for a folder that is not this cluster's, before anything is written into it."""
    try:
        async with asyncio.timeout(START_TIMEOUT_S) as limit:
            mark = StoreMark(settings.data_dir)
            await asyncio.to_thread(mark.read)  # the next reads of it are of a disk that answers
            if not _keeps_mark(settings):
                return
            await found_cluster(store, clock, id=settings.id, makes_room="coordinator" in settings.roles)
            identity, revision = await mark.check(store)
            if "broker" in settings.roles:
                await expect_shared_folder(store, ledgers, random, broker_id=settings.id, claim=False)
            await asyncio.to_thread(_write_mark, mark, identity, revision)
            if "broker" in settings.roles:
                await asyncio.to_thread(_write_served, settings)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise Timeout(
            f"data folder {settings.data_dir} was not read and marked within {START_TIMEOUT_S:g} s: "
            "does its disk answer?"
        ) from error


def _end_without_threads() -> None:
    """▲ At its end Python waits for each thread of `asyncio.to_thread`, also for a thread that writes the store mark to
    a disk that never answers. The supervisor, which restarts ended processes, would wait as well. Python does not wait
    for the threads of the ledger store."""
    timer = threading.Timer(THREADS_END_S, _end_now)
    timer.daemon = True
    timer.start()


def _end_now() -> None:
    log.error("ended without its threads", advice="does the disk of the data folder answer?")
    os._exit(1)


def _write_mark(mark: StoreMark, identity: Incarnation, revision: int) -> None:
    """On a full disk the old mark will do: it knows less of etcd, but is true."""
    try:
        mark.write(identity, revision)
    except OSError as error:
        if mark.read() is None:
            raise
        log.warning("store mark not written", path=str(mark.folder), error=str(error))


def _write_served(settings: ServerSettings) -> None:
    """A convenience for commands on this machine: without room, or on a disk without rights, they take flags."""
    try:
        write_served(settings)
    except OSError as error:
        log.warning("settings not noted in the data folder", path=str(settings.data_dir), error=str(error))


def _keeps_mark(settings: ServerSettings) -> bool:
    """Brokers, and processes that share a broker's folder, so that they notice as early that etcd has gone back."""
    return "broker" in settings.roles or StoreMark(settings.data_dir).read() is not None


async def _serve_until(stop: asyncio.Event, server: Server, store: EtcdStore, settings: ServerSettings) -> None:
    """Runs beside the server: keeps the folder's mark of etcd, and watches that etcd is still the same."""
    followed = asyncio.create_task(follow_identity(store), name="identity of the store")
    ended = asyncio.create_task(wait_stopped_or_failed(stop, server), name="server")
    tasks: list[asyncio.Task[Any]] = [followed, ended]
    if _keeps_mark(settings):
        with server.tasks.in_charge():
            tasks.append(restarted(partial(StoreMark(settings.data_dir).keep, store), name="store mark"))
    try:
        await asyncio.wait({ended, followed}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            await ended
        else:
            raise followed.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def wait_stopped_or_failed(stop: asyncio.Event, server: Server) -> None:
    """Raises `InternalError` if a role has failed, `StoreUnfit` if that is because of its etcd: the process ends, and
    its supervisor starts it again."""
    stopped, failed = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(server.wait_failed())
    try:
        await asyncio.wait({stopped, failed}, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            cause = failed.result()
            if isinstance(cause, StoreUnfit):
                raise again(cause) from cause
            raise InternalError(f"a role of this server has failed: {cause!r}") from cause
    finally:
        stopped.cancel()
        failed.cancel()


def _stop_or_die(stop: asyncio.Event, number: signal.Signals) -> None:
    stop.set()
    asyncio.get_running_loop().remove_signal_handler(number)


def _http(server: Server, settings: ServerSettings) -> HttpEndpoint | None:
    """Raises `InvalidArgument` if it cannot listen on the address."""
    if settings.admin_listen == NO_ADMIN:
        return None
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    endpoint = HttpEndpoint(
        settings.admin_listen,
        not_ready=server.not_ready,
        remark=server.remark,
        statistics=server.gather_statistics,
        families=families,
        process=registry,
    )
    server.admin_address = endpoint.address
    log.info("http", id=settings.id, address=endpoint.address)
    return endpoint
