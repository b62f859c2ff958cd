"""Takes the name of a numbered producer at one segment, and reports its stored ids (DESIGN §7, "Numbered producers").

Theory of operation:

1. Fence earlier lives of the name in memory: their connection ends, and none of them opens here again.
2. Wait until everything appended before is stored. ▲ An entry of an earlier life that is on its way counts as stored,
   or its message would be sent again under another life.
3. Write the fence beside the open ledger, ▲ before the answer: otherwise an earlier life could store, under the next
   owner, messages that the later life was told are missing.
4. ▲ After the write, check whether a successor has closed that ledger: otherwise an owner that slept and was replaced
   would report ids while an earlier life adds others at the successor.
5. Answer with the ids stored here.

A segment whose seal may still be taken back answers nothing yet. One that is sealed for good stores nothing more, so it
needs no new fence and only reports its ids; a fence from before its seal still refuses earlier lives, which ask the
ancestors of a segment before they open there.
"""

from __future__ import annotations

from typing import NamedTuple

from segments.ledger.ledger import LedgerFailed
from segments.log.sends.numbered import KnownIds
from segments.owner.segment import Segment
from txnwire.errors import SegmentSealed, StoreUnavailable


class TakenName(NamedTuple):
    """`taken`: False if a later life, of `epoch`, has the name. `sealed`: for good."""

    taken: bool
    epoch: int
    sealed: bool = False
    known: KnownIds = KnownIds()


async def take_name(segment: Segment, name: str, epoch: int, incarnation: int) -> TakenName:
    """Raises `SegmentSealed` while a seal may be taken back, `NotOwner`, `StoreUnavailable` if the fence could not be
    written."""
    segment.check()
    names, ledgers = segment.producers.names, segment.ledgers
    if ledgers.ended:
        if names.is_fenced(name, epoch, incarnation):
            return TakenName(False, names.epoch_of(name))
        return TakenName(True, epoch, True, names.known(name))
    if ledgers.sealed:
        raise SegmentSealed(f"{segment.path} has a seal that the layout does not show yet: ask again")
    if not segment.producers.take_name(name, epoch, incarnation):
        return TakenName(False, names.epoch_of(name))
    if not names.is_durable(name):
        try:
            await segment.pipeline.checkpoint(settle=True)
        except LedgerFailed as error:
            # ▲ Not as a defect: the caller asks again, and it must not end a producer that has messages under way.
            raise StoreUnavailable(f"{segment.path}: the name of producer {name} was not written: {error}") from error
        if ledgers.sealed and not ledgers.ended:
            raise SegmentSealed(f"{segment.path} was sealed meanwhile: ask again once the layout shows it")
        names.made_durable(name, epoch, incarnation)
    segment.check()
    if names.is_fenced(name, epoch, incarnation):
        return TakenName(False, names.epoch_of(name))
    return TakenName(True, epoch, ledgers.ended, names.known(name))
