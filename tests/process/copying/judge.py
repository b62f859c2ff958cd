"""What must be true of a copy: nothing lost, doubled or out of order per key, and each transaction whole or not at all.
Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.process.copying.journal import Ended


@dataclass(frozen=True, slots=True)
class Copied:
    """A message of the output. `number`: the how manieth of the input it is a copy of."""

    key: bytes
    number: int
    txn: str


SHOWN = 8


def judge(
    expected: int, followed: Sequence[Copied], read: Sequence[Copied], stored: Sequence[Copied], ended: Sequence[Ended]
) -> list[str]:
    """`followed`: what a live reader was given; `read`: what another one finds at the end; `stored`: everything that
    stands there, also of transactions that were aborted. Empty where all is well."""
    return [
        *_all_once("the follower", expected, followed),
        *_all_once("a reader at the end", expected, read),
        *_in_order("the follower", followed),
        *_in_order("a reader at the end", read),
        *_whole(read, ended),
        *_aborted_are_there(stored, ended),
    ]


def _all_once(who: str, expected: int, messages: Sequence[Copied]) -> Iterator[str]:
    counts = Counter(message.number for message in messages)
    for wrong, numbers in (
        ("was never given", [number for number in range(expected) if number not in counts]),
        ("was given twice", [number for number, count in counts.items() if count > 1]),
        ("was given what nobody wrote", [number for number in counts if not 0 <= number < expected]),
    ):
        if numbers:
            yield f"{who} {wrong}: {_some(numbers)}"


def _in_order(who: str, messages: Sequence[Copied]) -> Iterator[str]:
    of_key: dict[bytes, list[int]] = defaultdict(list)
    for message in messages:
        of_key[message.key].append(message.number)
    back = [after for numbers in of_key.values() for before, after in pairwise(numbers) if after <= before]
    if back:
        yield f"{who} was given these behind a later one of their key: {_some(back)}"


def _whole(read: Sequence[Copied], ended: Sequence[Ended]) -> Iterator[str]:
    visible = Counter(message.txn for message in read)
    for one in ended:
        due = one.messages if one.outcome == "committed" else 0
        if visible[one.txn] != due:
            yield f"{one.txn} {one.outcome}, and {visible[one.txn]} of its {one.messages} messages are visible"


def _aborted_are_there(stored: Sequence[Copied], ended: Sequence[Ended]) -> Iterator[str]:
    """Or nothing would have been proven: what was aborted on purpose had been acknowledged before."""
    standing = Counter(message.txn for message in stored)
    for one in ended:
        if one.outcome != "failed" and standing[one.txn] != one.messages:
            yield f"{one.txn} {one.outcome}, and {standing[one.txn]} of its {one.messages} acknowledged messages stand"


def _some(numbers: Iterable[int]) -> str:
    several = sorted(numbers)
    text = ", ".join(map(str, several[:SHOWN]))
    return text if len(several) <= SHOWN else f"{text}, … ({len(several)} in all)"
