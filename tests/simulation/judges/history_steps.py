"""Steps of histories: sends, polls, acks and the operations that hold them."""

from __future__ import annotations

from simulation.judges.checker import check
from simulation.judges.history import (
    Ack,
    History,
    Operation,
    Outcome,
    Poll,
    ReadObservation,
    Report,
    Send,
)


def sent(value: str, entry: int | None = None, key: str = "k") -> Send:
    return Send(key=key, value=value, place=None if entry is None else (1, entry))


def poll(*found: tuple[int, str], key: str = "k", at: float = 9.0, **more: object) -> Poll:
    return Poll(reads={key: [ReadObservation((1, entry), value) for entry, value in found]}, at=at, **more)  # type: ignore[arg-type]


def moved(value: str, segment: int, entry: int) -> Send:
    """A send into one of the segments that the key "k" goes over."""
    return Send(key="k", value=value, place=(segment, entry))


def over(*found: tuple[int, int, str], at: float = 9.0, **more: object) -> Poll:
    """A poll of the key "k" over segments: (segment, entry, value)."""
    reads = {"k": [ReadObservation((segment, entry), value) for segment, entry, value in found]}
    return Poll(reads=reads, at=at, **more)  # type: ignore[arg-type]


def on_sub(*found: tuple[int, int, str], at: float, **more: object) -> Poll:
    return over(*found, at=at, subscription="sub", **more)


def acked(values: str, at: float) -> list[Ack]:
    return [Ack(subscription="sub", value=value, at=at) for value in values]


def op(
    process: str = "p",
    outcome: Outcome = "ok",
    sends: list[Send] | None = None,
    polls: list[Poll] | None = None,
    acks: list[Ack] | None = None,
    reports: list[Report] | None = None,
    at: float = 1.0,
    shared: str = "",
    name: str = "",
    told: float | None = None,
    left: bool = False,
) -> Operation:
    return Operation(
        process=process, invoked=at, completed=at + 0.5, outcome=outcome,
        sends=sends or [], polls=polls or [], acks=acks or [], reports=reports or [],
        shared=shared, name=name, told=told, left=left,
    )  # fmt: skip


def kinds(*operations: Operation, drained: bool = True) -> list[str]:
    return sorted({anomaly.kind for anomaly in check(History(operations=list(operations), drained=drained))})
