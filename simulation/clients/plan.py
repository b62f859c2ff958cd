"""What the client processes of one run share."""

from __future__ import annotations

import random
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Protocol

import txnclient
from simulation.clients.careless import Careless, GivenUp
from simulation.clients.lag_judge import LagJudge
from simulation.clients.recorder import Recorder
from simulation.clients.shared_parts import SharedParts
from simulation.faults.damage import invents_a_failure, names_a_file
from simulation.judges.let_go import Lifetimes
from txnclient.connection.opening import Opening
from txnwire.errors import (
    ConnectionLost,
    DataCorrupt,
    InvalidTxnState,
    NotAllowed,
    NotOwner,
    Overloaded,
    StoreFull,
    StoreUnavailable,
    Timeout,
    TxnConflict,
    TxnError,
    WouldBlock,
)
from txnwire.ports import Clock, Transport

TOPICS = ("topic://public/sim/in", "topic://aborted/watermark/out")
"""The second topic's names look like parts of keys."""
SUBSCRIPTION = "workers"

EXPECTED = (InvalidTxnState, TxnConflict, NotAllowed, WouldBlock, NotOwner, StoreUnavailable, StoreFull, Overloaded,
            ConnectionLost, Timeout, GivenUp)  # fmt: skip
"""Errors that clients may meet during faults. Any other is a finding: corrupt data, internal errors, lost ids."""


class NamedProcess(Protocol):
    @property
    def name(self) -> str: ...


class ClientPorts(Protocol):
    """A client process' ports. `owner.name` is the process', unique for each of its lives."""

    @property
    def owner(self) -> NamedProcess: ...
    @property
    def transport(self) -> Transport: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def random(self) -> random.Random: ...


@dataclass(slots=True)
class Plan:
    """Shared by one run's clients. `active`: they stop taking up new work once it is False."""

    url: str
    recorder: Recorder
    segments: int = 2
    """Initial segments of each topic."""
    subscriptions: tuple[tuple[str, str], ...] = ((TOPICS[0], SUBSCRIPTION),)
    """(topic, stream subscription) of everything in the history."""
    pause_s: float = 0.15
    """Mean pause of a client between two operations."""
    active: bool = True
    careless: float = 0.0
    """Share of calls that clients cancel (`simulation.clients.careless`)."""
    lifetimes: Lifetimes = field(default_factory=Lifetimes)
    cut: int = 0
    """Number of cancelled calls."""
    steady_clocks: bool = True
    """Whether all wall clocks agree, and no fault sets them: only then it is known when a message is due."""
    next_value: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """How often clients met which error, for the report."""
    unexpected: list[str] = field(default_factory=list)
    damaged: Callable[[], bool] = lambda: False
    """Whether bits have flipped on some disk: then clients may get errors about damaged files."""
    unreadable: Callable[[], Container[str]] = tuple
    """Files that some disk has failed to read: then clients may get errors about these."""
    resolved: int = 0
    """Transactions whose outcome only the final question showed."""
    lags: LagJudge = field(default_factory=LagJudge)
    shared: SharedParts = field(init=False)

    def __post_init__(self) -> None:
        self.shared = SharedParts(self.recorder)

    def value(self, process: str) -> str:
        self.next_value += 1
        return f"{process}-{self.next_value}"

    def caller(self, chance: random.Random) -> Careless:
        return Careless(chance, self.careless, self._was_cut)

    def connect(
        self,
        ports: ClientPorts,
        *,
        timeout: float = 10.0,
        transport: Transport | None = None,
        transaction_key: str | None = None,
        client_name: str = "txnclient",
    ) -> Opening[txnclient.Client]:
        """`transport`: used instead of that of `ports`."""
        return txnclient.connect(
            self.url,
            timeout=timeout,
            transport=transport or ports.transport,
            clock=ports.clock,
            random=ports.random,
            transaction_key=transaction_key,
            client_name=client_name,
        )

    def _was_cut(self) -> None:
        self.cut += 1

    def met(self, process: str, error: TxnError) -> None:
        name = type(error).__name__
        self.errors[name] = self.errors.get(name, 0) + 1
        if isinstance(error, DataCorrupt) and self.damaged() and names_a_file(str(error)):
            return
        if not isinstance(error, EXPECTED) or invents_a_failure(str(error), self.unreadable()):
            self.unexpected.append(f"{self.recorder.now():.3f} {process}: {name}: {error}")
