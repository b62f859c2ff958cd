"""Versions and limits of everything on the wire and in entries. Each number is stated here and nowhere else.

A peer with another `PROTOCOL_VERSION` is refused in the Hello handshake with an error that names both versions; a
frame or entry of another version is refused by whoever reads it.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

PROTOCOL_VERSION: Final = 1
"""Of the commands' meaning; exchanged in Hello. Raised when an old peer would misunderstand a new one."""

FRAME_VERSION: Final = 1
"""Of the frame's own form, field `version` of every `Frame`."""

ENTRY_VERSION: Final = 1
"""Of the entry's fixed header, in its third byte."""

BLOCK_VERSION: Final = 1
"""Of the columnar block inside an entry, in the block's first byte."""

MAX_VALUE_BYTES: Final = 5 * MIB
"""One message's value; larger ones are refused (or sent in chunks, within a transaction)."""

MAX_CHUNKED_BYTES: Final = 256 * MIB
"""A value sent in pieces; a consumer holds it in memory until the last of them has come."""

ENTRY_OVERHEAD_BYTES: Final = 64 * KIB
MAX_ENTRY_BYTES: Final = MAX_VALUE_BYTES + ENTRY_OVERHEAD_BYTES
"""A whole entry as it is stored: header, metadata and the block after compression."""

MAX_BLOCK_BYTES: Final = 32 * MIB
"""A block before compression. A reader allocates at most this much for an entry, whatever its metadata claims."""

MAX_ENTRY_MESSAGES: Final = 100_000
"""In one entry: what is acked of it is kept as a bitmap, which has to fit the records of the metadata store."""

MAX_COMMAND_BYTES: Final = 8 * MIB
"""One serialized command; `send_nowait` refuses a larger one with `MessageTooLarge`."""

FRAME_TARGET_BYTES: Final = 4 * MIB
FRAME_TARGET_COMMANDS: Final = 1000
"""A gathering larger than either leaves as several frames. A single larger command travels alone. A frame of more
commands is refused: they are handled one after the other, while nobody else gets a turn."""

MAX_FRAME_BYTES: Final = MAX_COMMAND_BYTES + 64
"""What a transport must let through, in both directions: the largest command and its frame's few bytes."""

MAX_OUTSTANDING_REQUESTS: Final = 100_000
"""Unanswered requests on one connection. The caller's 100 001st raises `Overloaded`; a server ends the connection."""

MAX_PENDING_BYTES: Final = 64 * MIB
"""Waiting to be sent to one peer. Past it the peer counts as not reading, and the connection is ended."""

MAX_PERMITS: Final = 1_000_000
"""Of one `Flow`; more are granted by several."""

MAX_DELAY_MS: Final = 30 * 24 * 3600 * 1000
"""Of a nack."""

MAX_SESSION_ID_BYTES: Final = 64
