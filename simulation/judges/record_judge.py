"""Checks headers, ids, op records and names at every revision of a store, from its changes. Pure.

Readers seldom see a broken rule of DESIGN §4 or §5: mostly a record exists for a while that should not. So every change
is compared with the rules, and with its author if known. Transaction keys have a judge of their own
(`simulation.judges.key_judge`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simulation.judges.transaction_records import KeptHeader, OpHolder, Records
from txnstore import keys
from txnstore.access.backend import Reason, Refused
from txnstore.memory.memory_etcd import Arrival
from txnstore.records import (
    ABORTED,
    COMMITTED,
    OPEN,
    REASON_SESSION,
    REASON_TIMEOUT,
    REASON_UNANSWERED,
    TxnName,
    TxnSeq,
)
from txnstore.store import CommitVerdict, Event
from txnwire.ids import TxnId

SWEPT = (REASON_TIMEOUT, REASON_SESSION, REASON_UNANSWERED)
"""Reasons of aborts that no client asked for: only the owner of the coordinator id makes them."""
MOST_FINDINGS = 30


class RecordJudge:
    """Call it with all changes of a store, revision by revision, and before each with the request that made it, if
    there was one."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self._now = Records()
        self._made: tuple[int, str] = (0, "")

    def met(self, arrival: Arrival) -> None:
        """No write of ours may be refused for its size or form: it would be refused for ever."""
        if isinstance(arrival.outcome, Refused) and arrival.outcome.reason is Reason.MALFORMED:
            self.findings.append(f"a {arrival.request} of {arrival.client} is refused: {arrival.outcome}")
        if arrival.request == "commit" and isinstance(arrival.outcome, list):
            last: CommitVerdict = arrival.outcome[-1]
            self._made = (last.revision, arrival.client)

    def saw(self, events: Sequence[Event]) -> None:
        """Everything that changed at one revision."""
        revision, client = self._made
        author = client if revision == events[0].record.mod_revision else None
        now = self._now
        changed = now.apply(events)
        if changed is None:
            return
        revision = events[0].record.mod_revision
        found: list[str] = []
        for key, before in changed.headers.items():
            found += self._header(key, before, now.headers.get(key), author)
        for key in changed.ops:
            found += self._op(key, author)
        for participant in changed.participants:
            found += self._participant(participant)
        for participant in changed.cleared:
            found += self._cleared(participant)
        for tcid, seq in changed.seqs.items():
            found += self._seq(tcid, seq)
        for key in changed.deadlines:
            found += self._deadline(key)
        for name, named in changed.names.items():
            found += self._name(name, named)
        for segment, txn_id in changed.unplaced:
            if segment in now.owners:
                found.append(
                    f"the aborted record of {txn_id} in {segment}, which has an owner, is put without a position"
                )
        if changed.horizon_fell:
            found.append("/gc-horizon goes back")
        room = MOST_FINDINGS - len(self.findings)
        self.findings += [f"revision {revision}{f' by {author}' if author else ''}: {text}" for text in found[:room]]

    # ---- headers ----

    def _header(
        self, key: bytes, before: KeptHeader | None, after: KeptHeader | None, author: str | None
    ) -> Iterable[str]:
        txn_id = keys.txn_of(key)
        if after is None:
            return () if before is None else self._collected(txn_id, before)
        if after.version == 1:
            return self._begun(txn_id, after, author)
        return self._decided(txn_id, before, after, author)

    def _begun(self, txn_id: TxnId, after: KeptHeader, author: str | None) -> Iterable[str]:
        now = self._now
        if after.header.state != OPEN:
            yield f"{txn_id} begins as {after.header.state}"
        if txn_id in now.given_out:
            yield f"{txn_id} begins a second time"
        now.given_out[txn_id] = None
        seq, owner = now.seqs.get(txn_id.tcid), now.tcs.get(txn_id.tcid)
        if seq is None or txn_id.counter >= seq.next:
            yield f"{txn_id} begins, an id of no block"
        elif txn_id.counter < seq.indexed_below:
            yield f"{txn_id} begins below the late-index mark {seq.indexed_below}"
        if owner is None:
            yield f"{txn_id} begins, and nobody owns its coordinator id"
        elif txn_id.counter < owner.first_id or author not in (None, owner.id):
            yield f"{txn_id} begins by an owner that was succeeded by {owner.id}"
        if after.header.name is not None:
            named = now.names.get(after.header.name)
            if named is None or named.txn_id != str(txn_id):
                yield f"{txn_id} begins under the name {after.header.name!r}, which does not lead to it"

    def _decided(
        self, txn_id: TxnId, before: KeptHeader | None, after: KeptHeader, author: str | None
    ) -> Iterable[str]:
        now, header = self._now, after.header
        if after.version != 2 or before is None or before.header.state != OPEN or header.state == OPEN:
            was = "absent" if before is None else before.header.state
            yield f"{txn_id}, which was {was}, is put as {header.state} (version {after.version})"
        owner = now.tcs.get(txn_id.tcid)
        # The owner that ended it may have lost its id before its early abort arrived, and know no deadline key: the
        # sweep finds it. Also if it succeeded itself: then the transaction is from before.
        ours = author is None or (owner is not None and author == owner.id and txn_id.counter >= owner.first_id)
        if (deadline := now.deadlines.get(txn_id)) is not None and ours:
            yield f"{txn_id} is {header.state} and keeps its deadline key of {deadline}"
        if header.name is not None and header.reason in (REASON_SESSION, REASON_UNANSWERED):
            yield f"{txn_id} is aborted ({header.reason}), which a named one never is: others may have joined it"
        if header.reason in SWEPT and author is not None and author != (owner.id if owner else None):
            yield f"{txn_id} is aborted ({header.reason}) by {author}, its owner is {owner.id if owner else 'nobody'}"

    def _collected(self, txn_id: TxnId, before: KeptHeader) -> Iterable[str]:
        now = self._now
        if before.header.state == OPEN:
            yield f"{txn_id} is collected while it is open"
        if ops := now.ops_of.get(txn_id):
            yield f"{txn_id} is collected with ops of {next(iter(ops))} left"
        if (kept := now.outcome(txn_id)) != before.header.state:
            yield f"{txn_id} is collected: it was {before.header.state}, and is known as {kept}"
        if before.mod_revision > now.horizon:
            yield f"{txn_id}, decided at {before.mod_revision}, is collected behind the horizon {now.horizon}"
        named = now.names.get(before.header.name or "")
        ended = (str(txn_id), before.header.state, before.header.writers)
        if named is not None and named.txn_id == ended[0] and (named.txn_id, named.outcome, named.writers) != ended:
            yield f"{txn_id} is collected, and its name {before.header.name!r} does not say how it ended"

    # ---- ops ----

    def _op(self, key: bytes, author: str | None) -> Iterable[str]:
        now, name = self._now, key.decode()
        txn_id, segment, _ = keys.op_parts(key)
        epoch = int(name.rpartition("/")[2].partition("-")[0])
        header, owner = now.headers.get(keys.txn(txn_id)), now.owners.get(segment)
        if header is None or header.header.state != OPEN:
            yield f"{name} is put, its transaction is {'absent' if header is None else header.header.state}"
        if owner is None or owner.epoch != epoch or author not in (None, owner.broker):
            now_owned = "nobody" if owner is None else f"{owner.broker}, under epoch {owner.epoch}"
            yield f"{name} is put, the segment's owner is {now_owned}"
        if key in now.used:
            yield f"{name} is put a second time"
        now.used[key] = None

    def _participant(self, participant: OpHolder) -> Iterable[str]:
        """An index key exists exactly while there are ops."""
        ops, indexed = self._now.ops.get(participant), participant in self._now.indexed
        if bool(ops) != indexed:
            yield f"{participant} has {len(ops or ())} ops and {'an' if indexed else 'no'} index key"

    def _cleared(self, participant: OpHolder) -> Iterable[str]:
        """The last op of a participant is gone."""
        now = self._now
        header = now.headers.get(keys.txn(participant.txn_id))
        if header is None or participant.segment in now.owners or now.is_going(participant.segment):
            return
        writes, recorded = participant.subscription is None, (participant.segment, participant.txn_id) in now.aborted
        if header.header.state == COMMITTED and not writes:
            yield f"{participant} committed, go while nobody owns the segment"
        elif header.header.state == ABORTED and writes and not recorded:
            yield f"{participant} aborted, go without a record while nobody owns the segment"

    # ---- ids, deadlines, names ----

    def _seq(self, tcid: int, before: TxnSeq | None) -> Iterable[str]:
        now = self._now
        seq = now.seqs[tcid]
        if before is not None and (seq.next < before.next or seq.indexed_below < before.indexed_below):
            yield f"/txn-seq/{tcid:04x} goes back, from {before} to {seq}"
        if tcid not in now.tcs:
            yield f"/txn-seq/{tcid:04x} is written, and nobody owns the coordinator id"
        if before is not None and seq.indexed_below > before.indexed_below:
            for counter in range(before.indexed_below, seq.indexed_below):
                txn_id = TxnId(tcid, counter)
                header = now.headers.get(keys.txn(txn_id))
                if header is not None and header.header.state == OPEN and txn_id not in now.deadlines:
                    yield f"the late-index mark {seq.indexed_below} passes {txn_id}, open without a deadline key"

    def _deadline(self, key: bytes) -> Iterable[str]:
        _, txn_id = keys.deadline_parts(key)
        header = self._now.headers.get(keys.txn(txn_id))
        if header is None or header.header.state != OPEN:
            yield f"{key.decode()} is put, its transaction is {'absent' if header is None else header.header.state}"

    def _name(self, name: str, before: TxnName | None) -> Iterable[str]:
        now = self._now
        after = now.names.get(name)
        if before is None:
            return
        if after is None:
            yield from self._forgotten(name, before)
            return
        header = now.headers.get(keys.txn(TxnId.parse(before.txn_id)))
        if after.txn_id == before.txn_id:
            if header is not None:
                yield f"the name {name!r} is told of an outcome of {after.txn_id}, which is not collected"
            return
        state = before.outcome if header is None else header.header.state
        if state != ABORTED:
            yield f"the name {name!r} goes from {before.txn_id}, which is {state}, to {after.txn_id}"

    def _forgotten(self, name: str, before: TxnName) -> Iterable[str]:
        """Wall clocks, which are stepped here, decide how long a name is kept; what it keeps for ever is judged."""
        outcome = self._outcome(before)
        if outcome == OPEN:
            yield f"the name {name!r} is forgotten, and {before.txn_id} is not decided"
        if outcome == COMMITTED and before.keep_newest:
            made, prefix = self._now.names_made, name.rpartition("/")[0]
            newer = (
                other
                for other, named in self._now.names.items()
                if named.keep_newest and other.rpartition("/")[0] == prefix and self._outcome(named) == COMMITTED
                if (made[other], other) > (made[name], name)
            )
            if next(newer, None) is None:
                yield f"the name {name!r} is forgotten, the newest commit of its prefix"

    def _outcome(self, named: TxnName) -> str:
        """OPEN also where its record says nothing and its header is gone: neither may happen to a name."""
        header = self._now.headers.get(keys.txn(TxnId.parse(named.txn_id)))
        return named.outcome or (OPEN if header is None else header.header.state)
