"""Keeps where a stream began in the end of its first batch, because Spark's checkpoint holds only ends of batches.

A restarted driver asks for the initial offset again, also to repeat its first batch. The answer may differ: the newest
position has moved on, or retention has taken something. ▲ So the end of the first batch says where that batch begins,
and the new answer is ignored.

    initial(cut, isolation)           {…, "initial": true}
    untold(reason, isolation)         the same where the answer is an error: {…, "untold": "…"}
    ending(start, cut, isolation)     {…, "from": {…}} if `start` is initial
    between(start, end, isolation)    the cuts of a batch

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark_txnstore.shared.offset_codec import Isolation, check_isolation, decode_offset, encode_offset
from txnclient.reading.snapshot import Snapshot
from txnwire.errors import InvalidArgument

_INITIAL: Final = "initial"
_FROM: Final = "from"
_UNTOLD: Final = "untold"

Offset = dict[str, Any]


def initial(cut: Snapshot | None, isolation: Isolation) -> Offset:
    """The offset of a stream that begins there; None: before everything."""
    return {**encode_offset(cut, isolation), _INITIAL: True}


def untold(reason: str, isolation: Isolation) -> Offset:
    """The offset of a stream whose start is no longer known, because the topics that its options name have changed.
    ▲ No error, because a repeated first batch does not need the start; no other batch may begin here."""
    return {**initial(None, isolation), _UNTOLD: reason}


def ending(start: Mapping[str, Any], cut: Snapshot, isolation: Isolation) -> Offset:
    """The end of a batch from `start` to `cut`."""
    end: Offset = {**encode_offset(cut, isolation)}
    if start.get(_INITIAL):
        end[_FROM] = {key: value for key, value in start.items() if key != _INITIAL}
    return end


def is_untold(offset: Mapping[str, Any]) -> bool:
    return _UNTOLD in offset


def decoded(offset: Mapping[str, Any], isolation: Isolation) -> Snapshot | None:
    """The cut of an offset of this stream. Raises `InvalidArgument` for other offsets and another isolation."""
    if is_untold(offset):
        raise InvalidArgument(f"the start of the query is not known: {offset[_UNTOLD]}")
    cut = decode_offset(offset)
    check_isolation(offset, cut, isolation)
    return cut


def between(
    start: Mapping[str, Any], end: Mapping[str, Any], isolation: Isolation
) -> tuple[Snapshot | None, Snapshot] | None:
    """Returns the cuts of a batch; None for the empty batch with which a stream only begins.

    Raises `InvalidArgument` as `decoded`."""
    if end.get(_INITIAL):
        return None
    until = decoded(end, isolation)
    if until is None:
        return None
    begin = end.get(_FROM, start)
    if not isinstance(begin, Mapping):
        raise InvalidArgument(f"not an offset of txnstore: it begins {_FROM} {begin!r:.80}")
    return decoded(begin, isolation), until
