"""Break the rules that keep room: ledger lists in pages, a full disk, memory that is given back (DESIGN §6, §7)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="page-without-its-head",
        rule="a page is written in the transaction of the head that gives it up",
        section="§7",
        file="segments/log/ledgers/ledger_list.py",
        old="            puts=(Put(self._key, records.encode(now.head)), *now.puts),",
        new="            puts=(Put(self._key, records.encode(now.head)),),",
    ),
    Mutant(
        name="page-outlives-its-ledgers",
        rule="a page goes with the last of its ledgers",
        section="§7",
        file="segments/log/ledgers/ledger_list.py",
        old="            deletes=now.deletes,",
        new="            deletes=now.deletes[:0],",
    ),
    Mutant(
        name="list-with-a-gap",
        rule="a ledger list whose head and pages do not fit is corrupt, never the whole",
        section="§7",
        file="segments/log/ledgers/ledger_pages.py",
        old="    if len(older) != head.paged or any(",
        new="    if any(",
        tests=(
            "tests/segments/log/ledgers/test_ledger_pages.py::"
            "test_a_list_with_a_gap_is_corrupt_and_never_taken_for_the_whole[a page is missing]",
        ),
        why_tests="the simulated etcd loses no record",
    ),
    Mutant(
        name="pages-passed-over",
        rule="a program that knows of no pages refuses a head that has some",
        section="§7",
        file="segments/log/ledgers/ledger_pages.py",
        old="        v=PAGED if paged else 1,",
        new="        v=1,",
        tests=(
            "tests/segments/log/ledgers/test_ledger_pages.py::test_a_program_that_knows_of_no_pages_refuses_the_head",
        ),
        why_tests="the simulation runs one version of the program",
    ),
    Mutant(
        name="open-ledger-in-a-page",
        rule="what is open stays in the head, where whoever takes over closes it",
        section="§7",
        file="segments/log/ledgers/ledger_pages.py",
        old="        if any(info.closed_length is None for info in page):",
        new="        if not page:",
        tests=("tests/segments/log/ledgers/test_ledger_pages.py::test_a_ledger_that_is_open_stays_in_the_head",),
        why_tests="only the last ledger of a list is open, and that one is in the head in any case",
    ),
    Mutant(
        name="pages-left-behind",
        rule="a topic's record goes once nothing of its segments is left, pages of ledger lists included",
        section="§8",
        file="segments/log/erasing.py",
        old="    await _erase(store, segment, epoch, keys.ledger_pages(segment), _plain)\n",
        new="",
        tests=(
            "tests/segments/log/test_erasing.py::test_s8_everything_of_a_segment_goes_and_nothing_of_its_neighbour",
        ),
        why_tests="few seeds delete a topic whose lists are that long",
    ),
    Mutant(
        name="admitted-on-a-full-disk",
        rule="below the watermark of free bytes nothing is admitted",
        section="§7",
        file="segments/log/room.py",
        old="        if self._full:\n            raise StoreFull(self.why_full())",
        new="        if self._full and not self.free_bytes:\n            raise StoreFull(self.why_full())",
        tests=(
            "tests/segments/log/test_room.py::"
            "test_nothing_is_admitted_below_the_watermark_and_all_of_it_again_with_a_quarter_more",
        ),
        why_tests="a simulated disk that is full takes nothing: who fills it loses a ledger, never a message",
    ),
    Mutant(
        name="admitted-between-two-looks",
        rule="what is admitted since the last look at the disk counts",
        section="§7",
        file="segments/log/room.py",
        old="            self._left -= size\n",
        new="            self._left -= 0 * size\n",
        tests=(
            "tests/segments/log/test_room.py::test_what_is_admitted_between_two_looks_counts_and_so_does_what_is_in_flight",
        ),
        why_tests="a simulated disk is full or is not",
    ),
    Mutant(
        name="repeat-refused-on-a-full-disk",
        rule="an entry that is stored, or on its way, is never refused for want of room",
        section="§7",
        file="segments/log/sends/pipeline.py",
        old="        if not self._dedup.knows(token, entry.sequence_id):",
        new="        if self._dedup.last_sequence_id is not None:",
        tests=(
            "tests/segments/log/test_room.py::test_c12_sends_are_refused_and_what_was_stored_is_read_and_told_again",
        ),
        why_tests="no seed is known that loses an answer and fills the disk before it is asked for again",
    ),
    Mutant(
        name="full-disk-not-emptied",
        rule="want of room for a sidecar keeps nothing from being trimmed",
        section="§8",
        file="segments/log/housekeeping.py",
        old="        except LedgerFailed as error:\n            # ▲ A full disk without room for a sidecar",
        new="        except NotImplementedError as error:\n            # ▲ A full disk without room for a sidecar",
        tests=("tests/segments/log/test_room.py::test_c12_a_sidecar_without_room_keeps_nothing_from_being_trimmed",),
        why_tests="a simulated disk that is full has room again after a while, by itself",
    ),
    Mutant(
        name="newest-footer-trimmed",
        rule="without room for a new footer the newest one that stands is not trimmed",
        section="§8",
        file="segments/log/housekeeping.py",
        old="            bounded = min(kept, footer.ledger_id)\n",
        new="            bounded = max(kept, footer.ledger_id)\n",
        tests=(
            "tests/segments/log/test_room.py::test_c12_without_room_for_a_footer_all_goes_but_the_newest_that_stands",
        ),
        why_tests="few seeds fill a disk while a ledger expires and send an old entry again behind a take-over",
    ),
    Mutant(
        name="erasing-waits-for-room",
        rule="a segment is erased on a full disk, too: closed ledgers go before the fence of the open one",
        section="§8",
        file="segments/log/erasing.py",
        old="            await _delete_older(ledgers, segment, ledger_id)\n",
        new="",
        tests=(
            "tests/segments/log/test_room.py::"
            "test_c12_where_no_fence_has_room_a_segment_that_is_erased_gives_its_closed_ledgers_first",
        ),
        why_tests="a simulated disk that is full has room again after a while, by itself",
    ),
    Mutant(
        name="no-reserve",
        rule="what closes, fences and opens ledgers gets the reserve where there is no room",
        section="§7",
        file="segments/ledger/ledger_reserve.py",
        old="            self.give_up()\n            return job()\n",
        new="            return job()\n",
        tests=("tests/segments/log/test_room.py::test_a_job_without_room_is_done_with_the_reserve_once",),
        why_tests="the simulation has disks of its own",
    ),
    Mutant(
        name="reserve-of-the-first-alone",
        rule="who finds no room while another gives the reserve up tries once more",
        section="§7",
        file="segments/ledger/ledger_reserve.py",
        old="            self.give_up()\n            return job()\n",
        new="            if not self.give_up():\n                raise OSError\n            return job()\n",
        tests=(
            "tests/segments/log/test_room.py::test_jobs_that_find_no_room_at_once_are_all_done_with_the_one_reserve",
        ),
        why_tests="the simulation has disks of its own",
    ),
    Mutant(
        name="cache-of-a-lost-segment",
        rule="a segment that is lost gives its cache back",
        section="§7",
        file="segments/owner/segment.py",
        old="        self._shared.caches.leave(self._cache)\n",
        new="",
        tests=(
            "tests/segments/owner/test_take_over.py::"
            "test_a_segment_that_is_lost_again_and_again_gives_its_cache_back_each_time",
        ),
        why_tests="it costs memory, which no history shows",
    ),
    Mutant(
        name="replayed-producer-forgotten-early",
        rule="a producer is idle since its last entry, wherever that was found",
        section="§7",
        file="segments/log/sends/dedup.py",
        old=" resend would be stored twice.\n            self._active(producer, now_s)\n",
        new="\n",
        tests=("tests/segments/log/sends/test_dedup.py::test_an_entry_found_behind_the_snapshot_renews_the_idle_time",),
        why_tests="it takes a producer that is silent for as long as it is remembered, over a take-over",
    ),
    Mutant(
        name="producers-forgotten-by-rolls-alone",
        rule="idle producers are forgotten whether or not the log rolls",
        section="§7",
        file="segments/owner/segment.py",
        old="            await forget_in_turns(self._dedup, self._shared.clock)\n",
        new="",
        tests=("tests/segments/owner/test_take_over.py::test_producers_are_forgotten_by_a_segment_that_never_rolls",),
        why_tests="it costs memory, which no history shows",
    ),
    Mutant(
        name="early-decisions-without-an-end",
        rule="of decisions that come while segments load only those are kept that one of them may need",
        section="§6",
        file="watchers/early_decisions.py",
        old="        while self._kept and (oldest is None or",
        new="        while self._kept and oldest is None and (",
        tests=(
            "tests/watchers/test_early_decisions.py::test_what_came_before_the_oldest_that_still_reads_is_forgotten",
        ),
        why_tests="it costs memory, which no history shows",
    ),
    Mutant(
        name="given-up-seal-budget-leak",
        rule="what is held back for a seal weighs once on the broker's bound, however the seal ends",
        section="§7",
        file="segments/log/sends/pipeline.py",
        old=(
            "            self._in_flight.count(0, -len(one.entry.data))\n"
            "            try:\n"
            "                self.send(one.line, one.token, one.entry, one.reply)\n"
        ),
        new=(
            "            self._in_flight.bytes -= len(one.entry.data)\n"
            "            try:\n"
            "                self.send(one.line, one.token, one.entry, one.reply)\n"
        ),
        tests=(
            "tests/segments/subscription/test_backpressure.py::"
            "test_sends_held_back_and_then_admitted_weigh_once_on_the_bound_over_all_segments",
        ),
        why_tests="not looked for with seeds: it takes many splits that are given up with sends in them",
    ),
    Mutant(
        name="rolls-for-aborts-of-closed-ledgers",
        rule="aborted records close the open ledger early only where its sidecar takes them out of etcd",
        section="§6",
        file="segments/log/housekeeping.py",
        old="        return self._buffer.records_from(Position(writer.ledger_id, -1)) > bound\n",
        new="        return self._buffer.records_from(EARLIEST) > bound\n",
        tests=(
            "tests/segments/log/ledgers/test_rolling_by_aborts.py::"
            "test_aborts_that_an_open_transaction_keeps_in_etcd_close_one_ledger_and_not_one_after_the_other",
        ),
        why_tests="it costs ledgers, which no history shows",
    ),
    Mutant(
        name="ended-by-another-segments-list",
        rule="a ledger list that cannot be read ends no segment that its own came from",
        section="§8",
        file="segments/log/housekeeping.py",
        old='    except DataCorrupt as error:\n        log.warning("ledger_list_not_read"',
        new='    except NotImplementedError as error:\n        log.warning("ledger_list_not_read"',
        tests=(
            "tests/segments/log/ledgers/test_retention_policies.py::"
            "test_a_ledger_list_that_cannot_be_read_ends_no_segment_that_it_came_from[0000-3fff-8]",
        ),
        why_tests="records of the simulated etcd can all be read",
    ),
    Mutant(
        name="ended-by-a-subscription-that-cannot-be-read",
        rule="a subscription of which nobody can say what it needs holds back what is trimmed, and ends no segment",
        section="§8",
        file="segments/log/housekeeping.py",
        old="            drained = await self._segment.drained()\n        except DataCorrupt as error:",
        new="            drained = await self._segment.drained()\n        except NotImplementedError as error:",
        tests=(
            "tests/segments/log/ledgers/test_retention_policies.py::"
            "test_nothing_is_trimmed_and_no_segment_ends_where_nobody_can_say_what_a_subscription_needs",
        ),
        why_tests="records of the simulated etcd can all be read",
    ),
    Mutant(
        name="erasing-stopped-by-an-unreadable-key",
        rule="a key that cannot be read goes with the segment that is erased",
        section="§8",
        file="segments/log/erasing.py",
        old="            unreadable.append(record.key)\n",
        new="            raise\n",
        tests=("tests/segments/log/test_erasing.py::test_s8_a_key_that_cannot_be_read_goes_with_its_segment",),
        why_tests="keys of the simulated etcd can all be read",
    ),
)
