"""Snapshots and expires all producers of a segment in parts, and yields to other tasks in between: a hundred thousand
producers take a tenth of a second."""

from __future__ import annotations

import asyncio
from typing import Final

from segments.log.sends.dedup import Dedup, join_parts
from segments.log.sends.sending import SendReply
from txnwire.ports import Clock

PARTS_A_ROUND: Final = 1000


async def snapshot_in_turns(dedup: Dedup[SendReply], now_s: float) -> bytes:
    """As `Dedup.snapshot`. Nothing may be stored meanwhile."""
    parts = []
    for part in dedup.snapshot_parts(now_s):
        parts.append(part)
        await asyncio.sleep(0)
    numbered = []
    for part in dedup.numbered_parts(now_s):
        numbered.append(part)
        await asyncio.sleep(0)
    return join_parts(parts, numbered)


async def forget_in_turns(dedup: Dedup[SendReply], clock: Clock) -> None:
    """Forget idle producers (`Dedup.expire`), at most `PARTS_A_ROUND` parts per call; the next call continues."""
    for _ in range(PARTS_A_ROUND):
        if not dedup.expire(clock.monotonic()):
            return
        await asyncio.sleep(0)
