"""Reading page by page: each record once, in order, and only as many at once as asked for."""

from __future__ import annotations

import random

import pytest

from tests.segments.virtual_time import LoopClock, virtual_time
from txnstore.access.paging import in_pages, in_parts
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.store import Commit, Delete, Put

NAMES = [b"/t/a", b"/t/a-b", b"/t/a/b", b"/t/a/b/c", b"/t/b", b"/t/c", b"/t/d"]
"""Some go on where others end."""


async def pages(store: MemoryStore, at_once: int, revision: int = 0, then: Commit | None = None) -> list[list[bytes]]:
    """`then`: what somebody commits behind the first page."""
    found: list[list[bytes]] = []
    async for page in in_pages(store, b"/t/", b"/t0", at_once=at_once, revision=revision):
        found.append([record.key for record in page])
        assert len(found) <= len(NAMES) + 1, "it never ends"
        if then is not None and len(found) == 1:
            await store.commit(then)
    return found


@pytest.mark.parametrize("at_once", range(1, 10))
@virtual_time
async def test_pages_have_each_record_once_and_in_order_wherever_they_end(at_once: int) -> None:
    clock = LoopClock()
    store = MemoryStore(MemoryEtcd(clock), clock, random.Random(0))
    names = [*NAMES, b"/s/x", b"/t0"]
    await store.commit(Commit(puts=tuple(Put(name, b"") for name in names)))
    assert await pages(store, at_once) == [list(part) for part in in_parts(NAMES, at_once)]
    await store.close()


@pytest.mark.parametrize("pinned", [False, True])
@virtual_time
async def test_pages_of_a_revision_show_nothing_of_what_comes_meanwhile(pinned: bool) -> None:
    clock = LoopClock()
    store = MemoryStore(MemoryEtcd(clock), clock, random.Random(0))
    revision = (await store.commit(Commit(puts=tuple(Put(name, b"") for name in NAMES)))).revision
    then = Commit(puts=(Put(b"/t/cc", b""),), deletes=(Delete(b"/t/d"),))
    found = [name for page in await pages(store, 2, revision if pinned else 0, then) for name in page]
    assert found == (NAMES if pinned else [*NAMES[:-1], b"/t/cc"])
    await store.close()
