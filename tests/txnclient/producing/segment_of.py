"""The segment that a message was stored in."""

from __future__ import annotations

from tests.txnclient.scripted_server import SEGMENTS
from txnwire.ids import hash_key


def segment_of(key: str) -> str:
    return SEGMENTS[hash_key(key.encode()) >> 15]
