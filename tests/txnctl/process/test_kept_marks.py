"""E8: how the mark of a data folder is kept: half of one, another cluster's, one from before a repair."""

from __future__ import annotations

import asyncio
import random
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from tests.segments.virtual_time import LoopClock, run
from tests.waiting import until
from txnctl.process import store_mark
from txnctl.process.store_mark import EVERY_S, FILE, Mark, StoreMark, follow_identity
from txnstore import keys
from txnstore.access.lineage import StoreUnfit
from txnstore.memory.memory_etcd import MemoryEtcd
from txnstore.memory.memory_store import MemoryStore
from txnstore.records import Incarnation, decode, encode
from txnstore.store import Commit, CommitVerdict, Delete, Put
from txnwire.errors import DataCorrupt


def store(id: str, *, former: list[str] | None = None, generation: int = 0) -> Incarnation:
    return Incarnation(id=id, created_ms=1, former=former or [], generation=generation)


def kept(folder: Path) -> Mark:
    found = StoreMark(folder).read()
    assert found is not None
    return found


def test_e8_half_a_mark_is_no_new_folder_at_whatever_byte_it_ends(tmp_path: Path) -> None:
    mark = StoreMark(tmp_path)
    mark.write(store("a", former=["b"], generation=1), 100, segment_floor=3)
    whole = (tmp_path / FILE).read_bytes()
    for length in range(len(whole) - 1):  # without its line end it is whole
        (tmp_path / FILE).write_bytes(whole[:length])
        for use in (lambda: mark.judge(store("a"), 200), lambda: mark.write(store("a"), 200)):
            with pytest.raises(DataCorrupt, match=FILE):
                use()
        assert (tmp_path / FILE).read_bytes() == whole[:length], "nobody writes over what may be mended"


def test_e8_a_mark_of_a_later_version_is_not_read_as_this_one(tmp_path: Path) -> None:
    later = msgspec.structs.replace(Mark(incarnation="a", revision=1), v=2)
    (tmp_path / FILE).write_bytes(msgspec.json.encode(later))
    with pytest.raises(DataCorrupt, match="version 2; this program reads 1"):
        StoreMark(tmp_path).judge(store("a"), 1)


def test_e8_a_mark_that_has_gone_is_not_made_again(tmp_path: Path) -> None:
    """▲ Its folder has gone with it: the ledgers would be written into another one."""
    with pytest.raises(FileNotFoundError, match=rf"{tmp_path / FILE} is not there any more: is the disk .* mounted\?"):
        StoreMark(tmp_path).write(store("a"), 100, again=True)
    assert list(tmp_path.iterdir()) == []
    StoreMark(tmp_path).write(store("a"), 100)
    StoreMark(tmp_path).write(store("a"), 101, again=True)
    assert kept(tmp_path).revision == 101


@pytest.mark.parametrize("content", [b"", b"[]", b'{"v": 1}', b"\xff"])
def test_e8_what_is_no_mark_is_named_with_what_is_wrong_of_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(DataCorrupt, match=rf"{tmp_path / FILE}: not a store mark of version 1: .+"):
        StoreMark(tmp_path).read()


@pytest.mark.parametrize(
    ("mark", "known"),
    [
        (Mark(incarnation="now", revision=1), True),
        (Mark(incarnation="before", revision=1), True),
        (Mark(incarnation="next", revision=1, former=["now"]), True),
        (Mark(incarnation="next", revision=1, former=["before"]), False),
        (Mark(incarnation="strange", revision=1), False),
    ],
    ids=["of now", "of before a repair", "of after the next one", "of another way on", "of another"],
)
def test_e8_a_mark_belongs_to_its_store_before_and_after_a_repair(mark: Mark, known: bool) -> None:
    assert mark.knows(store("now", former=["before"])) is known


@pytest.mark.parametrize(("revision", "fit"), [(99, False), (100, True), (101, True)])
def test_e8_a_store_is_fit_from_the_revision_on_that_it_had_reached(tmp_path: Path, revision: int, fit: bool) -> None:
    StoreMark(tmp_path).write(store("a"), 100)
    with nullcontext() if fit else pytest.raises(StoreUnfit, match="at revision 99 but had reached 100"):
        StoreMark(tmp_path).judge(store("a"), revision)


@pytest.mark.parametrize(
    ("identity", "told"),
    [
        (store("b"), "another"),
        (store("b", former=["a"]), "as it was before a repair, or is after one without this folder"),
    ],
    ids=["another", "a repaired one"],
)
def test_e8_ledgers_of_another_store_are_not_served_and_both_are_named(
    tmp_path: Path, identity: Incarnation, told: str
) -> None:
    StoreMark(tmp_path).write(store("a"), 100)
    with pytest.raises(StoreUnfit, match=rf"belong to etcd store a, and etcd is b \({told}\): use the right one"):
        StoreMark(tmp_path).judge(identity, 200)


def test_e8_the_mark_of_another_cluster_is_not_replaced(tmp_path: Path) -> None:
    """▲ Its disk was mounted where this one's was. It could not start any more, and this one would serve its files."""
    StoreMark(tmp_path).write(store("strange", former=["old"]), 7)
    with pytest.raises(StoreUnfit, match="to another etcd store, strange; this process works with mine"):
        StoreMark(tmp_path).write(store("mine", former=["mine-before"]), 100, again=True)
    assert kept(tmp_path) == Mark(incarnation="strange", revision=7, former=["old"])


