"""Whether what looks lost was held back by transactions that have aborted since: all of them are asked about (X2)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pyspark_txnstore.shared.options import SourceOptions
from pyspark_txnstore.source import cuts
from pyspark_txnstore.source.cuts import Cuts
from txnclient import Snapshot
from txnclient.reading.snapshot import SegmentBounds, TopicBounds
from txnwire.ids import Position, TxnId

TOPIC, PATH = "topic://t/n/name", "t/n/name/0000-ffff-0"
PENDING = tuple(TxnId(0, number) for number in range(1, 6))
START = Snapshot(5, {TOPIC: TopicBounds(1, {PATH: SegmentBounds(Position(1, 0), Position(1, 9))})}, pending=PENDING)
END = Snapshot(9, {TOPIC: TopicBounds(1, {PATH: SegmentBounds(Position(1, 9), Position(1, 9))})})


class Outcomes:
    """A cluster in which one of them has committed, or so, and the others have aborted."""

    def __init__(self, committed: TxnId | None, outcome: str) -> None:
        self.committed = committed
        self.outcome = outcome

    def outcomes(self, asked: Sequence[TxnId]) -> dict[TxnId, str]:
        return {txn_id: self.outcome if txn_id == self.committed else "ABORTED" for txn_id in asked}


@pytest.mark.parametrize("outcome", ["COMMITTED", "OPEN", "UNKNOWN"])
@pytest.mark.parametrize("committed", [None, *PENDING], ids=str)
def test_x2_one_commit_among_many_that_were_held_back_is_a_loss(
    monkeypatch: pytest.MonkeyPatch, committed: TxnId | None, outcome: str
) -> None:
    """▲ However many are asked about at once: what it wrote would be passed over unheard."""
    monkeypatch.setattr(cuts, "ASKED_AT_ONCE", 2)
    monkeypatch.setattr(cuts, "client_of", lambda *_, **__: Outcomes(committed, outcome))
    asking = Cuts(SourceOptions.parse({"service.url": "txn://h:1", "topic": TOPIC}, use="stream read"))
    settled = asking.settled(START, END)
    assert (settled is None) == (committed is not None)
    if settled is not None:
        assert (settled[0].pending, settled[1].aborted) == ((), PENDING)
