"""One server process: assembles its roles over five ports. Used by `txnctl serve` and by the simulation.

Does no I/O of its own: store, ledgers, transport, clock and randomness are passed in (DESIGN §2).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import structlog

from coordinator_v5.coordinator import Coordinator
from coordinator_v5.service import CoordinatorService
from coordinator_v5.settings import CoordinatorSettings, NameSettings
from segments.broker.broker import Broker, BrokerSettings
from segments.broker.broker_service import BrokerService
from segments.broker.broker_statistics import BrokerStatistics
from segments.controller.controller import Controller, ControllerSettings
from segments.controller.controller_service import ControllerService
from segments.layout.directory import Directory
from segments.layout.freshness import Freshness
from segments.layout.layout_service import LayoutService
from segments.ledger.ledger import LedgerStore
from txnctl.admin.admin import Administration
from txnctl.admin.admin_cluster import ClusterAnswers, coordinator_row
from txnctl.admin.admin_keys import KeyAnswers
from txnctl.admin.admin_names import NameAnswers
from txnctl.admin.admin_requests import AdminRequests
from txnctl.admin.role_calls import RoleCalls
from txnctl.metrics.statistics import ServerStatistics, StoreStatistics
from txnctl.process.founding import found_cluster
from txnctl.process.name_settings import name_settings
from txnctl.process.pauses import Pauses
from txnctl.process.role_failure import RoleFailure
from txnctl.process.settings import ServerSettings
from txnctl.process.sweeper import Maintainer, SweeperSettings
from txnstore.access.store_client import StoreClient
from txnstore.cluster_clock import ClusterClock
from txnwire.errors import Overloaded, Timeout, TxnError
from txnwire.ports import Clock, Connection, Listener, Random, Transport
from txnwire.tasks import Tasks, errand, restarted
from txnwire.transport.calls import Service, serve_connection

log = structlog.get_logger()

START_TIMEOUT_S = 60.0
AUTOSCALE_S = 10.0
"""Time between looks at the load of topics: as often as it is published."""


class Server:
    """Serves between `start` and `close`. `address` is the bound one, `advertised` the one that other processes use."""

    def __init__(
        self,
        settings: ServerSettings,
        *,
        store: StoreClient,
        ledgers: LedgerStore,
        transport: Transport,
        clock: Clock,
        random: Random,
        broker_settings: BrokerSettings | None = None,
        controller_settings: ControllerSettings | None = None,
        sweeper_settings: SweeperSettings | None = None,
    ) -> None:
        """`broker_settings`, `controller_settings`, `sweeper_settings`: if not the usual ones; `settings` still wins
        for its own values, such as the lease."""
        self._settings = settings
        self._broker_settings = broker_settings
        self._controller_settings = controller_settings or ControllerSettings()
        self._sweeper_settings = sweeper_settings or SweeperSettings()
        self._store = store
        self._ledgers = ledgers
        self._transport = transport
        self._clock = clock
        self._random = random
        self._incarnation = f"{random.getrandbits(64):016x}"
        self._services: list[Service] = []
        self._admin_requests = AdminRequests()
        self._closing = AsyncExitStack()
        self._ready = asyncio.Event()
        self._closed = False
        self._failure = RoleFailure()
        self._starting = "before any of its roles"
        self.tasks = Tasks(clock.monotonic, on_fatal=self._failure.met)
        """Services that must live as long as this process, and their ends."""
        self._connections = 0
        self._started_s = clock.monotonic()
        self.sweeper: Maintainer | None = None
        self.admin_address: str | None = None
        """Where `/healthz`, `/readyz` and `/metrics` are served, host:port; set by the process that serves them."""
        self.pauses: Pauses | None = None
        """Pauses of the event loop; set by the process that measures them."""
        self.address = ""
        self.advertised = ""
        self.directory = Directory(store, clock)
        self.cluster_clock = ClusterClock(store, clock, warn_s=settings.clock_warn_s)
        self.freshness = Freshness(store, clock, lease_ttl_s=settings.lease_ttl_s)
        self.coordinator: Coordinator | None = None
        self.controller: Controller | None = None
        self.broker: Broker | None = None

    @property
    def serving(self) -> bool:
        """Whether every role has started, and none has stopped yet."""
        return self._ready.is_set() and not self._closed

    async def wait_failed(self) -> BaseException:
        """Returns once a role has ended by a defect: otherwise the process would keep its name and serve nothing."""
        return await self._failure.wait()

    async def start(self) -> None:
        """Binds, follows the cluster, starts every role. Raises the error of a role that could not start, `Timeout`
        after `START_TIMEOUT_S`, and leaves nothing behind."""
        try:
            with self.tasks.in_charge():
                try:
                    async with asyncio.timeout(START_TIMEOUT_S) as limit:
                        await self._start()
                except TimeoutError as error:
                    if not limit.expired():
                        raise
                    raise Timeout(
                        f"{self._settings.id} has not started within {START_TIMEOUT_S:g} s, {self._starting}: do etcd "
                        "and the disk of the data folder answer?"
                    ) from error
        except BaseException:
            await self.close()
            raise

    async def _start(self) -> None:
        makes_room = "coordinator" in self._settings.roles
        await found_cluster(self._store, self._clock, id=self._settings.id, makes_room=makes_room)
        self._guard = errand(self._watch_store(), name="guard of the store")
        self._closing.push_async_callback(self._stop_guard)
        await self.directory.start()
        self._closing.push_async_callback(self.directory.close)
        listener: Listener = await self._transport.listen(self._settings.listen, self._serve)
        self._closing.push_async_callback(listener.close)
        self.address = listener.address
        self.advertised = self._settings.advertise or listener.address
        calls = RoleCalls(self.directory, self._transport, self._clock, self._random, name=self._settings.id)
        self._closing.push_async_callback(calls.close)
        layout = LayoutService(self.directory, self._store, self.freshness)
        self._closing.callback(layout.close)
        self._keep_running(self.freshness.run, name="freshness")
        self._keep_running(self.cluster_clock.run, name="cluster clock")
        self._services.append(layout)
        self._admin_requests.add({"process.describe": self._describe})
        self._services.append(self._admin_requests)
        start = {
            "coordinator": self._start_coordinator,
            "controller": self._start_controller,
            "broker": self._start_broker,
            "admin": self._start_admin,
        }
        for role in self._settings.roles:
            self._starting = f"as its role {role} did not"
            await start[role](calls)
        self._ready.set()
        log.info("serving", id=self._settings.id, roles=list(self._settings.roles), address=self.advertised)

    async def _watch_store(self) -> None:
        """Ends this process on an etcd restored from a backup, which does not know what the process has done since."""
        self._failure.met(await self._store.wait_unfit())

    async def _stop_guard(self) -> None:
        self._guard.cancel()
        await asyncio.wait([self._guard])

    def _keep_running(self, work: Callable[[], Awaitable[None]], *, name: str) -> None:
        """Keeps it running until this server is closed."""
        task = restarted(work, name=name)

        async def end() -> None:
            task.cancel()
            await asyncio.wait([task])

        self._closing.push_async_callback(end)

    async def _start_coordinator(self, _: RoleCalls) -> None:
        settings = CoordinatorSettings(
            tcids=self._settings.tcids,
            lease_ttl_s=self._settings.lease_ttl_s,
            header_retention_s=self._settings.header_retention_s,
            max_timeout_s=self._settings.max_transaction_timeout_s,
            client_grace_s=self._settings.client_grace_s,
            max_open=self._settings.max_open_transactions,
            names=name_settings(self._settings.names_keep, self._settings.names_max),
        )
        self.coordinator = Coordinator(
            self._store,
            self._clock,
            self._random,
            settings,
            id=self._settings.id,
            address=self.advertised,
            cluster_clock=self.cluster_clock,
        )
        self._start_sweeper(settings.names)
        await self.coordinator.start()
        self._closing.push_async_callback(self.coordinator.close)
        self._services.append(CoordinatorService(self.coordinator))
        self._admin_requests.add({"coordinator.stats": self._coordinator_stats, "coordinator.keys": self._keys_held})

    def _start_sweeper(self, names: NameSettings) -> None:
        """▲ Before anything that needs a lease: a full etcd grants none until a sweeper has made room in it."""
        self.sweeper = sweeper = Maintainer(
            self._store,
            self._clock,
            self._random,
            self._sweeper_settings,
            names=names,
            id=self._settings.id,
            address=self.advertised,
            lease_ttl_s=self._settings.lease_ttl_s,
            cluster_clock=self.cluster_clock,
        )
        sweeper.start()
        self._closing.push_async_callback(sweeper.close)

    async def _start_controller(self, calls: RoleCalls) -> None:
        settings = replace(
            self._controller_settings,
            lease_ttl_s=self._settings.lease_ttl_s,
            consumer_grace_s=self._settings.consumer_grace_s,
            autoscale_s=AUTOSCALE_S if self._settings.autoscale else 0.0,
        )
        self.controller = Controller(
            self._store,
            self.directory,
            self._clock,
            self._random,
            settings,
            id=self._settings.id,
            address=self.advertised,
            segment_positions=calls.read_position,
            segment_questions=calls,
            owner_calls=calls,
        )
        await self.controller.start()
        self._closing.push_async_callback(self.controller.close)
        self._services.append(ControllerService(self.controller))

    async def _start_broker(self, _: RoleCalls) -> None:
        settings = BrokerSettings(
            ledger_roll_bytes=self._settings.ledger_roll_bytes, min_free_bytes=self._settings.min_free_bytes
        )
        settings = replace(self._broker_settings or settings, lease_ttl_s=self._settings.lease_ttl_s)
        self.broker = Broker(
            self._store,
            self._ledgers,
            self._clock,
            self._random,
            settings,
            broker_id=self._settings.id,
            address=self.advertised,
            directory=self.directory,
            on_failed=self._failure.met,
        )
        await self.broker.start()
        self._closing.push_async_callback(self.broker.close)
        service = BrokerService(self.broker)
        self._services.append(service)
        self._admin_requests.add(service.admin)

    async def _start_admin(self, calls: RoleCalls) -> None:
        self._admin_requests.add(Administration(self._store, self.directory, calls, self.cluster_clock).answers)
        self._admin_requests.add(ClusterAnswers(self._store, self.directory, calls).answers)
        self._admin_requests.add(KeyAnswers(self._store, self.cluster_clock, self.directory, calls).answers)
        self._admin_requests.add(NameAnswers(self._store, self.cluster_clock).answers)

    async def _serve(self, connection: Connection) -> None:
        await self._ready.wait()  # bound early, because the roles need their address; closing the listener ends this
        refusal = self._refusal()
        self._connections += 1
        try:
            await serve_connection(
                connection,
                self._services,
                server_id=self._settings.id,
                roles=self._settings.roles,
                incarnation=self._incarnation,
                clock=self._clock,
                refusal=refusal,
            )
        finally:
            self._connections -= 1

    def _refusal(self) -> TxnError | None:
        """Why one more connection is refused, None if it is not."""
        most = self._settings.max_connections
        if self._connections < most:
            return None
        return Overloaded(
            f"{self._settings.id} serves {most} connections, its bound (max_connections): connect to another server, "
            "or here a little later"
        )

    # ---- what there is to know --------------------------------------------------------------------------------------

    def not_ready(self) -> str | None:
        """Why this process should get no work now; None if it may."""
        if self._failure.error is not None:
            return f"a role has failed: {self._failure.error!r}"
        if self._closed:
            return "it is going down"
        if not self._ready.is_set():
            return "its roles are being taken up"
        for role in (self.broker, self.coordinator):
            if role is not None and role.namesake is not None:
                return f"another process is called {self._settings.id}, at {role.namesake}: it holds that name"
        if (failing := self.tasks.failing()) is not None:
            return failing
        if self.broker is not None and not self.broker.registered:
            return "the broker's lease is lost, it is registering again"
        if self.coordinator is not None and not self.coordinator.registered:
            return "the coordinator's lease is lost, is etcd answering? It continues by itself when etcd answers"
        return None

    def remark(self) -> str | None:
        """Which work this process does not do, though it is ready for the rest; None if it does all."""
        remarks = []
        if self.broker is not None and (full := self.broker.full_disk()) is not None:
            remarks.append(f"sends get StoreFull: {full}")
        if self.freshness.stale:
            remarks.append(f"its view of the cluster is stale: etcd was not heard for {self.freshness.silent_s:.0f} s")
        return "; ".join(remarks) or None

    def statistics(self) -> ServerStatistics:
        return self._statistics(None if self.broker is None else self.broker.statistics(pins=1))

    async def gather_statistics(self) -> ServerStatistics:
        """Gathers `statistics`, and lets other tasks run meanwhile: a process may serve tens of thousands of
        segments."""
        return self._statistics(None if self.broker is None else await self.broker.gather_statistics(pins=1))

    def _statistics(self, broker: BrokerStatistics | None) -> ServerStatistics:
        topics, owners = self.directory.topics(), self.directory.owners()
        paths = [path for topology in topics.values() for path in topology.paths.values()]
        return ServerStatistics(
            id=self._settings.id,
            roles=self._settings.roles,
            version=version("txnstore"),
            address=self.advertised,
            not_ready=self.not_ready(),
            uptime_s=self._clock.monotonic() - self._started_s,
            connections=self._connections,
            topics=len(topics),
            segments=len(paths),
            unowned_segments=sum(1 for path in paths if path not in owners),
            task_failures=dict(self.tasks.failures),
            longest_pause_s=0.0 if self.pauses is None else self.pauses.longest_s(),
            longest_pause_cpu_s=0.0 if self.pauses is None else self.pauses.longest_work_s(),
            clock_ahead_s=self.cluster_clock.ahead_s,
            store=StoreStatistics(
                commits=self._store.statistics(),
                index_queries=self._store.index_queries(),
                refuses_new=self._store.refuses_new,
            ),
            coordinator=None if self.coordinator is None else self.coordinator.statistics(),
            sweeper=None if self.sweeper is None else self.sweeper.statistics(),
            controller=None if self.controller is None else self.controller.statistics(),
            broker=broker,
        )

    async def _coordinator_stats(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {} if self.coordinator is None else coordinator_row(self.coordinator.statistics())

    async def _keys_held(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """For the requested keys, by owner and name: the epochs of holders that are connected to this coordinator."""
        coordinator = self.coordinator
        held = [None if coordinator is None else coordinator.key_epoch_held(*names) for names in args.get("keys", ())]
        return {"epochs": held}

    async def _describe(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Describes this process for `brokers list`."""
        broker = self.broker
        return {
            "id": self._settings.id,
            "pid": os.getpid(),
            "roles": list(self._settings.roles),
            "version": version("txnstore"),
            "etcd": self._settings.etcd,
            "etcd_prefix": self._settings.etcd_prefix,
            "admin": self.admin_address,
            "uptime_s": round(self._clock.monotonic() - self._started_s, 1),
            "connections": self._connections,
            "not_ready": self.not_ready(),
            "remark": self.remark(),
            "segments": None if broker is None else len(broker.segments),
            "taking": None if broker is None else len(broker.taking),
            "failed": None if broker is None else list(broker.failed),
        }

    async def close(self) -> None:
        """Stops the roles in reverse order, each handing over what it can, then stops listening. Idempotent,
        bounded."""
        self._closed = True
        await self._closing.aclose()
