"""What is done to all producers of a segment, a part at a time: of a hundred thousand it takes a tenth of a second, and
others have their turns of the event loop in between."""

from __future__ import annotations

import asyncio
from typing import Final

from segments.log.dedup import Dedup, join_parts
from segments.log.sending import SendReply
from txnwire.ports import Clock

PARTS_A_ROUND: Final = 1000


async def snapshot_in_turns(dedup: Dedup[SendReply], now_s: float) -> bytes:
    """As `Dedup.snapshot`. Nothing may be stored meanwhile."""
    parts = []
    for part in dedup.snapshot_parts(now_s):
        parts.append(part)
        await asyncio.sleep(0)
    return join_parts(parts)


async def forget_in_turns(dedup: Dedup[SendReply], clock: Clock) -> None:
    """Producers that have been idle for so long. What is left after so many is left to the next time."""
    for _ in range(PARTS_A_ROUND):
        if not dedup.expire(clock.monotonic()):
            return
        await asyncio.sleep(0)
