"""Telling the controller that a subscription has consumed all of a sealed segment, so that its children may be read.

The record (`/drained/<topic>/<subscription>/<segment id>`) is the owner's, and follows the cursor: ▲ it is put only
when the cursor that stands in etcd is at the segment's end and no ack is pending, and deleted before a cursor goes
back. Otherwise it stands, whoever owns the segment and whatever crashes (DESIGN §8, "drained"; scenario S7). Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from txnstore import keys, records
from txnstore.records import Drained
from txnstore.store import Commit, CommitVerdict, Delete, Put, Read, absent, created_at
from txnwire.errors import NotOwner
from txnwire.ids import Position
from txnwire.names import SegmentName


class Consumption(Protocol):
    """What of a subscription tells whether it is done."""

    @property
    def drained(self) -> bool:
        """Whether its cursor, in memory, is at the end of a segment that is sealed for good, with no ack pending."""


class DrainedMark:
    """Of one (segment, subscription). Implements `clean_up_plans.BehindCursor`.

    `end`: the segment's end, asked once it is drained. `subscription_created`: the create revision of the
    subscription's record.
    """

    def __init__(
        self,
        segment: str,
        subscription: str,
        *,
        owner_epoch: int,
        subscription_created: int,
        consumption: Consumption,
        end: Callable[[], Position | None],
    ) -> None:
        name = SegmentName.from_path(segment)
        self._key = keys.drained(name.topic.path, subscription, name.segment_id)
        self._subscription_key = keys.subscription(name.topic.path, subscription)
        self._owner_key = keys.owner(segment)
        self._owner_epoch = owner_epoch
        self._subscription_created = subscription_created
        self._consumption = consumption
        self._end = end
        self._settled = False
        """It stands, or its subscription is gone."""
        self._held = False

    @property
    def due(self) -> bool:
        """Whether it is to be put, once the cursor stands in the store."""
        return not self._settled and not self._held and self._consumption.drained

    def commit(self) -> Commit:
        """▲ Only by the segment's owner, and only for the subscription it knows, not for one made anew under its
        name."""
        end = self._end()
        assert end is not None
        return Commit(
            compares=(
                created_at(self._owner_key, self._owner_epoch),
                created_at(self._subscription_key, self._subscription_created),
                absent(self._key),
            ),
            puts=(Put(self._key, records.encode(Drained(end=end))),),
            else_reads=(Read(self._owner_key), Read(self._key)),
        )

    def settle(self, result: CommitVerdict) -> None:
        """Take the verdict of `commit`. Raises `NotOwner`."""
        if not result.succeeded:
            self._check_owner(result)
        self._settled = True  # also where a predecessor has put it, or the subscription is gone

    # ---- going back -------------------------------------------------------------------------------------------------

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is due meanwhile: the cursor is about to go back."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def take_back(self) -> Commit:
        """▲ Before the cursor goes back, and with no `commit` on its way. It is put again once it is due again."""
        self._settled = False
        return Commit(
            compares=(created_at(self._owner_key, self._owner_epoch),),
            deletes=(Delete(self._key),),
            else_reads=(Read(self._owner_key),),
        )

    def taken_back(self, result: CommitVerdict) -> None:
        """Take the verdict of `take_back`. Raises `NotOwner`."""
        if not result.succeeded:
            self._check_owner(result)

    def _check_owner(self, result: CommitVerdict) -> None:
        owner = result.reads[0][0] if result.reads[0] else None
        if owner is None or owner.create_revision != self._owner_epoch:
            raise NotOwner(f"this broker no longer owns {self._owner_key.decode()}: had epoch {self._owner_epoch}")
