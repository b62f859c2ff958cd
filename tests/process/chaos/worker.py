"""A worker process of chaos: clients that do the simulation's workloads against real servers, until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from pathlib import Path

from simulation.clients.careless import share_of
from simulation.clients.plan import Plan
from simulation.clients.recorder import Recorder
from tests.process.chaos.journal import Journal, open_journal
from tests.process.chaos.works import ENDING, WORKS, Said, Works
from txnwire.clock import SystemClock
from txnwire.errors import TxnError

SEGMENTS = 3
RESTART_S = 0.5
ENDED_WITHIN_S = 25.0
"""Of clients that are told to end in a healthy cluster: longer than any call of theirs may take."""
UNEXPECTED = "UNEXPECTED"
"""Begins a line of the log that is a finding."""


def say_unexpected(text: str) -> None:
    print(f"{UNEXPECTED} {text}", flush=True)


class LoggedPlan(Plan):
    life = ""

    def value(self, process: str) -> str:
        """▲ Of a name that no other life gives: each has a plan of its own."""
        return super().value(self.life)

    def met(self, process: str, error: TxnError) -> None:
        print(f"{self.recorder.now():.3f} {process} met {type(error).__name__}: {error}", flush=True)
        super().met(process, error)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument("--journal", type=Path, required=True)
    return parser.parse_args()


class Worker:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._works = Works(arguments.seed, arguments.journal, say_unexpected)
        self._stopping = asyncio.Event()
        self._plans: dict[str, Plan] = {}

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._stop)
        tasks = {asyncio.create_task(self._live(client), name=client) for client in WORKS[self._arguments.name]}
        stopped = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
        _, late = await asyncio.wait(tasks, timeout=ENDED_WITHIN_S if self._stopping.is_set() else 0)
        for task in late:
            if task.get_name() in ENDING:
                say_unexpected(f"{task.get_name()} did not end within {ENDED_WITHIN_S:g} s: {task.get_stack()}")
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, asyncio.CancelledError):
                raise outcome

    def _stop(self) -> None:
        self._stopping.set()
        for plan in self._plans.values():
            plan.active = False

    async def _live(self, client: str) -> None:
        """One life after the other, under one name, as long as the process lives."""
        number = 0
        file = open_journal(self._arguments.journal / f"{client}.jsonl")
        while not self._stopping.is_set():
            number += 1
            name = f"{client}.{os.getpid()}-{number}"
            recorder = Recorder(SystemClock().monotonic, Journal(file, name).write)
            plan = LoggedPlan(self._arguments.url, recorder, segments=SEGMENTS, pause_s=self._arguments.pause)
            plan.life = name
            plan.careless = share_of(self._arguments.seed)
            plan.unexpected = Said(say_unexpected)
            self._plans[client] = plan
            await self._works.life(client, name, plan).live()
            try:
                async with asyncio.timeout(RESTART_S):
                    await self._stopping.wait()
            except TimeoutError:
                continue


if __name__ == "__main__":
    asyncio.run(Worker(_arguments()).run())
