"""Commands that change or count topics, subscriptions, brokers and transactions."""

from __future__ import annotations

import asyncio
import os
import re

import msgspec

from tests.cluster import InProcessCluster
from tests.txnctl.command_line import done, txnctl
from txnstore import keys
from txnstore.etcd.embedded_etcd import free_port
from txnstore.records import BrokerRegistration, RegistrationRecord, encode
from txnstore.store import Commit, Delete, Put

TOPIC = "topic://public/default/orders"


async def test_a_subscription_is_sought_back_and_deleted(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, url=cluster.url)
    await done("produce", TOPIC, url=cluster.url, stdin="a\nb\nc\n")
    read = ["consume", TOPIC, "-s", "billing"]
    first = await done(*read, "--count", "3", "-o", "json", url=cluster.url)
    assert (await done(*read, "--idle", "0.5", url=cluster.url)).out == ""
    sought = await done("subscriptions", "seek", TOPIC, "billing", "earliest", "-o", "json", url=cluster.url)
    assert sought.json == {"topic": TOPIC, "subscription": "billing", "start": "earliest"}
    assert (await done(*read, "--count", "3", url=cluster.url)).out == "a\nb\nc\n"
    second = msgspec.json.decode(first.out.splitlines()[1])["id"]
    said = await done("subscriptions", "seek", TOPIC, "billing", second, url=cluster.url)
    assert said.out == f"billing on {TOPIC}: continues at {second}\n"
    assert (await done(*read, "--count", "2", url=cluster.url)).out == "b\nc\n"
    gone = await done("subscriptions", "delete", TOPIC, "billing", "-o", "json", url=cluster.url)
    assert gone.json == {"topic": TOPIC, "subscription": "billing", "deleted": True}
    listed, again, unknown = await asyncio.gather(
        done("subscriptions", "list", TOPIC, "-o", "json", url=cluster.url),
        txnctl("subscriptions", "delete", TOPIC, "billing", url=cluster.url),
        txnctl("subscriptions", "seek", TOPIC, "billing", "latest", url=cluster.url),
    )
    assert listed.json == []
    for refused in (again, unknown):
        assert (refused.code, "SubscriptionNotFound" in refused.err) == (1, True), refused


async def test_segments_are_split_and_merged(cluster: InProcessCluster) -> None:
    policy = {"max_segments": 4, "split_messages_per_s": 5000}
    await done(*("topics", "create", TOPIC, "--autoscale", "max_segments=4,split_messages_per_s=5000"), url=cluster.url)
    path = TOPIC.removeprefix("topic://")
    split = await done(
        "topics", "split", f"segment://{path}/0000-ffff-0", "--at", "9000", "-o", "json", url=cluster.url
    )
    assert split.json == {
        "topic": TOPIC,
        "epoch": 2,
        "parents": [f"{path}/0000-ffff-0"],
        "children": [f"{path}/0000-8fff-1", f"{path}/9000-ffff-2"],
    }
    merged = await done("topics", "merge", f"{path}/0000-8fff-1", f"{path}/9000-ffff-2", url=cluster.url)
    assert merged.out.endswith("merged into 0000-ffff-3, layout epoch 3\n")
    described, sealed, bad, none = await asyncio.gather(
        done("topics", "describe", TOPIC, "-o", "json", url=cluster.url),
        txnctl("topics", "split", f"{path}/9000-ffff-2", url=cluster.url),
        txnctl("topics", "split", f"{path}/0000-ffff-3", "--at", "middle", url=cluster.url),
        txnctl("topics", "split", TOPIC, url=cluster.url),
    )
    assert described.json["policies"] == {"autoscale": policy}
    assert [(one["id"], one["state"], one["parents"]) for one in described.json["segments"]] == [
        (0, "SEALED", []),
        (1, "SEALED", [0]),
        (3, "ACTIVE", [1, 2]),
        (2, "SEALED", [0]),
    ]
    assert (sealed.code, "it is SEALED, not ACTIVE" in sealed.err) == (2, True), sealed
    assert (bad.code, "expected a hash in hex digits" in bad.err) == (2, True), bad
    assert (none.code, f"segment '{TOPIC}': expected tenant/" in none.err) == (2, True), none


