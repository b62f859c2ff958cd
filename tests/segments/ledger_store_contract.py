"""What every `LedgerStore` promises. A backend's test module subclasses `LedgerStoreContract` and gives the fixtures.

`ledgers` is a fresh store; `successor` another store over the same data, as a second process would open it. `pause`
holds who fences a ledger between its look at it and its count; `place` takes away where ledgers are kept; `broken`
makes the disk take nothing any more, not even where a ledger ends.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import pytest

from segments.ledger.ledger import LedgerFailed, LedgerFenced, LedgerStore, LedgerUnreadable, LedgerWriter, Recovered
from txnwire.errors import DataCorrupt, InvalidArgument

SEGMENT = "public/default/orders/0000-7fff-3"
OTHER = "public/default/orders/8000-ffff-4"
ALL = 1 << 40


class Pause(Protocol):
    def arm(self) -> None:
        """Hold the next one."""

    async def reached(self) -> None: ...
    def end(self) -> None: ...


class Place(Protocol):
    def go(self) -> None: ...
    def come_back(self) -> None: ...


class Broken(Protocol):
    def begin(self) -> None: ...
    def end(self) -> None: ...


async def create(store: LedgerStore, ledger_id: int = 1, segment: str = SEGMENT) -> LedgerWriter:
    return await store.create(segment, ledger_id, incarnation="store-1")


async def filled(store: LedgerStore, entries: int, ledger_id: int = 1) -> LedgerWriter:
    writer = await create(store, ledger_id)
    for number in range(entries):
        writer.append(b"entry-%d" % number)
    await writer.sync()
    return writer


class LedgerStoreContract:
    async def test_the_place_has_one_id_for_all_who_see_it_and_for_ever(
        self, ledgers: LedgerStore, successor: LedgerStore
    ) -> None:
        assert (await ledgers.identity(None)).id is None
        assert (await ledgers.identity("a")).id == "a"
        assert [(await one.identity(mark)).id for one in (ledgers, successor) for mark in ("b", None)] == ["a"] * 4
        assert await ledgers.list() == []

    async def test_ids_count_up_and_only_a_sync_confirms(self, ledgers: LedgerStore) -> None:
        writer = await create(ledgers)
        assert (writer.ledger_id, writer.last_confirmed, writer.appended_bytes) == (1, -1, 0)
        assert [writer.append(b"a"), writer.append(b"bc"), writer.append(b"")] == [0, 1, 2]
        assert (writer.last_confirmed, writer.appended_bytes) == (-1, 3)
        assert await writer.sync() == 2
        assert writer.append(b"d") == 3
        assert writer.last_confirmed == 2

    async def test_syncs_that_overlap_each_cover_what_came_before(self, ledgers: LedgerStore) -> None:
        writer = await create(ledgers)
        waiting = []
        for number in range(50):
            writer.append(b"%d" % number)
            waiting.append(asyncio.ensure_future(writer.sync()))
            if number % 7 == 0:
                await asyncio.sleep(0)
        confirmed = await asyncio.gather(*waiting)
        assert all(last >= number for number, last in enumerate(confirmed))
        assert [entry for _, entry in await writer.read(0, 49, max_bytes=ALL)] == [b"%d" % n for n in range(50)]

    async def test_a_cancelled_sync_harms_nobody(self, ledgers: LedgerStore) -> None:
        writer = await create(ledgers)
        writer.append(b"a")
        first = asyncio.ensure_future(writer.sync())
        await asyncio.sleep(0)
        first.cancel()
        writer.append(b"b")
        assert await writer.sync() == 1
        assert (await writer.close(b"")).entries == 2

    async def test_an_empty_sync_is_a_fence_check(self, ledgers: LedgerStore) -> None:
        writer = await create(ledgers)
        assert await writer.sync() == -1
        await ledgers.fence(SEGMENT, 1)
        with pytest.raises(LedgerFenced):
            await writer.sync()

    @pytest.mark.parametrize(
        ("first", "last", "max_bytes", "expected"),
        [
            (0, 9, ALL, range(10)),
            (3, 5, ALL, range(3, 6)),
            (7, 99, ALL, range(7, 10)),
            (10, 99, ALL, range(0)),
            (5, 4, ALL, range(0)),
            (0, 9, 1, range(1)),
            (4, 9, 14, range(4, 6)),
        ],
    )
    async def test_reads_of_the_open_ledger(
        self, ledgers: LedgerStore, first: int, last: int, max_bytes: int, expected: range
    ) -> None:
        writer = await filled(ledgers, 10)
        writer.append(b"not synced")
        found = await writer.read(first, last, max_bytes=max_bytes)
        assert list(found) == [(number, b"entry-%d" % number) for number in expected]

    @pytest.mark.parametrize(
        ("first", "last", "max_bytes", "expected"),
        [
            (0, 9, ALL, range(10)),
            (3, 5, ALL, range(3, 6)),
            (5, 4, ALL, range(0)),
            (0, 9, 1, range(1)),
            (4, 9, 14, range(4, 6)),
        ],
    )
    async def test_reads_of_a_closed_ledger(
        self, ledgers: LedgerStore, successor: LedgerStore, first: int, last: int, max_bytes: int, expected: range
    ) -> None:
        writer = await filled(ledgers, 10)
        recovered = await writer.close(b"footer")
        assert (recovered.entries, recovered.bytes) == (10, 70)
        for store in (ledgers, successor):
            found = await store.read(SEGMENT, 1, first, last, max_bytes=max_bytes)
            assert list(found) == [(number, b"entry-%d" % number) for number in expected]

    async def test_many_groups_and_large_entries_are_found_by_id(
        self, ledgers: LedgerStore, successor: LedgerStore
    ) -> None:
        writer = await create(ledgers)
        entries = [bytes([n % 251]) * (5_000_000 if n == 40 else 1 + (n * 977) % 9000) for n in range(120)]
        for number, entry in enumerate(entries):
            writer.append(entry)
            if number % 3 == 0:
                await writer.sync()
        await writer.sync()
        for number in (0, 1, 39, 40, 41, 77, 119):
            assert list(await writer.read(number, number, max_bytes=1)) == [(number, entries[number])]
        await writer.close(b"")
        for number in (0, 39, 40, 41, 118, 119):
            assert list(await successor.read(SEGMENT, 1, number, 119, max_bytes=1)) == [(number, entries[number])]

    async def test_an_existing_ledger_is_not_created_again(self, ledgers: LedgerStore, successor: LedgerStore) -> None:
        writer = await filled(ledgers, 3)
        for store in (ledgers, successor):
            with pytest.raises(LedgerFailed):
                await create(store)
        assert len(await writer.read(0, 2, max_bytes=ALL)) == 3

    async def test_l3_a_fenced_writer_acks_and_exposes_nothing_more(
        self, ledgers: LedgerStore, successor: LedgerStore
    ) -> None:
        writer = await filled(ledgers, 3)
        recovered = await successor.fence(SEGMENT, 1)
        assert (recovered.entries, recovered.bytes) == (3, 21)
        writer.append(b"late")
        with pytest.raises(LedgerFenced):
            await writer.sync()
        assert writer.last_confirmed == 2
        for _ in range(2):
            with pytest.raises(LedgerFenced):
                writer.append(b"later")
            with pytest.raises(LedgerFenced):
                await writer.sync()
        with pytest.raises(LedgerFenced):
            await writer.close(b"")
        assert [entry for _, entry in await successor.read(SEGMENT, 1, 0, 2, max_bytes=ALL)] == [
            b"entry-0", b"entry-1", b"entry-2",
        ]  # fmt: skip

    async def test_fencing_again_tells_the_same_whatever_a_late_writer_added(
        self, ledgers: LedgerStore, successor: LedgerStore
    ) -> None:
        writer = await filled(ledgers, 3)
        first = await successor.fence(SEGMENT, 1)
        writer.append(b"late")
        with pytest.raises(LedgerFenced):
            await writer.sync()
        assert await successor.fence(SEGMENT, 1) == first
        assert await ledgers.fence(SEGMENT, 1) == first

    async def test_of_two_successors_that_count_at_once_the_first_count_stands(
        self, ledgers: LedgerStore, successor: LedgerStore, pause: Pause
    ) -> None:
        """▲ The one that pauses saw less of the ledger; what the other one counted is in `/ledger` and read already."""
        writer = await filled(ledgers, 3)
        pause.arm()
        paused = asyncio.ensure_future(successor.fence(SEGMENT, 1))
        await pause.reached()
        writer.append(b"late")
        with pytest.raises(LedgerFenced):
            await writer.sync()
        counted = await ledgers.fence(SEGMENT, 1)
        assert counted.entries == 4
        pause.end()
        assert await paused == counted
        for store in (ledgers, successor):
            assert await store.fence(SEGMENT, 1) == counted
            assert len(await store.read(SEGMENT, 1, 0, 3, max_bytes=ALL)) == 4

    async def test_c12_what_is_not_there_because_the_place_has_gone_was_not_never_made(
        self, ledgers: LedgerStore, successor: LedgerStore, place: Place
    ) -> None:
        """▲ A take-over would write down that nothing was ever there; nor is anything made where the place was."""
        await ledgers.identity("a")
        await successor.identity(None)
        writer = await filled(ledgers, 3)
        await (await filled(ledgers, 3, ledger_id=2)).close(b"f")
        place.go()
        for failing in (
            successor.fence(SEGMENT, 1),
            successor.fence(SEGMENT, 7),
            create(successor, 8),
            successor.write_footer(SEGMENT, 1, b"f"),
            successor.write_sidecar(SEGMENT, 2, b"s"),
            successor.delete(SEGMENT, 2),
            successor.delete_segment(SEGMENT),
            successor.list(),
        ):
            with pytest.raises(LedgerFailed, match="is missing"):
                await failing
        for reading in (
            successor.read(SEGMENT, 2, 0, 2, max_bytes=ALL),
            successor.read_footer(SEGMENT, 2),
            successor.read_sidecar(SEGMENT, 2),
        ):
            with pytest.raises(LedgerUnreadable, match="is missing"):
                await reading
        place.come_back()
        assert await successor.fence(SEGMENT, 1) == Recovered(3, 21)
        assert len(await successor.read(SEGMENT, 2, 0, 2, max_bytes=ALL)) == 3
        assert await successor.list() == [(SEGMENT, 1), (SEGMENT, 2)]
        writer.abandon()

    async def test_c12_a_writer_whose_place_has_gone_acks_nothing_more(
        self, ledgers: LedgerStore, successor: LedgerStore, place: Place
    ) -> None:
        """▲ Its file is open, so it could go on; but a successor that finds the place elsewhere fences it unseen."""
        await ledgers.identity("a")
        writer = await filled(ledgers, 3)
        place.go()
        writer.append(b"into the dark")
        with pytest.raises(LedgerFailed, match="is missing"):
            await writer.sync()
        assert writer.last_confirmed == 2
        assert await writer.unrecorded_end() is None  # it is durable: whoever comes may count it
        place.come_back()
        assert (await successor.fence(SEGMENT, 1)).entries == 4

    async def test_what_was_never_created_is_told_from_what_is_empty(self, ledgers: LedgerStore) -> None:
        await create(ledgers, 1)
        assert await ledgers.fence(SEGMENT, 1) == Recovered(0, 0, present=True)
        assert await ledgers.fence(SEGMENT, 2) == Recovered(0, 0, present=False)

    async def test_who_looks_at_a_ledger_changes_nothing(self, ledgers: LedgerStore, successor: LedgerStore) -> None:
        writer = await filled(ledgers, 3)
        assert await successor.look_at(SEGMENT, 1) == Recovered(3, 21)
        assert await successor.look_at(SEGMENT, 2) is None
        writer.append(b"goes on")
        assert await writer.sync() == 3
        await writer.close(b"f")
        assert await successor.look_at(SEGMENT, 1) == Recovered(4, 28)

    async def test_l5_a_writer_tells_its_end_where_the_disk_does_not_take_it(
        self, ledgers: LedgerStore, broken: Broken
    ) -> None:
        """▲ A successor would count what the kernel has and the disk has not: in this process it does not."""
        writer = await filled(ledgers, 3)
        assert await writer.unrecorded_end() is None
        broken.begin()
        writer.append(b"lost")
        syncing = asyncio.ensure_future(writer.sync())
        for _ in range(3):
            await asyncio.sleep(0)
        writer.abandon()
        assert await writer.unrecorded_end() == Recovered(3, 21)
        with pytest.raises(LedgerFailed):
            await syncing
        broken.end()
        assert (await ledgers.fence(SEGMENT, 1)).entries == 3

    async def test_l3_a_fence_before_the_creation_stops_the_creator(
        self, ledgers: LedgerStore, successor: LedgerStore
    ) -> None:
        assert (await successor.fence(SEGMENT, 1)).entries == 0
        with pytest.raises(LedgerFenced):
            await create(ledgers)
        assert (await successor.fence(SEGMENT, 1)).entries == 0

    async def test_l3_a_creator_that_wakes_after_the_deletion_is_still_stopped(
        self, ledgers: LedgerStore, successor: LedgerStore
    ) -> None:
        """▲ Fenced before it was created, closed as empty, deleted: its creator may come any time later."""
        await successor.fence(SEGMENT, 1)
        await successor.delete(SEGMENT, 1)
        assert list(await successor.list()) == []
        with pytest.raises(LedgerFenced):
            await create(ledgers)

    async def test_l3_a_writer_that_wakes_after_the_deletion_acks_nothing(
        self, ledgers: LedgerStore, successor: LedgerStore
    ) -> None:
        """▲ Fence, then trim: the fence is gone with the ledger, and still the late writer must not ack."""
        writer = await filled(ledgers, 3)
        await successor.fence(SEGMENT, 1)
        await successor.delete(SEGMENT, 1)
        writer.append(b"late")
        with pytest.raises(LedgerFenced):
            await writer.sync()

    async def test_a_closed_writer_refuses_but_still_reads(self, ledgers: LedgerStore) -> None:
        writer = await filled(ledgers, 3)
        await writer.close(b"")
        with pytest.raises(LedgerFailed):
            writer.append(b"x")
        with pytest.raises(LedgerFailed):
            await writer.sync()
        assert list(await writer.read(1, 1, max_bytes=ALL)) == [(1, b"entry-1")]

    async def test_an_abandoned_writer_refuses(self, ledgers: LedgerStore, successor: LedgerStore) -> None:
        writer = await filled(ledgers, 3)
        writer.append(b"unsynced")
        writer.abandon()
        writer.abandon()
        with pytest.raises(LedgerFailed):
            writer.append(b"x")
        with pytest.raises(LedgerFailed):
            await writer.sync()
        assert (await successor.fence(SEGMENT, 1)).entries == 3

    async def test_footers(self, ledgers: LedgerStore, successor: LedgerStore) -> None:
        writer = await filled(ledgers, 3)
        assert await ledgers.read_footer(SEGMENT, 1) is None
        await ledgers.write_footer(SEGMENT, 1, b"checkpoint beside the open ledger")
        assert writer.append(b"goes on") == 3
        assert await writer.sync() == 3
        assert await successor.read_footer(SEGMENT, 1) == b"checkpoint beside the open ledger"
        await writer.close(b"at its end")
        assert await successor.read_footer(SEGMENT, 1) == b"at its end"
        await successor.fence(SEGMENT, 1)
        await successor.write_footer(SEGMENT, 1, b"\x00" * 100_000)
        assert await ledgers.read_footer(SEGMENT, 1) == b"\x00" * 100_000
        assert len(await ledgers.read(SEGMENT, 1, 0, 3, max_bytes=ALL)) == 4

    async def test_a_late_checkpoint_hides_no_entry_its_successor_counted(
        self, ledgers: LedgerStore, successor: LedgerStore
    ) -> None:
        """Synced but unacked entries of a fenced writer count; its own idea of the ledger's length does not."""
        writer = await filled(ledgers, 3)
        counted = await successor.fence(SEGMENT, 1)
        await ledgers.write_footer(SEGMENT, 1, b"late")
        writer.abandon()
        found = await successor.read(SEGMENT, 1, 0, counted.entries - 1, max_bytes=ALL)
        assert len(found) == counted.entries

    async def test_reading_past_what_is_there_is_corruption(self, ledgers: LedgerStore, successor: LedgerStore) -> None:
        """`last` is within the closed length, so whatever is missing had been acknowledged."""
        await (await filled(ledgers, 3)).close(b"")
        for store in (ledgers, successor):
            with pytest.raises(DataCorrupt, match="1"):
                await store.read(SEGMENT, 1, 0, 3, max_bytes=ALL)

    async def test_missing_and_malformed_names(self, ledgers: LedgerStore) -> None:
        with pytest.raises(InvalidArgument):
            await ledgers.read(SEGMENT, 9, 0, 0, max_bytes=ALL)
        with pytest.raises(InvalidArgument):
            await ledgers.read("../../etc/0000-7fff-3", 1, 0, 0, max_bytes=ALL)
        with pytest.raises(InvalidArgument):
            await ledgers.create("public/default/orders", 1, incarnation="i")
        with pytest.raises(InvalidArgument):
            await ledgers.read(SEGMENT, 1, -1, 0, max_bytes=ALL)

    async def test_list_and_delete(self, ledgers: LedgerStore, successor: LedgerStore) -> None:
        assert list(await ledgers.list()) == []
        await (await filled(ledgers, 1, ledger_id=2)).close(b"f")
        await filled(ledgers, 1, ledger_id=11)
        await create(ledgers, 1, OTHER)
        assert list(await successor.list()) == [(SEGMENT, 2), (SEGMENT, 11), (OTHER, 1)]
        await ledgers.read(SEGMENT, 2, 0, 0, max_bytes=ALL)
        for _ in range(2):
            await ledgers.delete(SEGMENT, 2)
        assert list(await ledgers.list()) == [(SEGMENT, 11), (OTHER, 1)]
        with pytest.raises(InvalidArgument):
            await ledgers.read(SEGMENT, 2, 0, 0, max_bytes=ALL)
        assert await ledgers.read_footer(SEGMENT, 2) is None

    async def test_sidecars(self, ledgers: LedgerStore, successor: LedgerStore) -> None:
        await (await filled(ledgers, 2)).close(b"f")
        assert await ledgers.read_sidecar(SEGMENT, 1) is None
        written = b"\x00" * 100_000
        assert await ledgers.write_sidecar(SEGMENT, 1, written) == written
        assert await successor.read_sidecar(SEGMENT, 1) == written
        assert await ledgers.read_footer(SEGMENT, 1) == b"f"
        assert len(await ledgers.read(SEGMENT, 1, 0, 1, max_bytes=ALL)) == 2
        await ledgers.delete(SEGMENT, 1)
        assert await successor.read_sidecar(SEGMENT, 1) is None
        assert list(await ledgers.list()) == []

    async def test_of_two_writers_of_a_sidecar_the_first_counts(
        self, ledgers: LedgerStore, successor: LedgerStore
    ) -> None:
        """▲ A former owner that wakes up late must not replace what its successor counts on."""
        await (await filled(ledgers, 2)).close(b"f")
        assert await successor.write_sidecar(SEGMENT, 1, b"first") == b"first"
        assert await ledgers.write_sidecar(SEGMENT, 1, b"another") == b"first"
        assert await ledgers.read_sidecar(SEGMENT, 1) == b"first"

    async def test_a_sidecar_alone_is_listed(self, ledgers: LedgerStore) -> None:
        await ledgers.write_sidecar(SEGMENT, 4, b"its ledger is gone")
        assert list(await ledgers.list()) == [(SEGMENT, 4)]

    async def test_a_segment_is_deleted_whole(self, ledgers: LedgerStore, successor: LedgerStore) -> None:
        writers = [await filled(ledgers, 2, ledger_id=number) for number in (1, 2)]
        await writers[0].close(b"f")
        await ledgers.write_sidecar(SEGMENT, 1, b"s")
        await successor.fence(SEGMENT, 2)
        await create(ledgers, 1, OTHER)
        for _ in range(2):
            await successor.delete_segment(SEGMENT)
            assert list(await ledgers.list()) == [(OTHER, 1)]
        writers[1].append(b"late")
        with pytest.raises(LedgerFenced):
            await writers[1].sync()
        with pytest.raises(InvalidArgument):
            await ledgers.read(SEGMENT, 1, 0, 0, max_bytes=ALL)

    async def test_l3_a_deleted_segment_still_stops_the_creator_of_a_ledger_that_was_fenced_unseen(
        self, ledgers: LedgerStore, successor: LedgerStore
    ) -> None:
        await successor.fence(SEGMENT, 3)
        await successor.delete_segment(SEGMENT)
        with pytest.raises(LedgerFenced):
            await create(ledgers, 3)
        assert list(await successor.list()) == []  # nor does the refused one leave its file behind

    async def test_segments_are_apart(self, ledgers: LedgerStore) -> None:
        one, two = await create(ledgers), await create(ledgers, 1, OTHER)
        one.append(b"one")
        two.append(b"two")
        await asyncio.gather(one.sync(), two.sync())
        assert list(await one.read(0, 9, max_bytes=ALL)) == [(0, b"one")]
        assert list(await two.read(0, 9, max_bytes=ALL)) == [(0, b"two")]

    async def test_a_closed_store_refuses(self, ledgers: LedgerStore) -> None:
        writer = await filled(ledgers, 1)
        await ledgers.close()
        with pytest.raises(LedgerFailed):
            writer.append(b"x")
        with pytest.raises(LedgerFailed):
            await ledgers.fence(SEGMENT, 1)
        await ledgers.close()
