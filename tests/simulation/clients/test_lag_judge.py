"""What a subscription is told of its lag is exact, or it is a finding."""

from __future__ import annotations

import pytest

from simulation.clients.lag_judge import LagJudge
from txnclient.consuming.places.lag import Lag, SegmentLag


def lag(messages: int | None, seconds: float | None = 0.0) -> Lag:
    return Lag(messages, seconds, {"a/b/c/0000-ffff-0": SegmentLag(messages, seconds)})


def test_a_lag_that_covers_what_comes_and_is_0_behind_it_is_right() -> None:
    lags = LagJudge()
    lags.drained("jobs", lag(3, 2.0), 2, lag(0))
    lags.drained("jobs", lag(None, None), 2, lag(None, None))
    assert (lags.findings, lags.asked, lags.told, lags.drained_to_0) == ([], 4, 2, 1)


@pytest.mark.parametrize(
    ("before", "taken", "after", "finding"),
    [
        (lag(1, 2.0), 2, lag(0), "is told 1 messages, and 2 came"),
        (lag(2, 2.0), 2, lag(1, 2.0), "is told 1 messages, and none came any more"),
        (lag(-1), 0, lag(0), "is told SegmentLag(messages=-1"),
        (lag(0, 2.0), 0, lag(0), "is behind by nothing"),
    ],
)
def test_planted_mistakes_are_found(before: Lag, taken: int, after: Lag, finding: str) -> None:
    lags = LagJudge()
    lags.drained("jobs", before, taken, after)
    assert finding in lags.findings[0]