async def test_a_topic_gets_policies_and_is_deleted(cluster: InProcessCluster) -> None:
    policies = ("--retention-ms", "60000", "--trim-undrained")
    created = await done("topics", "create", TOPIC, *policies, "--segments", "2", "-o", "json", url=cluster.url)
    assert created.json == {"topic": TOPIC, "segments": 2, "epoch": 1}
    dropped = ("--drop", "trim_undrained", "--drop", "retention_ms")
    told = await done("topics", "update", TOPIC, "--retention-bytes", "1000000", *dropped, url=cluster.url)
    assert told.out == f"{TOPIC}: retention_bytes 1000000, trim_undrained dropped, retention_ms dropped\n"
    described = await done("topics", "describe", TOPIC, "-o", "json", url=cluster.url)
    assert described.json["policies"] == {"retention_bytes": 1_000_000}
    for autoscale in ("max_segments=8,split_messages_per_s=5000", "off"):
        told = await done("topics", "update", TOPIC, "--autoscale", autoscale, url=cluster.url)
        assert told.out == f"{TOPIC}: autoscale {autoscale}\n"
    told = await done("topics", "update", TOPIC, "--drop", "autoscale", url=cluster.url)
    assert told.out == f"{TOPIC}: autoscale dropped\n"
    drawn, unknown, nothing = await asyncio.gather(
        done("topics", "describe", TOPIC, url=cluster.url),
        txnctl("topics", "update", TOPIC, "--drop", "colour", url=cluster.url),
        txnctl("topics", "update", TOPIC, url=cluster.url),
    )
    assert "retention_bytes 1,000,000" in drawn.out
    assert (unknown.code, "expected one of retention_ms" in unknown.err) == (2, True)
    assert (nothing.code, "no policy to change" in nothing.err) == (2, True)
    async with cluster.connect() as client, await client.consumer(TOPIC, "sub"):
        refused = await txnctl("topics", "delete", TOPIC, url=cluster.url)
        assert (refused.code, "NotAllowed" in refused.err) == (1, True)
        forced = await done("topics", "delete", TOPIC, "--force", url=cluster.url)
    assert forced.out == f"{TOPIC}: deleted\n"
    assert (await done("topics", "list", "-o", "json", url=cluster.url)).json == []


async def test_brokers_and_transactions_are_counted(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, "--segments", "2", url=cluster.url)
    await done("produce", TOPIC, "--txn", "2", url=cluster.url, stdin="a\nb\nc\n")
    async with cluster.connect() as client:
        txn = await client.begin()
        brokers, stats, table, plain = await asyncio.gather(
            done("brokers", "list", "-o", "json", url=cluster.url),
            done("transactions", "stats", "-o", "json", url=cluster.url),
            done("transactions", "stats", url=cluster.url),
            done("brokers", "list", url=cluster.url),
        )
        await txn.abort()
    (broker,) = brokers.json
    assert (broker["broker"], broker["segments"], broker["failed"], broker["not_ready"]) == ("broker", 2, [], None)
    assert broker["connections"] >= 1
    (one,) = stats.json["coordinators"]
    assert (one["coordinator"], one["active"], one["created"], one["committed"]) == ("control", 1, 3, 2)
    assert 0 < one["commit_p50_ms"] <= one["commit_p99_ms"]
    assert stats.json["total"]["committed"] == 2
    assert stats.json["headers"] >= 1
    assert re.search(r"^total +1 +", table.out, re.MULTILINE)
    header, row = plain.out.splitlines()
    assert header.split()[:4] == ["broker", "pid", "address", "segments"]
    assert row.split()[:2] == ["broker", str(os.getpid())]


async def test_a_coordinator_that_does_not_answer_is_named_in_its_row(cluster: InProcessCluster) -> None:
    await cluster.stop_server("broker")
    stats = await done("transactions", "stats", "-o", "json", url=cluster.url)
    assert [row["coordinator"] for row in stats.json["coordinators"]] == ["control"]
    assert (await done("brokers", "list", "-o", "json", url=cluster.url)).json == []


async def test_who_does_not_answer_has_its_error_in_a_column_behind_those_of_all_others(
    cluster: InProcessCluster,
) -> None:
    store, address = cluster.servers["control"].store, f"127.0.0.1:{free_port()}"
    gone = {
        keys.broker("gone"): encode(BrokerRegistration(id="gone", address=address)),
        keys.tc(99): encode(RegistrationRecord(id="gone", address=address)),
    }
    await store.commit(Commit(puts=tuple(Put(key, record) for key, record in gone.items())))
    for words in (("brokers", "list"), ("transactions", "stats")):
        header, answers, silent, *_ = (await done(*words, url=cluster.url)).out.splitlines()
        assert header.split()[-1] == "error"
        assert (silent.split()[0], "ConnectionLost" in silent, "gone" in answers) == ("gone", True, False)
    await store.commit(Commit(deletes=tuple(Delete(key) for key in gone)))


async def test_every_consumer_and_what_a_later_transaction_alone_has_are_listed(cluster: InProcessCluster) -> None:
    await done("topics", "create", TOPIC, "--segments", "2", url=cluster.url)
    async with (
        cluster.connect() as client,
        cluster.connect(transaction_key="job") as keyed,
        await client.consumer(TOPIC, "billing", name="a"),
        await client.consumer(TOPIC, "packing", name="b"),
        await client.consumer(TOPIC, "packing", name="c"),
    ):
        plain = [await client.begin() for _ in range(3)]
        open_ones = [*plain, await client.begin(name="orders/1"), await keyed.begin()]
        subscriptions, transactions, other_type = await asyncio.gather(
            done("subscriptions", "list", TOPIC, url=cluster.url),
            done("transactions", "list", url=cluster.url),
            txnctl("subscriptions", "create", TOPIC, "packing", "--type", "queue", url=cluster.url),
        )
        for txn in open_ones:
            await txn.abort()
    assert re.search(r"^packing .* b, c ", subscriptions.out, re.MULTILINE)
    header, *rows = transactions.out.splitlines()
    assert (header.split()[-2:], len(rows)) == (["name", "transaction_key"], len(open_ones))
    assert (other_type.code, "packing on" in other_type.err, "of type stream" in other_type.err) == (1, True, True)
