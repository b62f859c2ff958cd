"""Judges the reports about flipped bits: they may say where, by file, and nothing else (R5).

Runs with such faults are judged like all others: damage is repaired, so everything acknowledged must be there in the
end, and no value may be seen that was not sent. Meanwhile a request that needs damaged data gets an error.
"""

from __future__ import annotations

import re
from collections.abc import Container

_UNREAD = re.compile(r"\breading (\S+): ")
_NAMED = re.compile(r"-\d+/\d+\.(ledger|footer|sidecar)\b")


def names_a_file(text: str) -> bool:
    """Whether the message tells a client, or a reader of the log, what is damaged: a segment's file, by its path."""
    return _NAMED.search(text) is not None


def invents_a_failure(text: str, unreadable: Container[str]) -> bool:
    """Whether it reports an unreadable file that no disk has failed to read."""
    found = _UNREAD.search(text)
    return found is not None and found[1] not in unreadable
