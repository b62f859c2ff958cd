"""Hashes everything that happened: the same seed must give the same hash in any process and machine (DESIGN §13)."""

from __future__ import annotations

import hashlib
from typing import TextIO

_FLUSH_BYTES = 1 << 16


class Trace:
    """Takes every scheduled event, delivery and write, in order. `log`: also as text, to compare two runs line by line
    when their hashes differ."""

    def __init__(self, log: TextIO | None = None) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._buffer = bytearray()
        self._log = log
        self.events = 0

    @property
    def logging(self) -> bool:
        return self._log is not None

    def step(self, microseconds: int, owner: int) -> None:
        """One callback of one process. The hot path: no text is made for it."""
        self.events += 1
        self._buffer += b"%d.%d;" % (microseconds, owner)
        if len(self._buffer) > _FLUSH_BYTES:
            self._flush()

    def record(self, time_s: float, kind: str, *parts: object, data: bytes = b"") -> None:
        """`parts` must print the same in every run: no addresses, no default `repr`."""
        self.events += 1
        text = f"{time_s:.6f} {kind} {' '.join(map(str, parts))}"
        self._buffer += text.encode()
        if data:
            self._buffer += hashlib.blake2b(data, digest_size=8).digest()
        if self._log is not None:
            self._log.write(f"{text} {hashlib.blake2b(data, digest_size=4).hexdigest() if data else ''}\n")

    def note(self, text: str) -> None:
        """For the log only."""
        if self._log is not None:
            self._log.write(text + "\n")

    def _flush(self) -> None:
        self._hash.update(self._buffer)
        self._buffer.clear()

    def digest(self) -> str:
        self._flush()
        return self._hash.hexdigest()
