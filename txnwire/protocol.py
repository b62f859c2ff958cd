"""Versions and limits of everything on the wire and in entries. Each number is stated only here.

The Hello handshake refuses a peer with another `PROTOCOL_VERSION` with an error that names both versions; the reader of
a frame or entry refuses another version.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

PROTOCOL_VERSION: Final = 1
"""Version of the commands' meaning; exchanged in Hello. Raised when an old peer would misunderstand a new one."""

FRAME_VERSION: Final = 1
"""Version of the frame format, field `version` of every `Frame`."""

ENTRY_VERSION: Final = 1
"""Version of the entry's fixed header, in its third byte."""

BLOCK_VERSION: Final = 1
"""Version of the columnar block inside an entry, in the block's first byte."""

MAX_VALUE_BYTES: Final = 5 * MIB
"""One message's value; larger ones are refused (or sent in chunks, within a transaction)."""

MAX_CHUNKED_BYTES: Final = 256 * MIB
"""A value sent in pieces; a consumer holds it in memory until the last piece has come."""

ENTRY_OVERHEAD_BYTES: Final = 64 * KIB
MAX_ENTRY_BYTES: Final = MAX_VALUE_BYTES + ENTRY_OVERHEAD_BYTES
"""A whole entry as it is stored: header, metadata and the block after compression."""

MAX_BLOCK_BYTES: Final = 32 * MIB
"""A block before compression. A reader allocates at most this much for an entry, whatever its metadata claims."""

MAX_ENTRY_MESSAGES: Final = 100_000
"""Messages of one entry: its ack bitmap must fit a record of the metadata store."""

MAX_COMMAND_BYTES: Final = 8 * MIB
"""One serialized command; `send_nowait` refuses a larger one with `MessageTooLarge`."""

FRAME_TARGET_BYTES: Final = 4 * MIB
FRAME_TARGET_COMMANDS: Final = 1000
"""Gathered commands above either limit are sent as several frames; a single larger command is sent alone. A frame of
more commands is refused: handling them would block all other tasks."""

MAX_FRAME_BYTES: Final = MAX_COMMAND_BYTES + 64
"""The largest frame that a transport must carry, in both directions: the largest command and its frame's few bytes."""

MAX_OUTSTANDING_REQUESTS: Final = 100_000
"""Unanswered requests on one connection. The caller's 100 001st raises `Overloaded`; a server ends the connection."""

MAX_PENDING_BYTES: Final = 64 * MIB
"""Bytes waiting to be sent to one peer. Above it the peer counts as not reading, and the connection is ended."""

MAX_PERMITS: Final = 1_000_000
"""Most permits of one `Flow`; several commands grant more."""

MAX_DELAY_MS: Final = 30 * 24 * 3600 * 1000
"""Longest delay of a nack, and of a message's delivery on queues."""

MAX_SESSION_ID_BYTES: Final = 64
