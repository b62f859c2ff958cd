"""The admin role's answers about names of transactions: which are kept, and the deletion of some."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from coordinator_v5.naming import kept_names
from coordinator_v5.naming.kept_names import Deleted, KeptName
from coordinator_v5.queries import UnreadableRecord
from txnctl.admin.admin_arguments import MAX_ROWS, number_of
from txnctl.admin.admin_rows import unreadable_rows
from txnstore import keys
from txnstore.store import MetadataStore
from txnwire.errors import InvalidArgument
from txnwire.ports import Clock

Arguments = Mapping[str, Any]

log = structlog.get_logger()

FIELDS = ("name", "txn", "state", "ended_s", "known_for_s", "keep_newest", "note")


class NameAnswers:
    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    @property
    def answers(self) -> Mapping[str, Callable[[Arguments], Awaitable[dict[str, Any]]]]:
        return {"names.list": self._list, "names.delete": self._delete}

    async def _list(self, args: Arguments) -> dict[str, Any]:
        unreadable: list[UnreadableRecord] = []
        found = await kept_names.list_names(
            self._store,
            prefix=_text(args, "prefix") or "",
            namespace=_text(args, "namespace"),
            limit=int(number_of(args, "limit", 1000, most=MAX_ROWS)) or 1000,
            unreadable=unreadable,
        )
        rows = [self._row(one) for one in found]
        return {"names": rows + unreadable_rows(unreadable, keys.TXN_NAME, FIELDS)}

    async def _delete(self, args: Arguments) -> dict[str, Any]:
        """Deletes one `name`, or those that start with `prefix`, behind `after`."""
        name, prefix = _text(args, "name"), _text(args, "prefix")
        if (name is None) == (prefix is None):
            raise InvalidArgument("expected either a name or a prefix of names that are to be deleted")
        if name is not None:
            done = await kept_names.delete_name(self._store, name)
        else:
            done = await kept_names.delete_names(self._store, prefix or "", after=_text(args, "after"))
        if done.deleted:
            log.info("names_deleted", name=name, prefix=prefix, count=done.deleted)
        return _told(done)

    def _row(self, one: KeptName) -> dict[str, Any]:
        now_ms = self._clock.wall_ms()
        ended = one.ended_ms > 0
        known_ms = one.ended_ms + one.keep.ms - now_ms
        return {
            "name": one.name,
            "txn": str(one.txn_id),
            "state": one.state,
            "ended_s": round(max(0, now_ms - one.ended_ms) / 1000, 1) if ended else None,
            "known_for_s": round(max(0, known_ms) / 1000) if ended else None,
            "keep_newest": one.keep.newest,
            "note": one.note,
        }


def _told(done: Deleted) -> dict[str, Any]:
    return dict(done._asdict())


def _text(args: Arguments, name: str) -> str | None:
    value = args.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidArgument(f"{name} {value!r:.100}: expected text")
    return value
