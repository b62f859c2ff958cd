"""A judge of what subscriptions are told of how far they are behind.

A lag may be unknown, but what is told is exact. Under faults that shows only where it is below 0. At rest it covers
all that a consumer then gets, and it is 0 behind that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txnclient.consuming.places.lag import Lag


@dataclass(slots=True)
class LagJudge:
    """Of all subscriptions of a run."""

    asked: int = 0
    told: int = 0
    """Answers that were known in all segments."""
    drained_to_0: int = 0
    findings: list[str] = field(default_factory=list)

    def heard(self, what: str, lag: Lag) -> None:
        """An answer, whenever it was given."""
        self.asked += 1
        self.told += lag.messages is not None
        for path, one in lag.segments.items():
            if (one.messages or 0) < 0 or (one.seconds or 0) < 0:
                self.findings.append(f"lag: {what} is told {one} in {path}")
            if one.messages == 0 and one.seconds:
                self.findings.append(f"lag: {what} is behind by nothing in {path}, and that for {one.seconds} s")

    def drained(self, what: str, before: Lag, taken: int, after: Lag) -> None:
        """At rest: `taken` messages, none of them acked before, came between two answers, and were acked."""
        self.heard(what, before)
        self.heard(what, after)
        if before.messages is not None and before.messages < taken:
            self.findings.append(f"lag: {what} is told {before.messages} messages, and {taken} came")
        if after.messages:
            behind = {path: one for path, one in after.segments.items() if one.messages}
            self.findings.append(f"lag: {what} is told {after.messages} messages, and none came any more: {behind}")
        self.drained_to_0 += after.messages == 0
