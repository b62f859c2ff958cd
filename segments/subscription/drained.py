"""Records that a subscription has consumed all of a sealed segment: the controller may then assign its children.

The owner writes the record (`/drained/<topic>/<subscription>/<segment id>`), and it follows the cursor: ▲ put only when
the cursor in etcd is at the segment's end and no ack is pending, deleted before a cursor moves back. Between the two it
survives crashes and changes of owner (DESIGN §8, "drained"; scenario S7). Pure.
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
    """A subscription's progress, as a `DrainedMark` reads it."""

    @property
    def drained(self) -> bool:
        """Whether its cursor in memory is at the end of a finally sealed segment, with no ack pending."""


class DrainedMark:
    """Plans the writes of one (segment, subscription)'s drained record. Implements `clean_up_plans.BehindCursor`.

    `end`: returns the segment's end, called once it is drained. `subscription_created`: the create revision of the
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
        """The record exists, or its subscription is gone."""
        self._held = False

    @property
    def due(self) -> bool:
        """Whether the record must be put once the cursor is stored."""
        return not self._settled and not self._held and self._consumption.drained

    def commit(self) -> Commit:
        """▲ Compares the segment's owner and the subscription's create revision: a subscription recreated under the
        same name must not get the mark."""
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
        self._settled = True  # also if a predecessor has put it, or the subscription is gone

    # ---- going back -------------------------------------------------------------------------------------------------

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within this context `due` is False: the cursor is about to move back."""
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def take_back(self) -> Commit:
        """▲ Call before the cursor moves back, with no `commit` in flight. The record is put again once due again."""
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
