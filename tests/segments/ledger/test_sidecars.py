"""What a sidecar holds is what was to stand in it."""

from __future__ import annotations

import pytest

from segments.ledger.sidecars import decode_sidecar, encode_sidecar
from txnwire.errors import DataCorrupt
from txnwire.ids import Position, TxnId
from watchers.visibility import AbortedKey


def test_r3_each_loser_of_a_transaction_stands_in_it_and_writer_0_is_not_the_whole_transaction() -> None:
    aborted: dict[AbortedKey, Position] = {
        (TxnId(0, 1), 0): Position(3, 5),
        (TxnId(0, 1), 7): Position(3, 9),
        (TxnId(0, 1), 8): Position(2, 1),
        (TxnId(0, 2), None): Position(3, 8),
    }
    assert decode_sidecar(encode_sidecar(3, aborted), 3, "the sidecar") == aborted


@pytest.mark.parametrize("data", [b"", b"no sidecar", encode_sidecar(3, {})[:-1], encode_sidecar(4, {})])
def test_what_is_no_sidecar_of_the_ledger_is_told_as_damage(data: bytes) -> None:
    with pytest.raises(DataCorrupt, match="the sidecar: "):
        decode_sidecar(data, 3, "the sidecar")
