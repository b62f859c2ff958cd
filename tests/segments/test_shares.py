"""How consumers of one broker share what may wait for them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from segments.settings import BrokerSettings
from segments.shares import LEAST_BYTES, DeliveryShares

SETTINGS = BrokerSettings()


def test_few_have_all_that_helps() -> None:
    shares = DeliveryShares(SETTINGS)
    for number in range(64):
        shares.join(number)
    assert shares.pending_bytes == SETTINGS.connection_pending_bytes
    assert (shares.deliver_bytes, shares.read_bytes) == (SETTINGS.deliver_bytes, SETTINGS.read_bytes)


@given(st.integers(1, 8192))
def test_together_they_stay_below_the_bound(count: int) -> None:
    shares = DeliveryShares(SETTINGS)
    shares._consumers = dict.fromkeys(range(count - 1))
    shares.join(count)
    each = shares.pending_bytes + shares.deliver_bytes + shares.read_bytes
    assert count * each <= SETTINGS.broker_deliveries_bytes
    assert each >= LEAST_BYTES * 3 // 4


def test_who_leaves_gives_its_share_back_once() -> None:
    shares = DeliveryShares(SETTINGS)
    for number in range(1000):
        shares.join(number)
        shares.join(number)
    alone, crowded = DeliveryShares(SETTINGS).pending_bytes, shares.pending_bytes
    assert crowded < alone
    for number in range(999):
        shares.leave(number)
        shares.leave(number)
    assert (shares.consumers, shares.pending_bytes) == (1, alone)
