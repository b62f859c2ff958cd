"""A worker process of `chaos.py`: clients that do the simulation's workload against real servers, until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
from dataclasses import dataclass
from pathlib import Path

from simulation.recorder import Recorder
from simulation.workload import ClientLife, Plan
from tests.process.chaos_journal import Journal
from txnwire.clock import SystemClock
from txnwire.errors import TxnError
from txnwire.grpc_transport import GrpcTransport

SEGMENTS = 3
UNEXPECTED = "UNEXPECTED"
"""Begins a line of the log that is a finding."""


@dataclass(frozen=True, slots=True)
class Life:
    name: str


@dataclass(frozen=True, slots=True)
class RealPorts:
    owner: Life
    transport: GrpcTransport
    clock: SystemClock
    random: random.Random


def real_ports(name: str, seed: int) -> RealPorts:
    """`name` must be unique for each life: the client's identities are drawn from it."""
    clock = SystemClock()
    return RealPorts(Life(name), GrpcTransport(clock), clock, random.Random(f"{seed}/{name}"))


@dataclass(slots=True)
class LoggedPlan(Plan):
    def met(self, process: str, error: TxnError) -> None:
        before = len(self.unexpected)
        Plan.met(self, process, error)
        print(f"{self.recorder.now():.3f} {process} met {type(error).__name__}: {error}", flush=True)
        for text in self.unexpected[before:]:
            print(f"{UNEXPECTED} {text}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument("--journal", type=Path, required=True)
    return parser.parse_args()


async def _live(arguments: argparse.Namespace, name: str, plans: dict[str, Plan]) -> None:
    """One client after the other, under one name, as long as the process lives."""
    number = 0
    while not _stopping.is_set():
        number += 1
        life = f"{name}.{os.getpid()}-{number}"
        journal = Journal(arguments.journal / f"{name}.jsonl", life)
        plan = LoggedPlan(
            arguments.url,
            Recorder(SystemClock().monotonic, journal.write),
            segments=SEGMENTS,
            pause_s=arguments.pause,
        )
        plans[name] = plan
        await ClientLife(real_ports(life, arguments.seed), plan).live()


_stopping = asyncio.Event()


async def _main() -> None:
    arguments = _arguments()
    plans: dict[str, Plan] = {}

    def stop() -> None:
        _stopping.set()
        for plan in plans.values():
            plan.active = False

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    async with asyncio.TaskGroup() as group:
        for number in range(arguments.clients):
            group.create_task(_live(arguments, client_name(arguments.name, number), plans))


def client_name(worker: str, number: int) -> str:
    return f"{worker}-{number}"


if __name__ == "__main__":
    asyncio.run(_main())
