"""Where a stream began, kept in its first batch's end: of Spark's checkpoint the ends of batches are all there is.

A driver that starts again asks for the initial offset anew, also to run its first batch once more. What it is told then
is another: the newest has moved on, retention has taken something. ▲ So the end of the first batch tells where that
batch begins, and the answer that is given anew counts for nothing.

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
    """Of a stream that begins there; None: before everything."""
    return {**encode_offset(cut, isolation), _INITIAL: True}


def untold(reason: str, isolation: Isolation) -> Offset:
    """Of a stream that cannot tell any more where it would begin: what its options name has changed since. ▲ No error,
    for the first batch that runs once more does not need it; nothing else may begin here."""
    return {**initial(None, isolation), _UNTOLD: reason}


def ending(start: Mapping[str, Any], cut: Snapshot, isolation: Isolation) -> Offset:
    """Of a batch from `start` to `cut`."""
    end: Offset = {**encode_offset(cut, isolation)}
    if start.get(_INITIAL):
        end[_FROM] = {key: value for key, value in start.items() if key != _INITIAL}
    return end


def is_untold(offset: Mapping[str, Any]) -> bool:
    return _UNTOLD in offset


def decoded(offset: Mapping[str, Any], isolation: Isolation) -> Snapshot | None:
    """The cut of an offset of this stream. Raises `InvalidArgument` for what is none, or of another isolation."""
    if is_untold(offset):
        raise InvalidArgument(f"where the query begins cannot be told: {offset[_UNTOLD]}")
    cut = decode_offset(offset)
    check_isolation(offset, cut, isolation)
    return cut


def between(
    start: Mapping[str, Any], end: Mapping[str, Any], isolation: Isolation
) -> tuple[Snapshot | None, Snapshot] | None:
    """The cuts that a batch lies between; None of one that is empty by itself: the stream has begun, no more.

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
