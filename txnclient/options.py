"""Types of the options of producers, consumers and readers, except topics and serializer.

The calls in `client.py` name every option with its default; a test holds the two together.
"""

from __future__ import annotations

from re import Pattern
from typing import TypedDict

from txnclient.consuming.places.starts import StartArgument
from txnclient.reading.snapshot import Snapshot


class ProducerOptions(TypedDict, total=False):
    name: str | None
    sequence_id: int | None
    linger_ms: float
    batch_bytes: int
    compression: str | None
    compression_level: int
    buffer_bytes: int


class ConsumerOptions(TypedDict, total=False):
    type: str
    start: StartArgument
    isolation: str
    name: str | None
    prefetch: int
    prefetch_bytes: int
    max_redeliveries: int | None
    dead_letter_topic: str | None
    redelivery_delay: float
    topics_pattern: str | Pattern[str] | None
    ack_timeout: float | None


class ReaderOptions(TypedDict, total=False):
    start: StartArgument | Snapshot
    end: str | Snapshot | None
    at_least: int
    isolation: str
    prefetch: int
    prefetch_bytes: int
