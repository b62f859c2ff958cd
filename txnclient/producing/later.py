"""When a message is to be delivered on queues, from what its sender says. Pure."""

from __future__ import annotations

import math
from datetime import timedelta
from operator import index

from txnwire.errors import InvalidArgument
from txnwire.protocol import MAX_DELAY_MS

DAYS = MAX_DELAY_MS // 86_400_000


def delivery_time_ms(deliver_after: float | timedelta | None, deliver_at_ms: int | None, now_ms: int) -> int:
    """In ms since 1970; 0: at once. `deliver_after`: in seconds. Raises `InvalidArgument`."""
    if deliver_after is not None and deliver_at_ms is not None:
        raise InvalidArgument(
            "deliver_after and deliver_at_ms both say when the message is delivered: give one of them"
        )
    if deliver_after is not None:
        seconds = deliver_after.total_seconds() if isinstance(deliver_after, timedelta) else deliver_after
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not abs(seconds) < math.inf:
            raise InvalidArgument(f"deliver_after is a number of seconds or a timedelta, not {deliver_after!r}")
        if seconds < 0:
            raise InvalidArgument(f"deliver_after must not be negative: {deliver_after!r}")
        if seconds * 1000 > MAX_DELAY_MS:
            raise InvalidArgument(f"deliver_after is at most {DAYS} days, not {seconds!r:.20} s")
        # ▲ `now_ms` is cut to whole ms: without 1 ms more the message could come a part of a millisecond too early.
        return now_ms + 1 + math.ceil(seconds * 1000) if seconds else 0
    if deliver_at_ms is None:
        return 0
    try:
        at_ms = index(deliver_at_ms)
    except TypeError:
        raise InvalidArgument(
            f"deliver_at_ms is a whole number, of ms since 1970, not {type(deliver_at_ms).__name__}"
        ) from None
    if at_ms > now_ms + MAX_DELAY_MS:
        raise InvalidArgument(f"deliver_at_ms is at most {DAYS} days from now, {now_ms + MAX_DELAY_MS}, not {at_ms}")
    return at_ms if at_ms > now_ms else 0
