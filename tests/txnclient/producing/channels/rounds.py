"""Rounds of keyed messages sent while segments move."""

from __future__ import annotations

from txnwire.ids import hash_key

KEYS = [f"k{number}" for number in range(16)]


LOW = [key for key in KEYS if hash_key(key.encode()) < 0x8000]
