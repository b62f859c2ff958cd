"""Where a stream began, kept in its first batch's end: of Spark's checkpoint the ends of batches are all there is.

A driver that starts again asks for the initial offset anew, also to run its first batch once more. What it is told then
is another: the newest has moved on, retention has taken something. ▲ So the end of the first batch tells where that
batch begins, and the answer that is given anew counts for nothing.

    initial(cut)           {…, "initial": true}
    ending(start, cut)     {…, "from": {…}} if `start` is initial
    between(start, end)    the cuts of a batch

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark_txnstore.offset_codec import decode_offset, encode_offset
from txnclient.snapshot import Snapshot
from txnwire.errors import InvalidArgument

_INITIAL: Final = "initial"
_FROM: Final = "from"

Offset = dict[str, Any]


def initial(cut: Snapshot | None) -> Offset:
    """Of a stream that begins there; None: before everything."""
    return {**encode_offset(cut), _INITIAL: True}


def ending(start: Mapping[str, Any], cut: Snapshot) -> Offset:
    """Of a batch from `start` to `cut`."""
    if not start.get(_INITIAL):
        return dict(encode_offset(cut))
    return {**encode_offset(cut), _FROM: {key: value for key, value in start.items() if key != _INITIAL}}


def between(start: Mapping[str, Any], end: Mapping[str, Any]) -> tuple[Snapshot | None, Snapshot] | None:
    """The cuts that a batch lies between; None of one that is empty by itself: the stream has begun, no more.

    Raises `InvalidArgument` for what is no offset."""
    if end.get(_INITIAL):
        return None
    until = decode_offset(end)
    if until is None:
        return None
    begin = end.get(_FROM, start)
    if not isinstance(begin, Mapping):
        raise InvalidArgument(f"not an offset of txnstore: it begins {_FROM} {begin!r:.80}")
    return decode_offset(begin), until
