"""Reads data without a fixed bound in pages, each at its own revision, so that no answer, time limit or reader's memory
has to hold all of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import TypeVar

from txnstore.store import KeyValue, MetadataStore

T = TypeVar("T")


def in_parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """`items` in order, at most `size` at a time: for one request, or one step without a pause."""
    for at in range(0, len(items), size):
        yield items[at : at + size]


async def in_pages(
    store: MetadataStore, start: bytes, end: bytes, *, at_once: int, keys_only: bool = False, revision: int = 0
) -> AsyncGenerator[tuple[KeyValue, ...], None]:
    """The records of [start, end) in key order, about `at_once` a page, never more; no page is empty.

    ▲ Without a `revision`, records written or deleted meanwhile may or may not be in them: for work whose writes
    compare again. Each page has its own time limit. Raises `StoreUnavailable`; `Compacted` if `revision` is gone.
    """
    at_once = store.page_size(at_once)
    while True:
        page = (await store.range(start, end, revision=revision, keys_only=keys_only, limit=at_once)).records
        if page:
            yield page
        if len(page) < at_once:
            return
        start = page[-1].key + b"\0"
        if start >= end:
            return
