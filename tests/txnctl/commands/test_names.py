"""`txnctl names`: which are kept, and forgetting some."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

import txnclient
from tests.cluster import InProcessCluster, running_cluster
from tests.txnctl.command_line import done, txnctl
from tests.waiting import until_answer


async def committed(client: txnclient.Client, *names: str, **options: object) -> None:
    for name in names:
        txn = await client.begin(name=name, **options)  # type: ignore[arg-type]
        await txn.commit(note="rows=1")


async def test_names_are_listed_with_how_they_ended_and_how_long_that_is_known(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    await committed(client, "orders/1", keep=timedelta(hours=1))
    await committed(client, "orders/2")
    opened = await client.begin(name="orders/0")
    await committed(client, "plain", keep_newest=True)
    told = await done("names", "list", "-o", "json", url=cluster.url)
    assert [row["name"] for row in told.json] == ["orders/0", "orders/1", "orders/2", "plain"]
    begun, one, two, four = told.json
    assert (one["state"], one["note"], begun["state"], begun["txn"]) == ("COMMITTED", "rows=1", "OPEN", str(opened.id))
    assert (begun["ended_s"], begun["known_for_s"]) == (None, None)
    assert 3_500 < one["known_for_s"] <= 3_602
    assert 604_700 < two["known_for_s"] <= 604_802, "7 days where nobody has said anything"
    assert (one["keep_newest"], four["keep_newest"]) == (False, True)
    table = await done("names", "list", "--prefix", "orders/", "--limit", "2", url=cluster.url)
    assert table.out.splitlines()[0].split()[-1] == "note", "the first one has none"
    assert "orders/1" in table.out
    assert "orders/2" not in table.out
    assert "the first 2 only" in table.err
    assert "no such names" in (await done("names", "list", "--namespace", "none", url=cluster.url)).err
    plain = await done("names", "list", "--namespace", "", "-o", "json", url=cluster.url)
    assert [row["name"] for row in plain.json] == ["plain"]


async def test_deleted_names_run_again_and_open_ones_are_refused_with_a_sentence(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    await committed(client, "orders/1", "orders/2", "other")
    opened = await client.begin(name="orders/3")
    refused = await txnctl("names", "delete", "orders/3", "--yes", url=cluster.url)
    assert refused.code == 1
    assert "is open: commit or abort it first" in refused.err
    told = await done("names", "delete", "--prefix", "orders/", "--yes", url=cluster.url)
    assert "2 names forgotten, 1 are open and stay" in told.out
    assert "other: forgotten" in (await done("names", "delete", "other", "--yes", url=cluster.url)).out
    unknown = await txnctl("names", "delete", "other", "--yes", url=cluster.url)
    assert (unknown.code, "never begun, or forgotten" in unknown.err) == (1, True)
    again = await client.begin(name="orders/1")
    assert (again.joined, again.state) == (False, txnclient.TransactionState.OPEN)
    assert (await client.begin(name="orders/3")).id == opened.id


async def test_the_newest_of_a_prefix_stays_and_both_ways_of_naming_exclude_each_other(
    cluster: InProcessCluster, client: txnclient.Client
) -> None:
    await committed(client, "job/1", "job/2", keep_newest=True)
    kept = await txnctl("names", "delete", "job/2", "--yes", url=cluster.url)
    assert (kept.code, "keep_newest" in kept.err) == (1, True)
    told = await done("names", "delete", "--prefix", "job/", "--yes", "-o", "json", url=cluster.url)
    assert told.json == {"deleted": 1, "open": 0, "kept": 1, "changed": 0}
    assert (await txnctl("names", "delete", "--yes", url=cluster.url)).code == 2
    assert (await txnctl("names", "delete", "job/2", "--prefix", "job/", "--yes", url=cluster.url)).code == 2


async def test_a_late_commit_of_a_deleted_name_begins_nothing_and_says_that_it_cannot_know(
    etcd: str, tmp_path: Path
) -> None:
    """▲ It asks how the name has committed: were that a begin, it would leave an open transaction under the name."""
    async with running_cluster(etcd, tmp_path, header_retention_s=0.3) as cluster, cluster.connect() as client:
        mine, other = await client.begin(name="orders/1"), await client.begin(name="orders/1")
        await other.commit()
        await done("names", "delete", "orders/1", "--yes", url=cluster.url)
        await until_answer(
            lambda: client.admin("transactions.list"),
            lambda answer: not answer["transactions"],
            "none left",
            within_s=30,
        )
        with pytest.raises(txnclient.OutcomeUnknown):
            await mine.commit()
        assert (await client.admin("names.list"))["names"] == []
