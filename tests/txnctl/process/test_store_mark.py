"""E8: what the data folder remembers of its etcd, which a copy of etcd's own files put back cannot hide from."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.segments.power_failures import RecordedDisk, tree_of
from tests.segments.virtual_time import LoopClock, virtual_time
from tests.waiting import until
from txnctl.process import store_mark
from txnctl.process.store_mark import EVERY_S, FILE, StoreMark, follow_identity
from txnstore import keys
from txnstore.access.lineage import StoreUnfit
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import Incarnation, decode, encode
from txnstore.store import Commit, Put
from txnwire.errors import DataCorrupt


def store(id: str, *, former: list[str] | None = None, generation: int = 0) -> Incarnation:
    return Incarnation(id=id, created_ms=1, former=former or [], generation=generation)


def test_e8_an_etcd_that_is_behind_its_ledgers_was_put_back(tmp_path: Path) -> None:
    mark = StoreMark(tmp_path / "data")
    mark.judge(store("a"), 1)  # a new folder
    mark.write(store("a"), 100)
    StoreMark(tmp_path / "data").judge(store("a"), 100)
    with pytest.raises(StoreUnfit, match="is at revision 99 but had reached 100"):
        StoreMark(tmp_path / "data").judge(store("a"), 99)


def test_e8_ledgers_are_served_with_their_own_etcd_alone(tmp_path: Path) -> None:
    mark = StoreMark(tmp_path)
    mark.write(store("a"), 100)
    with pytest.raises(StoreUnfit, match=r"belong to etcd store a, and etcd is b \(another\)"):
        mark.judge(store("b"), 200)
    with pytest.raises(StoreUnfit, match="after one without this folder"):
        mark.judge(store("b", former=["a"]), 200)
    mark.write(store("c", former=["a", "b"], generation=2), 50, segment_floor=7)
    with pytest.raises(StoreUnfit, match="as it was before a repair"):
        mark.judge(store("b"), 200)
    mark.write(store("c", former=["a", "b"], generation=2), 60)
    found = StoreMark(tmp_path).read()
    assert found is not None
    assert (found.revision, found.segment_floor, found.generation) == (60, 7, 2), "a broker's own round keeps the rest"
    assert [found.knows(store(one)) for one in "abcd"] == [True, True, True, False]


def test_e8_who_runs_on_through_a_repair_does_not_put_the_mark_of_before_in_its_place(tmp_path: Path) -> None:
    """▲ It may wake up long after, and writes its mark before it hears of the repair: nobody could start then."""
    StoreMark(tmp_path).write(store("a"), 100)
    StoreMark(tmp_path).write(store("b", former=["a"], generation=1), 50)
    with pytest.raises(StoreUnfit, match="was repaired"):
        StoreMark(tmp_path).write(store("a"), 120)
    StoreMark(tmp_path).judge(store("b", former=["a"], generation=1), 50)


def test_e8_a_process_that_has_heard_less_does_not_set_the_mark_back(tmp_path: Path) -> None:
    """▲ An etcd that has gone back to between the two would be served."""
    StoreMark(tmp_path).write(store("a"), 100)
    StoreMark(tmp_path).write(store("a"), 90)
    with pytest.raises(StoreUnfit, match="had reached 100"):
        StoreMark(tmp_path).judge(store("a"), 95)


def test_e8_a_power_failure_leaves_one_mark_or_the_other_whole(tmp_path: Path) -> None:
    disk = RecordedDisk(tmp_path)
    mark = StoreMark(tmp_path)
    left: list[bytes | None] = []
    with disk.recording():
        mark.write(store("a"), 100)
        certain = tree_of(tmp_path)[FILE]
        disk.happened = lambda _: left.extend(tree.get(FILE) for tree in disk.outcomes().values())
        mark.write(store("a"), 200)
    assert {tree.get(FILE) for tree in disk.outcomes().values()} == {tree_of(tmp_path)[FILE]}
    assert set(left) == {certain, tree_of(tmp_path)[FILE]}


@virtual_time
async def test_e8_a_folder_of_another_cluster_says_nothing_of_this_store(tmp_path: Path) -> None:
    """▲ A broker that was started with the wrong folder would end the whole cluster."""
    mine = MemoryStore(MemoryEtcd(LoopClock()), LoopClock(), random.Random(1))
    await mine.identity()
    StoreMark(tmp_path).write(store("strange"), 1)
    with pytest.raises(StoreUnfit, match="another"):
        await StoreMark(tmp_path).check(mine)
    found = await mine.get(keys.INCARNATION)
    assert found is not None
    assert decode(Incarnation, found.value, key=found.key).repair == ""
    await mine.close()


def test_a_mark_that_does_not_parse_is_no_new_folder(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    with pytest.raises(DataCorrupt, match=FILE):
        StoreMark(tmp_path).judge(store("a"), 1)


@virtual_time
async def test_e8_a_broker_that_finds_etcd_gone_back_marks_it_for_all(tmp_path: Path) -> None:
    """▲ Of processes without a folder none would find out."""
    etcd = MemoryEtcd(LoopClock())
    broker, coordinator = (MemoryStore(etcd, LoopClock(), random.Random(seed)) for seed in (1, 2))
    identity, revision = await StoreMark(tmp_path).check(broker)
    assert identity == await coordinator.identity()
    assert StoreMark(tmp_path).read() is None, "the folder may turn out to be another cluster's"
    StoreMark(tmp_path).write(identity, revision)
    following = asyncio.create_task(follow_identity(coordinator))
    await asyncio.sleep(3 * EVERY_S)
    assert not following.done()
    StoreMark(tmp_path).write(identity, 1000)
    with pytest.raises(StoreUnfit, match="had reached 1000"):
        await StoreMark(tmp_path).check(broker)
    assert "had reached 1000" in str(await asyncio.wait_for(following, 2 * EVERY_S))
    found = await broker.get(keys.INCARNATION)
    assert found is not None
    assert "had reached 1000" in decode(Incarnation, found.value, key=found.key).repair
    for one in (broker, coordinator):
        await one.close()


@virtual_time
async def test_e8_who_runs_on_through_a_repair_ends(tmp_path: Path) -> None:
    etcd = MemoryEtcd(LoopClock())
    mine = MemoryStore(etcd, LoopClock(), random.Random(1))
    following = asyncio.create_task(follow_identity(mine))
    await asyncio.sleep(1)
    await mine.commit(Commit(puts=(Put(keys.INCARNATION, encode(store("other"))),)))
    assert "it is store other by now" in str(await asyncio.wait_for(following, 2 * EVERY_S))
    await mine.close()


@virtual_time
async def test_e8_who_runs_on_through_a_repair_ends_also_behind_an_outage() -> None:
    etcd = MemoryEtcd(LoopClock())
    mine = MemoryStore(etcd, LoopClock(), random.Random(1))
    following = asyncio.create_task(follow_identity(mine))
    await asyncio.sleep(1)
    mine.memory_backend.disconnect()
    await asyncio.sleep(10 * EVERY_S)
    assert not following.done()
    mine.memory_backend.reconnect()
    await mine.commit(Commit(puts=(Put(keys.INCARNATION, encode(store("other"))),)))
    assert "it is store other by now" in str(await asyncio.wait_for(following, 3 * EVERY_S))
    await mine.close()


async def test_c12_nothing_is_written_where_a_data_folder_was(
    tmp_path: Path, memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ At a bare mount point it would look like a folder of this etcd."""
    folder = tmp_path / "data"
    mark = StoreMark(folder)
    mark.write(await memory_store.identity(), 1)
    folder.rename(tmp_path / "away")
    monkeypatch.setattr(store_mark, "EVERY_S", 0.0)
    with capture_logs() as told:
        keeping = asyncio.create_task(mark.keep(memory_store))
        await until(
            lambda: any(one["event"] == "store mark not written" for one in told),
            "a mark that was not written",
            within_s=30.0,
        )
        keeping.cancel()
    assert not folder.exists()
    (tmp_path / "away").rename(folder)
    mark.write(await memory_store.identity(), 2, again=True)
    assert mark.read() is not None
