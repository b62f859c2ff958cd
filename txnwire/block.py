"""The columnar block inside an entry (DESIGN §7): Arrow-layout buffers, built and read in bulk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class OutgoingMessage(NamedTuple):
    """One message to be encoded. `event_time_ms`: milliseconds since the Unix epoch, the application's own time."""

    value: bytes
    key: bytes | None = None
    properties: Mapping[str, str] | None = None
    event_time_ms: int | None = None


class Block:
    """The messages of one entry, read in place."""

    def __len__(self) -> int:
        raise NotImplementedError

    def value(self, index: int) -> bytes:
        raise NotImplementedError

    def key(self, index: int) -> bytes | None:
        raise NotImplementedError

    def properties(self, index: int) -> dict[str, str]:
        raise NotImplementedError

    def event_time_ms(self, index: int) -> int | None:
        raise NotImplementedError

    def values(self) -> list[bytes]:
        """All values in order: one pass, for consumers that take whole entries."""
        raise NotImplementedError