def test_e8_a_repair_replaces_the_mark_and_nobody_of_before_replaces_the_repairs(tmp_path: Path) -> None:
    """A restored etcd begins at a lower revision: the former one's would refuse it for ever."""
    mark = StoreMark(tmp_path)
    mark.write(store("a"), 100, segment_floor=5)
    mark.write(store("b", former=["a"], generation=1), 40, segment_floor=3)
    assert kept(tmp_path) == Mark(incarnation="b", revision=40, former=["a"], generation=1, segment_floor=5)
    mark.write(store("c", former=["a", "b"], generation=2), 50, segment_floor=9)
    repaired = Mark(incarnation="c", revision=50, former=["a", "b"], generation=2, segment_floor=9)
    assert kept(tmp_path) == repaired
    for earlier in (store("a"), store("b", former=["a"], generation=1)):
        with pytest.raises(StoreUnfit, match="was repaired and is c by now"):
            mark.write(earlier, 500)
        with pytest.raises(StoreUnfit, match="before a repair"):
            mark.judge(earlier, 500)
    assert kept(tmp_path) == repaired


def test_e8_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    """Each write is two syncs, of every process, every ten seconds."""
    mark = StoreMark(tmp_path)
    mark.write(store("a"), 100)
    first = (tmp_path / FILE).stat().st_ino
    for revision in (100, 90):
        mark.write(store("a"), revision)
        assert (tmp_path / FILE).stat().st_ino == first, "a third file might have the number of the first one again"
    mark.write(store("a"), 101)
    assert kept(tmp_path).revision == 101
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


async def test_e8_a_kept_mark_follows_etcd_and_outlives_what_fails(
    tmp_path: Path, memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """▲ The folder is away for a while, then another cluster's is in its place: it goes on with its own."""
    folder, away = tmp_path / "data", tmp_path / "away"
    identity = await memory_store.identity()
    StoreMark(folder).write(identity, 1)
    monkeypatch.setattr(store_mark, "EVERY_S", 0.001)

    async def raised() -> None:
        """Until the mark has reached a new revision of the store."""
        result = await memory_store.commit(Commit(puts=(Put(b"/some", b"thing"),)))
        await until(lambda: kept(folder).revision >= result.revision, "the mark to follow")

    def failures() -> int:
        return sum(one["event"] == "store mark not written" for one in told)

    with capture_logs() as told:
        keeping = asyncio.create_task(StoreMark(folder).keep(memory_store))
        await raised()
        await raised()
        folder.rename(away)
        await until(lambda: failures() >= 2, "two failures")
        StoreMark(folder).write(store("strange"), 9)
        before = failures()
        await until(
            lambda: failures() >= before + 3, "three more failures"
        )  # the last ones met the strange one for sure
        assert kept(folder).incarnation == "strange"
        folder.rename(tmp_path / "strange")
        away.rename(folder)
        await raised()
        keeping.cancel()
        await asyncio.wait({keeping})
    assert kept(folder).incarnation == identity.id


class Overtaken(MemoryStore):
    """Somebody else's write comes before its own."""

    first: Commit | None = None

    async def commit(self, commit: Commit, *, timeout_s: float = 10.0) -> CommitVerdict:
        if (first := self.first) is not None:
            self.first = None
            await super().commit(first)
        return await super().commit(commit, timeout_s=timeout_s)


def test_e8_who_finds_etcd_gone_back_does_not_mark_one_that_was_repaired_meanwhile(tmp_path: Path) -> None:
    """▲ The repaired one would be unfit again, and every process in it would end."""

    async def scenario() -> None:
        mine = Overtaken(MemoryEtcd(LoopClock()), LoopClock(), random.Random(1))
        identity = await mine.identity()
        StoreMark(tmp_path).write(identity, 1000)
        repaired = store("repaired", former=[identity.id], generation=1)
        mine.first = Commit(puts=(Put(keys.INCARNATION, encode(repaired)),))
        with pytest.raises(StoreUnfit, match="had reached 1000"):
            await StoreMark(tmp_path).check(mine)
        assert mine.first is None
        reader = MemoryStore(mine.etcd, LoopClock(), random.Random(2))
        found = await reader.get(keys.INCARNATION)
        assert found is not None
        assert decode(Incarnation, found.value, key=found.key) == repaired
        for one in (mine, reader):
            await one.close()

    run(scenario())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (Commit(deletes=(Delete(keys.INCARNATION),)), "it has no identity any more"),
        (Commit(puts=(Put(keys.INCARNATION, encode(store("other"))),)), "it is store other by now"),
    ],
    ids=["gone", "another"],
)
def test_e8_a_process_ends_when_its_etcd_is_another_or_none(change: Commit, told: str) -> None:
    async def scenario() -> None:
        mine = MemoryStore(MemoryEtcd(LoopClock()), LoopClock(), random.Random(1))
        following = asyncio.create_task(follow_identity(mine))
        await asyncio.sleep(3 * EVERY_S)
        assert not following.done()
        await mine.commit(change)
        assert told in str(await asyncio.wait_for(following, 2 * EVERY_S))
        await mine.close()

    run(scenario())


def test_e8_a_process_ends_when_its_own_etcd_was_found_unfit() -> None:
    async def scenario() -> None:
        mine = MemoryStore(MemoryEtcd(LoopClock()), LoopClock(), random.Random(1))
        following = asyncio.create_task(follow_identity(mine))
        unfit = msgspec.structs.replace(await mine.identity(), repair="it was restored from a copy")
        await mine.commit(Commit(puts=(Put(keys.INCARNATION, encode(unfit)),)))
        assert "it was restored from a copy" in str(await asyncio.wait_for(following, 2 * EVERY_S))
        await mine.close()

    run(scenario())
