"""Whether everything that was committed came out once, whole, in one micro-batch. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

SHOWN = 5


@dataclass
class Journal:
    """What the workload has done: of each transaction its messages by those of its writers that count, and its fate."""

    committed: dict[str, list[str]] = field(default_factory=dict)
    alone: list[str] = field(default_factory=list)
    """Acknowledged, in no transaction."""
    never: list[str] = field(default_factory=list)
    """Of aborted transactions, those left to their deadlines, and losing writers."""
    unknown: list[str] = field(default_factory=list)
    """They may be there or not."""
    kinds: Counter[str] = field(default_factory=Counter)


class Out(NamedTuple):
    """A message of the output. `txn`: that it was read in."""

    ident: str
    batch: int
    run: int
    txn: str


class Seen(NamedTuple):
    """What one attempt of a task was given."""

    batch: int
    run: int
    partition: int
    idents: tuple[str, ...]
    txns: tuple[str, ...]
    whole: bool
    again: int = 0
    """Counts how often the same run has read the batch before."""


def judge(
    journal: Journal,
    source: Sequence[str],
    output: Sequence[Out],
    seen: Iterable[Seen],
    replayed: Mapping[int, Sequence[str]],
) -> list[str]:
    """Findings; none where all is well. `source`: what a reader finds committed in the topics that were read."""
    committed = [name for names in journal.committed.values() for name in names] + journal.alone
    findings = [
        *_compared("the input", committed, source, maybe=journal.unknown),
        *_compared("the output", source, [one.ident for one in output]),
    ]
    batches: dict[int, list[str]] = defaultdict(list)
    batch_of: dict[str, int] = {}
    by_txn: dict[str, dict[int, None]] = defaultdict(dict)
    for one in output:
        batches[one.batch].append(one.ident)
        batch_of[one.ident] = one.batch
        if one.txn:
            by_txn[one.txn][one.batch] = None
    for txn, names in journal.committed.items():
        if len(found := sorted({batch_of[name] for name in names if name in batch_of})) > 1:
            findings.append(f"{txn} is in the batches {found}")
    for txn, where in by_txn.items():
        if len(where) > 1:
            findings.append(f"{txn} is in the batches {sorted(where)}")
    findings += _seen(seen, batches)
    for number, again in replayed.items():
        findings += _compared(f"batch {number}, read again at the end,", batches.pop(number, []), again)
    findings += [f"batch {number} is in the output and not in the checkpoint" for number in batches]
    return findings


def _seen(seen: Iterable[Seen], batches: Mapping[int, Sequence[str]]) -> list[str]:
    """▲ Whatever run of a batch saw, of one that was killed too, is what the output has of the batch."""
    findings = []
    parts: dict[tuple[int, int, int, str], int] = {}
    members = {number: Counter(names) for number, names in batches.items()}
    for one in seen:
        extra = Counter(one.idents) - members.get(one.batch, Counter())
        if extra:
            findings.append(f"run {one.run} of batch {one.batch} saw besides: {_some(extra)}")
        for name in one.idents:
            other = parts.setdefault((one.batch, one.run, one.again, name), one.partition)
            if other != one.partition:
                findings.append(f"tasks {other} and {one.partition} of batch {one.batch}, run {one.run}, saw {name}")
    return findings


def _compared(what: str, expected: Iterable[str], found: Iterable[str], maybe: Iterable[str] = ()) -> list[str]:
    wanted, there = Counter(expected), Counter(found)
    possible = Counter(maybe)
    findings = []
    if missing := wanted - there:
        findings.append(f"{what} lacks {missing.total()}: {_some(missing)}")
    if surplus := there - wanted - possible:
        findings.append(f"{what} has {surplus.total()} too many: {_some(surplus)}")
    return findings


def _some(names: Counter[str]) -> str:
    return ", ".join(islice(names, SHOWN))
