"""The history of clients' actions and observations for the checker (SCENARIOS, "The history checker"); JSON lines on
disk.

A history is written by a simulated workload or by a test that kills real processes. One line per operation; the last
line may be `{"drained": …}`. Times are seconds on one clock. A *key* is one topic, one segment family or one message
key, consistently within a history; a *value* is unique in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from txnwire.errors import DataCorrupt

Outcome = Literal["ok", "failed", "unknown"]
"""ok: it happened. failed: it definitely did not. unknown: the caller got no outcome."""

Report = Literal["committed", "aborted"]

Place = tuple[int, ...]
"""A value's place in its key's log; places compare in log order. The first number is the segment, e.g. (segment,
ledger, entry, index): over splits and merges a key moves to segments with higher numbers."""


class ReadObservation(msgspec.Struct, frozen=True, array_like=True):
    place: Place
    value: str


class Send(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`place` is None if the client did not learn it."""

    key: str
    value: str
    place: Place | None = None


class Poll(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer of a READ_COMMITTED consumer or reader; polls that failed are not recorded.

    at: when it was answered. assignment: a number that changes whenever this process' positions are reset (a new
    assignment, a rewind after an abort, a seek). assigned_at: when that happened. subscription: None for a reader.
    snapshot: the snapshot read; all polls with the same one are one reading of it.
    """

    reads: dict[str, list[ReadObservation]]
    at: float
    assignment: int = 0
    assigned_at: float = 0.0
    subscription: str | None = None
    snapshot: str | None = None


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    subscription: str
    value: str
    at: float


Ended = Literal["", "returned", "raised", "cut"]
"""How a call ended: with success, by its own error, or cancelled by its caller; "" while it goes on, and for ever if
its process was killed."""


class Call(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call and its promise. `what`: "accept" of a message that is not awaited yet, "flush" and "close" of the
    producer that accepted it; anything else, such as "send", is a call in a transaction. `values`: what it sends or
    acks."""

    what: str
    values: list[str] = []
    ended: Ended = ""


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One transaction, or one plain poll or send. `reports`: every outcome that a call or listing reported for it.
    `acks` are those made in this transaction. `told`: when its process knew of its failure and its consumers had gone
    back, None if unknown. `shared`: one writer's part of a transaction of several writers; the parts happen together,
    except those that the commit does not list, which have failed. `left`: its process left it open and went on, so the
    time of its abort is unknown. `calls`: those whose promise is judged, in call order."""

    process: str
    invoked: float
    completed: float | None
    outcome: Outcome
    sends: list[Send] = []
    polls: list[Poll] = []
    acks: list[Ack] = []
    reports: list[Report] = []
    name: str = ""
    shared: str = ""
    told: float | None = None
    left: bool = False
    calls: list[Call] = []


class History(msgspec.Struct, frozen=True, kw_only=True):
    """`operations` of one process are in the order in which it did them. `drained`: at the end everything healed and
    was read to the highest known position, so a value missing now is lost."""

    operations: list[Operation]
    drained: bool = False


class _End(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    drained: bool


def write_history(path: Path, history: History) -> None:
    lines = [msgspec.json.encode(operation) for operation in history.operations]
    lines.append(msgspec.json.encode(_End(history.drained)))
    path.write_bytes(b"\n".join(lines) + b"\n")


def read_history(path: Path) -> History:
    """Raises `DataCorrupt` naming the line that does not parse."""
    return parse_history(path.read_bytes().splitlines(), str(path))


def parse_history(lines: Iterable[bytes], where: str) -> History:
    operations: list[Operation] = []
    drained = False
    for number, line in enumerate(lines, start=1):
        try:
            if line.startswith(b'{"drained"'):
                drained = msgspec.json.decode(line, type=_End).drained
            elif line.strip():
                operations.append(msgspec.json.decode(line, type=Operation))
        except msgspec.DecodeError as error:
            raise DataCorrupt(f"{where}: line {number} is not an operation: {error}") from error
    return History(operations=operations, drained=drained)
