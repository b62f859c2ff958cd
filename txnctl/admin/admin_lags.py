"""Computes the lag of subscriptions from the answers of the segments' owners. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

LAG_FIELDS = ("lag_messages", "lag_seconds")

Answers = Mapping[str, Mapping[str, Any]]
"""For each segment, by path: the owner's answer to `subscription.lag`, or `{"error": …}`."""


def segment_lag(answer: Mapping[str, Any], subscription: str, now_ms: int) -> dict[str, Any]:
    """`lag_messages` and `lag_seconds` of a subscription in one segment. None: not known, ▲ which is never told as 0:
    the owner does not answer, is older, or has much to read before it knows."""
    lag = answer.get("lags", {}).get(subscription)
    if lag is None:
        return dict.fromkeys(LAG_FIELDS)
    messages, oldest_ms = lag["messages"], lag["oldest_ms"]
    if messages == 0:
        return {"lag_messages": 0, "lag_seconds": 0.0}
    age_s = None if oldest_ms is None else round(max(0, now_ms - oldest_ms) / 1000, 1)
    return {"lag_messages": messages, "lag_seconds": age_s}


def total_lag(lags: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The sum of the messages and the highest age; None if one of them is not known."""
    told = list(lags)
    messages = [one["lag_messages"] for one in told]
    ages_s = [one["lag_seconds"] for one in told]
    return {
        "lag_messages": None if None in messages else sum(messages),
        "lag_seconds": None if None in ages_s else max(ages_s, default=0.0),
    }


def subscription_lag(answers: Answers, subscription: str, now_ms: int) -> dict[str, Any]:
    """The total of a subscription, and its `segments`: of each `segment`, its lag, and the `error` of an owner that has
    not answered."""
    segments = [
        {"segment": path, **segment_lag(answer, subscription, now_ms)}
        | ({"error": answer["error"]} if "error" in answer else {})
        for path, answer in answers.items()
    ]
    return {**total_lag(segments), "segments": segments}
