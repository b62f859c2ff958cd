"""What is known of very many producers, taken in parts with pauses in between: nothing is left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from segments.log.sends.dedup import EXPIRED_AT_ONCE, PART_PRODUCERS, Dedup
from segments.log.sends.dedup_turns import forget_in_turns, snapshot_in_turns
from txnwire.ids import Position

IDLE_S = 3600.0


def known(producers: int) -> Dedup[Any]:
    """So many producers with an entry each, and three numbered ones."""
    dedup: Dedup[Any] = Dedup(idle_s=IDLE_S)
    for number in range(producers):
        dedup.replay(f"p{number}", 1, 0, 1, Position(1, number), 0.0)
    for name in ("a", "b", "c"):
        dedup.numbered.take(name, 1, 1, 0.0)
    return dedup


async def test_l7_a_snapshot_taken_in_turns_has_every_producer() -> None:
    """▲ It is the footer: a resend of a producer that it lacks would be stored twice."""
    dedup = known(2 * PART_PRODUCERS + 1)
    assert await snapshot_in_turns(dedup, 10.0) == dedup.snapshot(10.0)
    successor: Dedup[Any] = Dedup(idle_s=IDLE_S)
    successor.restore(await snapshot_in_turns(dedup, 10.0), 0.0)
    assert successor.statistics().remembered == 2 * PART_PRODUCERS + 4


async def test_all_idle_producers_are_forgotten_in_turns() -> None:
    dedup = known(2 * EXPIRED_AT_ONCE + 1)
    clock: Any = SimpleNamespace(monotonic=lambda: IDLE_S + 1)
    await forget_in_turns(dedup, clock)
    assert dedup.statistics().remembered == 0
