"""Producers whose buffers hold two values."""

from __future__ import annotations

import pytest

import txnclient
from tests.txnclient.scripted_server import Cluster, ScriptedServer
from txnclient.options import ProducerOptions

SMALL: ProducerOptions = {"buffer_bytes": 1000, "batch_bytes": 1000, "compression": None}


"""Of a producer whose buffer holds two values of 400 bytes."""


def go_on(server: ScriptedServer) -> None:
    server.stall_sends = False
    server.finish_sends()


def values_of(cluster: Cluster, key: bytes = b"k") -> list[bytes]:
    return cluster.values_by_key().get(key, [])


async def can_only_abort(cluster: Cluster, txn: txnclient.Transaction, match: str = "can only abort") -> None:
    with pytest.raises(txnclient.InvalidTxnState, match=match):
        await txn.commit()
    assert cluster.states[txn.id] == "ABORTED"
