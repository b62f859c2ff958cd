"""Whether this etcd is still the one we have worked with: one that was put back from a backup is found out before
anything is written to it (E8, DESIGN §4). Pure.

Every write of etcd is one entry of its Raft log and raises its revision by one at most. So the log's index less the
revision never falls, as long as an etcd lives. `etcdctl snapshot restore` keeps the revision and begins a new log: the
difference falls by all that was ever written, which neither a new cluster id (it is made of names and addresses, and is
the same) nor any record tells. `/incarnation` says how far the index was ahead when it was written, and any member that
is connected to is asked how far it is now. Whoever is connected all along sees a revision that goes back.
"""

from __future__ import annotations

from typing import Final

from txnstore import keys
from txnstore.records import Incarnation, decode
from txnstore.store import KeyValue
from txnwire.errors import DataCorrupt

HOW_TO_REPAIR: Final = "stop every process of the cluster, run `txnctl check --repair`, then start them again"


class StoreUnfit(DataCorrupt):
    """etcd is not what it was: restored from a backup, or its repair has not ended. Nothing more is read or written by
    this process; it ends, and none starts before `txnctl check --repair` has come to its end."""


class Lineage:
    """What one store client knows of its etcd. `repairing`: it is to work on one that is unfit."""

    def __init__(self, *, repairing: bool = False) -> None:
        self._repairing = repairing
        self._known: str | None = None
        self.newest = 0
        """The highest revision that any answer has told."""
        self.incarnation_revision = 0
        """The mod revision of `/incarnation` as it was read last, 0 for none."""

    def known_as(self, incarnation: str) -> None:
        """▲ Also of a store that had no identity yet when it was connected to."""
        self._known = incarnation

    def admit(self, record: KeyValue | None, *, floor: int, revision: int, raft_index: int, raft_revision: int) -> None:
        """Judge a member before it is used: `record` is `/incarnation`, `revision` what the answer with it told, both
        read linearizably, when `newest` was `floor`; `raft_index` is of the log it had at least when its revision was
        `raft_revision`.

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
                f"etcd has been restored from a backup: its log is {raft_lead} entries ahead of its revision, and once "
                f"was {found.raft_lead}. What was acknowledged since the backup is gone from it: {HOW_TO_REPAIR}"
            )

    def answered(self, floor: int, revision: int) -> None:
        """`revision` was told in answer to a linearizable request that was sent when `newest` was `floor`. Raises
        `StoreUnfit` where it goes back."""
        if revision < floor and not self._repairing:
            raise StoreUnfit(
                f"etcd has gone back from revision {floor} to {revision}, as when a backup is restored: {HOW_TO_REPAIR}"
            )
        if revision > self.newest:
            self.newest = revision
