"""What may be said of bits that have flipped: where, by file, and nothing else (R5).

Runs with such faults are judged as all others are: damage is put right again, so everything acknowledged must be there
in the end, and no value that nobody sent may ever be seen. Meanwhile whoever needs what is damaged is told so.
"""

from __future__ import annotations

import re
from collections.abc import Container

_UNREAD = re.compile(r"\breading (\S+): ")
_NAMED = re.compile(r"-\d+/\d+\.(ledger|footer|sidecar)\b")


def names_a_file(text: str) -> bool:
    """Whether a client, or the one who reads the log, can find what is damaged: a segment's file, by its path."""
    return _NAMED.search(text) is not None


def invents_a_failure(text: str, unreadable: Container[str]) -> bool:
    """Whether it tells of a file that could not be read, and no disk has failed to read that one."""
    found = _UNREAD.search(text)
    return found is not None and found[1] not in unreadable
