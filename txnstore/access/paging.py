"""Reading what a user can multiply: page by page, each of its own revision, so that neither an answer nor a time limit,
nor the memory of whoever reads, has to hold all of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import TypeVar

from txnstore.store import KeyValue, MetadataStore

T = TypeVar("T")


def in_parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """`items` in order, at most `size` at a time: what is asked for in one request, and looked at in one go."""
    for at in range(0, len(items), size):
        yield items[at : at + size]


async def in_pages(
    store: MetadataStore, start: bytes, end: bytes, *, at_once: int, keys_only: bool = False, revision: int = 0
) -> AsyncGenerator[tuple[KeyValue, ...], None]:
    """The records of [start, end) in key order, about `at_once` a page, never more; no page is empty.

    ▲ Without a `revision`, what is written or deleted meanwhile may be in them or not: for work whose writes compare it
    again. Each page has a time limit of its own. Raises `StoreUnavailable`; `Compacted` where `revision` is gone.
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
