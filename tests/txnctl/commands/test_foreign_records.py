"""A foreign or unreadable record spoils one line of a listing, not the listing."""

from __future__ import annotations

import asyncio

from tests.cluster import InProcessCluster
from tests.txnctl.command_line import done
from txnstore import keys
from txnstore.store import Commit, Delete, Put

TOPIC = "topic://public/default/orders"


async def test_every_listing_shows_the_rest(cluster: InProcessCluster) -> None:
    store = cluster.servers["control"].store
    async with cluster.connect(transaction_key="job") as client, cluster.connect() as other:
        await client.create_topic(TOPIC)
        async with await client.consumer(TOPIC, "good"), await client.producer(TOPIC) as producer:
            txn, named = await client.begin(), await other.begin(name="good")
            await producer.send(b"x", txn=txn)
            path = (await client.describe_topic(TOPIC)).active[0].path
            foreign = [
                keys.TXN + b"someone-else",
                keys.TXN + b"0000-00000000000003e7",
                keys.TXN_OP + b"someone-else/what",
                keys.TXN_BY_DEADLINE + b"someone-else",
                keys.TXN_KEY + b"someone&else",
                keys.TOPIC + b"someone-else",
                keys.subscription("public/default/orders", "bad"),
                keys.txn_name("someone-else"),
                keys.writes_by_segment(path) + b"someone-else",
                keys.acks_by_segment(path) + b"bad/someone-else",
                keys.BROKER + b"someone-else",
                keys.load(path),
            ]
            for key in foreign:
                await store.commit(Commit(puts=(Put(key, b"not ours"),)))
            words = {
                "topics": ("topics", "list"),
                "subscriptions": ("subscriptions", "list", TOPIC),
                "transactions": ("transactions", "list"),
                "hanging": ("transactions", "hanging", "--older-than", "0"),
                "keys": ("keys", "list"),
                "names": ("names", "list"),
                "brokers": ("brokers", "list"),
            }
            rows = dict(
                zip(words, await asyncio.gather(*(listed(cluster, *one) for one in words.values())), strict=True)
            )
            await done("topics", "describe", TOPIC, url=cluster.url)
            of_segment = await listed(cluster, "transactions", "list", "--segment", f"segment://{path}")
            tables = await asyncio.gather(*(done(*one, url=cluster.url) for one in words.values()))
            await txn.abort()
            await named.abort()
    assert [row["topic"] for row in rows["topics"]] == [TOPIC, "topic://someone-else"]
    assert [(row["subscription"], "error" in row) for row in rows["subscriptions"]] == [("good", False), ("bad", True)]
    nameless = [row["txn"] for row in rows["transactions"] if row["name"] is None]
    assert nameless == [str(txn.id), "0000-00000000000003e7", "someone-else"]
    assert str(txn.id) in [row["txn"] for row in rows["hanging"] if "error" not in row]
    assert ["someone-else" in row["txn"] for row in rows["hanging"] if "error" in row] == [True] * 2
    assert [(row["key"], "error" in row) for row in rows["keys"]] == [("job", False), ("someone&else", True)]
    assert [(row["name"], "error" in row) for row in rows["names"]] == [("good", False), ("someone-else", True)]
    assert "broker" in [row["broker"] for row in rows["brokers"]]
    assert [row["txn"] for row in of_segment if "error" not in row] == [str(txn.id)]
    assert len([row for row in of_segment if "error" in row]) == 2
    for table in tables[1:-1]:
        assert "not a" in table.out
    for key in foreign:  # or the cluster would go on complaining
        await store.commit(Commit(deletes=(Delete(key),)))


async def test_a_listing_that_is_cut_says_so_beside_what_cannot_be_read(cluster: InProcessCluster) -> None:
    """And one that is not cut does not: what cannot be read counts for no limit."""
    store = cluster.servers["control"].store
    foreign = [keys.TXN + b"!foreign", keys.TXN_KEY + b"!foreign&one", keys.txn_name("!foreign")]
    async with cluster.connect(transaction_key="job") as client, cluster.connect() as other:
        txn, named = await client.begin(), await other.begin(name="orders/1")
        for key in foreign:
            await store.commit(Commit(puts=(Put(key, b"not ours"),)))
        cut, whole = [
            await asyncio.gather(*(done(*words, url=cluster.url) for words in listings))
            for listings in (
                [(what, "list", "--limit", "1") for what in ("transactions", "keys", "names")],
                [
                    ("transactions", "list", "--limit", "3"),
                    *((what, "list", "--limit", "2") for what in ("keys", "names")),
                ],
            )
        ]
        await txn.abort()
        await named.abort()
    assert [("!foreign" in one.out.replace("%21", "!"), "the first 1 only" in one.err) for one in cut] == [
        (True, True)
    ] * 3
    assert [("!foreign" in one.out.replace("%21", "!"), one.err) for one in whole] == [(True, "")] * 3
    for key in foreign:  # or the cluster would go on complaining
        await store.commit(Commit(deletes=(Delete(key),)))


async def listed(cluster: InProcessCluster, *words: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = (await done(*words, "-o", "json", url=cluster.url)).json
    return found
