"""E8: an etcd that was restored from a backup is refused by everybody until it is repaired, and what then is visible is
what etcd knew as committed, and plain messages; nothing is torn, raised from the dead, or numbered twice."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import txnclient
from tests.cluster import InProcessCluster
from tests.etcd_members import EtcdMembers
from tests.processes import read_all
from tests.txnctl.command_line import txnctl
from tests.waiting import until
from txnctl.checking.everything import Checked, check_everything
from txnctl.process.settings import ServerSettings
from txnctl.process.store_mark import StoreMark
from txnstore import keys
from txnstore.access.lineage import StoreUnfit
from txnstore.etcd.etcd_store import EtcdSettings, EtcdStore
from txnwire.clock import SystemClock, SystemRandom
from txnwire.ids import TxnId, hash_key

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

TOPIC = "topic://public/default/restored"
LATER = "topic://public/default/made-later"


class World:
    def __init__(self, etcd: EtcdMembers, folder: Path) -> None:
        self.etcd = etcd
        self.folder = folder
        self.cluster = InProcessCluster(etcd.urls[0], "/c", folder / "data")
        self.settings = ServerSettings(etcd=etcd.urls[0], etcd_prefix="/c", data_dir=folder / "data", tcids=2)

    async def start(self) -> None:
        await self.cluster.start()
        mark = StoreMark(self.folder / "data")
        mark.write(*await mark.check(self.cluster.servers["broker"].store))

    async def restore(self) -> None:
        await self.cluster.stop()
        await self.etcd.restore(self.folder / "backup")

    async def check(self, *, repair: bool = False) -> Checked:
        return await check_everything(self.settings, lambda _: None, repair=repair)


@asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    etcd = EtcdMembers(folder / "etcd", size=1)
    await etcd.start()
    made = World(etcd, folder)
    try:
        await made.start()
        yield made
    finally:
        await made.cluster.stop()
        await etcd.stop()


class Crash(Exception):
    pass


def crash_at(step: str) -> Callable[[str], None]:
    def progress(what: str) -> None:
        if step in what:
            raise Crash(what)

    return progress


async def write(client: txnclient.Client, producer: txnclient.Producer, text: str, *, end: str) -> TxnId:
    """One transaction over both segments."""
    txn = await client.begin(timeout=60)
    await producer.send_many([(f"k{number}", f"{text}-{number}".encode()) for number in range(8)], txn=txn)
    if end:
        await getattr(txn, end)()
    return txn.id


async def read(client: txnclient.Client) -> dict[str, int]:
    """How many messages of each text there are."""
    found: dict[str, int] = {}
    for value in await read_all(client, TOPIC):
        text = value.decode().partition("-")[0]
        found[text] = found.get(text, 0) + 1
    return found


async def test_e8_what_etcd_does_not_know_as_committed_is_aborted_and_nothing_else_is_lost(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        ids: list[TxnId] = []
        async with made.cluster.connect() as client:
            await client.create_topic(TOPIC, segments=2)
            async with await client.producer(TOPIC) as producer:
                await producer.send_many([(f"k{n}", b"plainbefore") for n in range(8)])
                ids.append(await write(client, producer, "committed", end="commit"))
                ids.append(await write(client, producer, "aborted", end="abort"))
                open_txn = await client.begin(timeout=60)
                ids.append(open_txn.id)
                await producer.send(b"openthen-1", key="k1", txn=open_txn)
                async with await client.consumer(TOPIC, "job", start="earliest"):
                    pass
                await made.etcd.save(tmp_path / "backup")
                await producer.send_many([(f"k{n}", b"openthen-2") for n in range(8)], txn=open_txn)
                await open_txn.commit()
                async with await client.consumer(TOPIC, "job", start="earliest") as consumer:
                    messages = await consumer.receive_many(8, timeout=5)
                    async with client.transaction() as txn:
                        await producer.send_many([(f"k{n}", b"loop-1") for n in range(8)], txn=txn)
                        await consumer.ack(messages, txn=txn)
                        ids.append(txn.id)
                await made.cluster.restart_server("broker")  # what comes now stands in ledgers that etcd will not know
                ids.append(await write(client, producer, "committedlater", end="commit"))
                ids.append(await write(client, producer, "abortedlater", end="abort"))
                positions = [
                    (one.position) for one in await producer.send_many([(f"k{n}", b"plain") for n in range(8)])
                ]
                await client.create_topic(LATER)
            async with await client.producer(LATER) as producer:
                await producer.send(b"orphan", key="k")
            seen = await read(client)
            assert set(seen) == {"plainbefore", "plain", "committed", "openthen", "loop", "committedlater"}
        await made.cluster.restart_server("broker")  # ledgers are closed, and the next ones opened
        await until(lambda: list(tmp_path.rglob("*.sidecar")), within_s=20)
        await made.restore()

        with pytest.raises(StoreUnfit, match="restored from a backup"):
            await made.cluster.start()
        made.cluster.servers.clear()
        refused = await made.check()
        assert [text for rule, text in refused.findings if rule == "store_is_fit"]
        (tmp_path / "empty").mkdir()
        elsewhere = ServerSettings(etcd=made.etcd.urls[0], etcd_prefix="/c", data_dir=tmp_path / "empty", tcids=2)
        with pytest.raises(txnclient.NotAllowed, match="no mark"):
            await check_everything(elsewhere, lambda _: None, repair=True)

        with pytest.raises(Crash):
            await check_everything(made.settings, crash_at("restored/8000"), repair=True)
        with pytest.raises(StoreUnfit, match="a repair was begun"):
            await made.cluster.start()
        made.cluster.servers.clear()

        repaired = await made.check(repair=True)
        assert repaired.findings == [], repaired
        told = "\n".join(text for _, text in repaired.repaired)
        assert (tmp_path / "data" / "repairs.log").read_text().count("\nstore: ") == 2, "of both tries"
        assert f"{ids[2]} was open when the backup was taken: aborted" in told
        assert "3 transactions with 24 messages were begun after the backup" in told
        assert "made-later" in told
        assert (await made.check(repair=True)).repaired == [], "once"
        settings = EtcdSettings(endpoints=made.etcd.urls, prefix="/c")
        store = await EtcdStore.connect(settings, clock=SystemClock(), random=SystemRandom())
        for prefix in (keys.OWNER, keys.BROKER, keys.TC, keys.LEADER, keys.PIN):
            assert await store.count(prefix, keys.prefix_end(prefix)) == 0, "nobody of before may do anything"
        await store.close()

        await made.cluster.start()
        expected = {text: seen[text] for text in ("plainbefore", "plain", "committed")}
        for _ in range(2):
            async with made.cluster.connect() as client:
                assert await read(client) == expected
                async with await client.consumer(TOPIC, "job") as consumer:
                    assert b"plainbefore" in {one.value for one in await consumer.receive_many(8, timeout=5)}
                async with await client.producer(TOPIC) as producer:
                    fresh = await write(client, producer, "aborted", end="abort")
                    assert fresh not in ids
                    assert fresh.counter > max(one.counter for one in ids)
                    again = [one.position for one in await producer.send_many([(f"k{n}", b"new") for n in range(8)])]
                    assert not set(again) & set(positions)
                    expected["new"] = expected.get("new", 0) + 8
                    assert await read(client) == expected
            await made.cluster.restart_server("broker")  # by now sidecars have been written anew
        async with made.cluster.connect() as client:
            with pytest.raises(txnclient.TopicNotFound):
                await client.producer(LATER)
            await client.create_topic(LATER)
            async with await client.producer(LATER) as producer:
                await producer.send(b"of its own", key="k")
            assert await read_all(client, LATER) == [b"of its own"]
        await made.cluster.stop()
        assert (await made.check()).findings == []


async def test_e8_a_backup_restored_twice_gives_no_id_of_its_first_repair_again(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        async with made.cluster.connect() as client:
            await client.create_topic(TOPIC, segments=2)
        await made.etcd.save(tmp_path / "backup")
        ids: list[TxnId] = []
        layouts: list[dict[int, str]] = []
        kept: dict[str, int] = {}
        for generation in (1, 2):
            await made.cluster.stop()
            await made.etcd.restore(tmp_path / "backup", generation=generation)
            words = ("--etcd", made.etcd.urls[0], "--etcd-prefix", "/c", "--data-dir", str(tmp_path / "data"))
            refused, repaired = await txnctl("check", *words), await txnctl("check", "--repair", *words, "-o", "json")
            assert refused.code == 1
            assert "store_is_fit: etcd has been restored from a backup" in refused.out
            assert (repaired.code, repaired.json["broken"]) == (0, [])
            assert [one["what"] for one in repaired.json["repaired"]][-2:] == ["ids", "store"]
            await made.start()
            async with made.cluster.connect() as client:
                assert await read(client) == kept
                async with await client.producer(TOPIC) as producer:
                    ids += [await write(client, producer, f"in{generation}", end="commit") for _ in range(4)]
                assert await read(client) == {f"in{generation}": 32} | kept
                await client.create_topic(LATER)
                await client.split("segment://public/default/restored/0000-7fff-0")
                async with await client.producer(TOPIC) as producer:
                    await producer.send_many([(f"k{number}", b"behind") for number in range(8)])
                kept = {"behind": sum(1 for number in range(8) if hash_key(b"k%d" % number) >= 0x8000)}
            assert len(set(ids)) == len(ids)
            layouts.append(made.cluster.servers["control"].server.directory.topics()["public/default/restored"].paths)
        assert [(*layout,)[:2] for layout in layouts] == [(0, 1), (0, 1)]
        assert not {*(*layouts[0],)[2:]} & {*(*layouts[1],)[2:]}, "what was split off twice has other numbers"
        aside = [path.name for path in tmp_path.glob("data/set-aside/*/public/default/restored/*")]
        assert sorted(aside) == sorted(layouts[0][one].rpartition("/")[2] for one in (*layouts[0],)[2:])
        layout = await made.cluster.servers["control"].store.get(b"/topic/public/default/made-later")
        assert layout is not None
        assert b'"segments":[{"id":0,' not in layout.value


async def test_c12_a_data_folder_that_is_older_than_etcd_is_refused_and_repaired(tmp_path: Path) -> None:
    """▲ What has a part in it is not read by halves, whether etcd was restored as well or went on all the time."""
    async with world(tmp_path) as made:
        data = tmp_path / "data"
        async with made.cluster.connect() as client:
            await client.create_topic(TOPIC, segments=2)
            async with await client.producer(TOPIC) as producer:
                await write(client, producer, "before", end="commit")
                across = await client.begin(timeout=60)
                await producer.send(b"across-1", key="k1", txn=across)
                mark = StoreMark(data)
                mark.write(*await mark.check(made.cluster.servers["broker"].store))
                shutil.copytree(data, tmp_path / "older")
                await producer.send_many([(f"k{n}", b"across-2") for n in range(8)], txn=across)
                await across.commit()
                await write(client, producer, "behind", end="commit")
                assert set(await read(client)) == {"before", "across", "behind"}
        await made.cluster.stop()
        shutil.rmtree(data)
        (tmp_path / "older").rename(data)
        assert [text for rule, text in (await made.check()).findings if rule == "closed_ledgers_are_whole"]
        repaired = await made.check(repair=True)
        assert repaired.findings == [], repaired
        told = "\n".join(text for _, text in repaired.repaired)
        assert "the data folder lacks entries" in told
        assert f"{across.id} was committed and is aborted everywhere" in told
        assert (await made.check(repair=True)).repaired == [], "once"
        await made.cluster.start()
        async with made.cluster.connect() as client:
            assert await read(client) == {"before": 8}
            async with await client.producer(TOPIC) as producer:
                await write(client, producer, "fresh", end="commit")
            assert await read(client) == {"before": 8, "fresh": 8}
