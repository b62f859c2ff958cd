"""Checks that this etcd is still the one we have worked with: detects a restored backup before anything is written to
it (E8, DESIGN §4). Pure.

Every write of etcd is one entry of its Raft log and raises its revision by one at most. So the log's index minus the
revision never falls as long as an etcd lives. `etcdctl snapshot restore` keeps the revision and begins a new log, so
the difference falls by all that was ever written. Neither the cluster id (made of names and addresses, so unchanged)
nor any record shows that. `/incarnation` records how far the index was ahead when it was written, and each connected
member is asked how far it is ahead now. A client that stays connected sees the revision go back.
"""

from __future__ import annotations

from typing import Final

from txnstore import keys
from txnstore.records import Incarnation, decode
from txnstore.store import KeyValue
from txnwire.errors import DataCorrupt

HOW_TO_REPAIR: Final = "stop every process of the cluster, run `txnctl check --repair`, then start them again"


class StoreUnfit(DataCorrupt):
    """etcd was restored from a backup, or its repair has not ended. This process reads and writes nothing more and
    ends; none starts before `txnctl check --repair` has finished."""


class Lineage:
    """Tracks the identity and revisions of one store client's etcd. `repairing`: admits an unfit store."""

    def __init__(self, *, repairing: bool = False) -> None:
        self._repairing = repairing
        self._known: str | None = None
        self.newest = 0
        """The highest revision in any answer."""
        self.incarnation_revision = 0
        """The mod revision of `/incarnation` as last read, 0 for none."""

    def known_as(self, incarnation: str) -> None:
        """▲ Also called for a store that had no identity when the client connected."""
        self._known = incarnation

    def admit(self, record: KeyValue | None, *, floor: int, revision: int, raft_index: int, raft_revision: int) -> None:
        """Judge a member before it is used. `record` is `/incarnation` and `revision` that of its answer, both read
        linearizably when `newest` was `floor`; the log had at least `raft_index` when the revision was `raft_revision`.

        Raises `StoreUnfit`."""
        found = None if record is None else decode(Incarnation, record.value, key=keys.INCARNATION)
        if not self._repairing:
            self.answered(floor, revision)
            self._judge(found, raft_index - raft_revision)
        self.newest = max(self.newest, revision)
        self._known = self._known if found is None else found.id
        self.incarnation_revision = 0 if record is None else record.mod_revision

    def _judge(self, found: Incarnation | None, raft_lead: int) -> None:
        if self._known is not None and (found is None or found.id != self._known):
            now = "none" if found is None else found.id
            raise StoreUnfit(
                f"etcd's store was {self._known} and is {now} by now: it was repaired or replaced under this process"
            )
        if found is None:
            return
        if found.repair:
            raise StoreUnfit(f"etcd must be repaired ({found.repair}): {HOW_TO_REPAIR}")
        if found.raft_lead is not None and raft_lead < found.raft_lead:
            raise StoreUnfit(
                f"etcd has been restored from a backup: its raft index minus its revision is {raft_lead}, and once "
                f"was {found.raft_lead}. It lacks all writes after the backup: {HOW_TO_REPAIR}"
            )

    def answered(self, floor: int, revision: int) -> None:
        """`revision` is that of the answer to a linearizable request sent when `newest` was `floor`. Raises
        `StoreUnfit` if it goes back."""
        if revision < floor and not self._repairing:
            raise StoreUnfit(
                f"etcd has gone back from revision {floor} to {revision}, as when a backup is restored: {HOW_TO_REPAIR}"
            )
        if revision > self.newest:
            self.newest = revision
