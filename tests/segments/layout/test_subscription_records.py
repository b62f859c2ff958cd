"""The one write that makes a subscription, and what it compares."""

from __future__ import annotations

import pytest

from segments.layout.subscription_records import STREAM, plan_subscription
from txnstore import keys
from txnstore.memory.memory_store import MemoryStore
from txnstore.store import Commit, Delete, Put, created_at

TOPIC = "public/nyc/flights"
LEADER = keys.leader("controller")


async def put(store: MemoryStore, key: bytes) -> int:
    return (await store.commit(Commit(puts=(Put(key, b"{}"),)))).revision


@pytest.mark.parametrize("moved", [None, "leader", "topic", "subscription"])
async def test_a_subscription_is_made_once_by_the_leader_and_of_the_topic_as_it_was_read(
    memory_store: MemoryStore, moved: str | None
) -> None:
    """▲ Each compare is enough: of a topic that was marked meanwhile it would stay behind, for the next one of the
    name; a former controller knows nothing of those made since."""
    held = created_at(LEADER, await put(memory_store, LEADER))
    await put(memory_store, keys.topic(TOPIC))
    topic = await memory_store.get(keys.topic(TOPIC))
    assert topic is not None
    commit = plan_subscription(
        TOPIC,
        "s",
        type=STREAM,
        start={"kind": "earliest"},
        positions={},
        still_held=held,
        topic=topic,
        created_ms=1,
    )
    if moved == "leader":
        await memory_store.commit(Commit(deletes=(Delete(LEADER),)))
        await put(memory_store, LEADER)
    elif moved == "topic":
        await put(memory_store, keys.topic(TOPIC))
    elif moved == "subscription":
        await put(memory_store, keys.subscription(TOPIC, "s"))
    assert (await memory_store.commit(commit)).succeeded is (moved is None)
