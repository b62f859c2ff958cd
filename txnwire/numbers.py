"""The ids that a numbered producer gives its messages, as they stand in an entry's metadata (DESIGN §7, "Numbered
producers"). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from txnwire.proto import txn_pb2 as pb


class Numbers(NamedTuple):
    """The ids of one entry. `name_epoch`: the epoch of its producer's name. `all_below`: every id of the source below
    it was stored when the entry was encoded. `ids`: one a message."""

    name_epoch: int
    all_below: int
    ids: Sequence[int]


def numbers_of(metadata: pb.EntryMetadata) -> Numbers | None:
    """The entry's numbers; None if its producer is not a numbered one."""
    if not metadata.name_epoch:
        return None
    return Numbers(metadata.name_epoch, metadata.all_below, ids_of(metadata.id_steps))


def ids_of(steps: Iterable[int]) -> list[int]:
    """The ids whose first one and differences these are."""
    return list(accumulate(steps))


def steps_of(ids: Sequence[int]) -> list[int]:
    """The first of the ids, then the difference of each from the one before it."""
    return [one - before for before, one in zip((0, *ids), ids, strict=False)]
