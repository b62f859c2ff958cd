"""Server processes of a simulated cluster: what `txnctl serve` runs, over simulated ports."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from segments.controller.controller import ControllerSettings
from segments.log.settings import BrokerSettings
from simulation.world.world import Ports
from txnctl.process.server import Server
from txnctl.process.settings import ServerSettings
from txnctl.process.sweeper import SweeperSettings

LAYOUT_PATIENCE_S = 2.5
"""So short that changes are sometimes given up, even behind a seal."""
HEADER_RETENTION_S = 5.0
"""Below the 7.5 s by which `store_faults` may let a write land late, so that late begins meet collected headers."""


def server_settings(name: str, roles: str, listen: str) -> ServerSettings:
    return ServerSettings(
        id=name,
        roles=tuple(roles.split(",")),
        listen=listen,
        tcids=2,
        lease_ttl_s=4.0,
        client_grace_s=5.0,
        header_retention_s=HEADER_RETENTION_S,
    )


def broker_settings(ledger_roll_bytes: int) -> BrokerSettings:
    """For brokers that roll, trim and write sidecars all the time, and with the smallest ledgers refuse bursts of
    sends: sends behind a refused one must not pass it (L8)."""
    return BrokerSettings(
        ledger_roll_bytes=ledger_roll_bytes,
        ledger_page=2,
        segment_inflight_bytes=ledger_roll_bytes * 3 // 2,
        housekeeping_s=1.5,
        roll_least_age_ms=400,
        roll_least_bytes=2048,
        aborted_in_store=8,
        producer_idle_s=30.0,
        prune_least_age_ms=3000,
        seal_wait_s=2.0,
    )


async def serve(
    ports: Ports,
    settings: ServerSettings,
    brokers: BrokerSettings | None = None,
    running: Callable[[Server | None], None] = lambda _: None,
) -> None:
    """A server process like `txnctl serve`, over simulated ports. Ends on request, and when a role cannot start or
    fails. Calls `running` with it while it serves, and with None as it ends in order."""
    server = Server(
        settings,
        store=ports.store,
        ledgers=ports.ledgers,
        transport=ports.transport,
        clock=ports.clock,
        random=ports.random,
        broker_settings=brokers,
        controller_settings=ControllerSettings(layout_patience_s=LAYOUT_PATIENCE_S),
        sweeper_settings=SweeperSettings(names_first_s=2.0, names_every_s=5.0),
    )
    try:
        await server.start()
        running(server)
        failed = asyncio.ensure_future(server.wait_failed())
        stopped = asyncio.ensure_future(ports.stopping.wait())
        await asyncio.wait((failed, stopped), return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        if failed.done():
            raise failed.result()
        failed.cancel()
    finally:
        running(None)
        await server.close()
