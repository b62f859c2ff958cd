"""`txnctl serve` as it is run under chaos: it rolls ledgers, trims, writes sidecars and prunes segments within seconds,
and gives splits up early, so that a short run reaches all of it."""

from __future__ import annotations

from functools import partial

import txnctl.process.serve
from segments.controller.controller import ControllerSettings
from segments.log.settings import BrokerSettings
from txnctl.main import main
from txnctl.process.server import Server

BROKER = BrokerSettings(
    ledger_roll_bytes=64 * 1024,
    housekeeping_s=2.0,
    roll_least_age_ms=400,
    roll_least_bytes=2048,
    aborted_in_store=8,
    checkpoint_entries=256,
    prune_least_age_ms=3000,
    seal_wait_s=2.0,
)
CONTROLLER = ControllerSettings(layout_patience_s=4.0, prune_s=5.0)

if __name__ == "__main__":
    txnctl.process.serve.Server = partial(Server, broker_settings=BROKER, controller_settings=CONTROLLER)  # type: ignore[misc,assignment]
    main()
