"""Histograms: quantiles are upper bounds, and nothing observed is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txnwire.histogram import LATENCY_BOUNDS_S, SIZE_BOUNDS, Histogram


@given(st.lists(st.floats(0, 20), min_size=1, max_size=200))
def test_quantiles_are_upper_bounds(observed: list[float]) -> None:
    latency = Histogram()
    for seconds in observed:
        latency.observe(seconds)
    snapshot = latency.snapshot()
    assert snapshot.count == len(observed)
    median = sorted(observed)[(len(observed) - 1) // 2]
    assert snapshot.quantile(0.5) >= median
    if max(observed) <= LATENCY_BOUNDS_S[-1]:
        assert snapshot.quantile(1.0) >= max(observed)
    assert Histogram().snapshot().quantile(0.99) == 0.0


def test_a_bound_holds_what_is_equal_to_it() -> None:
    sizes = Histogram(SIZE_BOUNDS)
    for size in (1, 2, 2, 3, 500, 501):
        sizes.observe(size)
    snapshot = sizes.snapshot()
    assert snapshot.counts == (1, 2, 1, 0, 0, 0, 0, 0, 1, 1)
    assert snapshot.total == 1009
