"""The admin role's answers about transaction keys: their holders, and the deletion of a key (003, "Admin API")."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog

from coordinator_v5 import queries
from coordinator_v5.naming import transaction_keys
from coordinator_v5.queries import KeyDescription
from segments.layout.directory import Directory
from txnctl.admin.admin_arguments import MAX_ROWS, number_of
from txnctl.admin.admin_rows import unreadable_rows
from txnctl.admin.role_calls import RoleCalls
from txnstore import keys
from txnstore.access.paging import in_parts
from txnstore.records import OPEN
from txnstore.store import MetadataStore
from txnwire.errors import NameNotFound, TxnError
from txnwire.names import validate_transaction_key
from txnwire.ports import Clock
from txnwire.transport.serving import ANONYMOUS

Arguments = Mapping[str, Any]

log = structlog.get_logger()


KEYS_AT_ONCE = 1000
"""Keys that one request asks coordinators about."""

IN_USE, IDLE, UNKNOWN, DELETED = "in use", "idle", "unknown", "deleted"
"""State of a key: its holder is connected to a coordinator; to none; to none of those that have answered."""


FIELDS = ("key", "owner", "epoch", "state", "held_s", "begins", "txn", "txn_state", "txn_age_s")


class KeyAnswers:
    def __init__(self, store: MetadataStore, clock: Clock, directory: Directory, calls: RoleCalls) -> None:
        self._store = store
        self._clock = clock
        self._directory = directory
        self._calls = calls

    @property
    def answers(self) -> Mapping[str, Callable[[Arguments], Awaitable[dict[str, Any]]]]:
        return {"keys.list": self._list, "keys.get": self._get, "keys.delete": self._delete}

    async def _list(self, args: Arguments) -> dict[str, Any]:
        unreadable: list[queries.UnreadableRecord] = []
        found = await queries.transaction_keys(
            self._store,
            unreadable=unreadable,
            owner=args.get("owner"),
            deleted=bool(args.get("deleted")),
            limit=int(number_of(args, "limit", 1000, most=MAX_ROWS)) or 1000,
        )
        return {"keys": await self._rows(found) + unreadable_rows(unreadable, keys.TXN_KEY, FIELDS)}

    async def _get(self, args: Arguments) -> dict[str, Any]:
        (row,) = await self._rows([await self._found(args)])
        return row

    async def _delete(self, args: Arguments) -> dict[str, Any]:
        """With an `epoch`, deletes the key only at that epoch: a late repeat cannot delete a later holder's key."""
        found = await self._found(args)
        await transaction_keys.delete(
            self._store,
            self._clock,
            owner=found.owner,
            key=found.key,
            epoch=int(number_of(args, "epoch", found.record.epoch, most=1 << 53)),
        )
        return await self._get(args)

    async def _found(self, args: Arguments) -> KeyDescription:
        owner, key = str(args.get("owner") or ANONYMOUS), validate_transaction_key(args.get("key") or "")
        found = await queries.transaction_key(self._store, owner, key)
        if found is None:
            raise NameNotFound(f"{owner} has no transaction key {key!r}; `txnctl keys list` shows those there are")
        return found

    async def _rows(self, found: Sequence[KeyDescription]) -> list[dict[str, Any]]:
        addresses = {info.address: None for info in self._directory.coordinators().values()}
        unanswered: dict[str, None] = {}
        rows: list[dict[str, Any]] = []
        for part in in_parts(found, KEYS_AT_ONCE):
            rows += await self._rows_of(part, addresses, unanswered)
        return rows

    async def _rows_of(
        self, found: Sequence[KeyDescription], addresses: Iterable[str], unanswered: dict[str, None]
    ) -> list[dict[str, Any]]:
        """`unanswered`: coordinators that are not waited for again."""
        asked = [address for address in addresses if address not in unanswered]
        names = [[one.owner, one.key] for one in found]
        told = await asyncio.gather(*(self._epochs_held(address, names) for address in asked))
        unanswered |= {address: None for address, epochs in zip(asked, told, strict=True) if epochs is None}
        answers = [epochs for epochs in told if epochs is not None]
        all_answered = bool(answers) and not unanswered
        rows = []
        for number, one in enumerate(found):
            here = any(epochs[number] == one.record.epoch for epochs in answers)
            rows.append(self._row(one, IN_USE if here else IDLE if all_answered else UNKNOWN))
        return rows

    async def _epochs_held(self, address: str, names: Sequence[Sequence[str]]) -> Sequence[int | None] | None:
        """None for a coordinator that does not answer."""
        try:
            answer = await self._calls.ask(address, "coordinator.keys", keys=names)
        except TxnError as error:
            log.info("a coordinator does not report its clients", address=address, error=str(error))
            return None
        epochs: list[int | None] = answer["epochs"]
        return epochs

    def _row(self, one: KeyDescription, state: str) -> dict[str, Any]:
        record, header, now_ms = one.record, one.header, self._clock.wall_ms()
        is_open = header is not None and header.state == OPEN
        return {
            "key": one.key,
            "owner": one.owner,
            "epoch": record.epoch,
            "state": DELETED if record.deleted_ms else state,
            "held_s": round((now_ms - (record.deleted_ms or record.since_ms)) / 1000, 1),
            "begins": record.begins,
            "txn": record.txn_id,
            "txn_state": None if header is None else header.state,
            "txn_age_s": round((now_ms - header.created_ms) / 1000, 1) if header is not None and is_open else None,
        }
