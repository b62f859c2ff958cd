"""`cursor`: over ledgers that are known by their lengths alone."""

from __future__ import annotations

import pytest

from segments.subscription.cursors.cursor import Cursor
from tests.segments.ledger_lengths import LedgerLengths
from txnwire.ids import EARLIEST


@pytest.fixture
def ledgers() -> LedgerLengths:
    return LedgerLengths({1: 10, 3: 0, 4: 10_000})


@pytest.fixture
def cursor(ledgers: LedgerLengths) -> Cursor:
    return Cursor(ledgers, EARLIEST)
