"""Checks transaction keys at every revision of a store, from its changes. Pure. Source: DESIGN §9."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from txnstore import keys, records
from txnstore.records import COMMITTED, OPEN, Header
from txnstore.store import Event, EventKind, KeyValue
from txnstore.writes.key_transitions import UNUSED, KeyState, read_key


class KeyJudge:
    """Call it with all changes of a store, revision by revision; `findings` says what is broken, and since when."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self.commits: dict[bytes, list[int]] = {}
        """By the key's record: the epochs of its committed transactions, in commit order."""
        self._keys: dict[bytes, KeyState] = {}
        self._headers: dict[bytes, Header] = {}
        self._attempts: dict[tuple[bytes, str], int] = {}
        """The epoch that each attempt to connect has taken."""

    def saw(self, events: Sequence[Event]) -> None:
        """Everything that changed at one revision."""
        headers = {event.record.key: _header(event) for event in events if event.record.key.startswith(keys.TXN)}
        moved = [event.record for event in events if event.record.key.startswith(keys.TXN_KEY)]
        before = {record.key: self._keys.get(record.key, UNUSED) for record in moved}
        for name, header in headers.items():
            if header is None:
                self._headers.pop(name, None)
            else:
                self._headers[name] = header
        for event in events:
            if event.record.key.startswith(keys.TXN_KEY):
                self._saw_key(before[event.record.key], event)
        for name, header in headers.items():
            if header is not None and header.txn_key is not None:
                self._saw_header(name, header)

    def _saw_key(self, before: KeyState, event: Event) -> None:
        record = event.record
        if event.kind is EventKind.DELETE:
            self._found(record, "is deleted: its epochs would begin anew")
            return
        now = self._keys[record.key] = read_key(record)
        old, new = before.record, now.record
        self._still_open(record, before)
        if new.epoch == old.epoch:
            if (new.attempt, new.since_ms, new.deleted_ms) != (old.attempt, old.since_ms, old.deleted_ms):
                self._found(record, f"epoch {new.epoch} has two holders")
            if new.begins != old.begins + 1 or before.deleted:
                self._found(record, f"begin {new.begins} of epoch {new.epoch} behind begin {old.begins}")
        elif new.epoch != old.epoch + 1:
            self._found(record, f"goes from epoch {old.epoch} to {new.epoch}")
        elif new.txn_id is not None or new.begins:
            self._found(record, f"epoch {new.epoch} begins with a transaction of the one before")
        if new.attempt and self._attempts.setdefault((record.key, new.attempt), new.epoch) != new.epoch:
            taken = self._attempts[record.key, new.attempt]
            self._found(record, f"a connect that took epoch {taken} takes epoch {new.epoch} as well")

    def _still_open(self, record: KeyValue, before: KeyState) -> None:
        txn_id = before.txn_id
        header = None if txn_id is None else self._headers.get(keys.txn(txn_id))
        if header is not None and header.state == OPEN:
            self._found(record, f"moves on while {txn_id} is open")

    def _saw_header(self, name: bytes, header: Header) -> None:
        key = keys.txn_key(header.owner, header.txn_key or "")
        state = self._keys.get(key, UNUSED)
        if header.state == OPEN and (state.record.epoch, state.txn_id) != (header.key_epoch, keys.txn_of(name)):
            self.findings.append(
                f"{name.decode()} begins in epoch {header.key_epoch} of {key.decode()}, which does not name it"
            )
        if header.state == COMMITTED:
            self.commits.setdefault(key, []).append(header.key_epoch or 0)
            if state.record.epoch != header.key_epoch:
                now = state.record.epoch
                self.findings.append(f"{name.decode()} commits in epoch {header.key_epoch}, {key.decode()} is at {now}")

    def _found(self, record: KeyValue, what: str) -> None:
        self.findings.append(f"{record.key.decode()} at revision {record.mod_revision}: {what}")


def judge(changes: Iterable[Sequence[Event]]) -> KeyJudge:
    """Judges a whole history, from the first revision on."""
    found = KeyJudge()
    for events in changes:
        found.saw(events)
    return found


def _header(event: Event) -> Header | None:
    if event.kind is EventKind.DELETE:
        return None
    return records.decode(Header, event.record.value, key=event.record.key)
