"""Break what is counted and bounded in segments: bytes, times, revisions and numbers that operators and clients
read (docs/testing.md)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

WHY = "not looked for with seeds"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="open-ledger-takes-no-room",
        rule="what a segment keeps is told with the bytes of its open ledger",
        section="§8",
        file="segments/owner/segment.py",
        old="kept_bytes=self.open_bytes + sum(",
        new="kept_bytes=sum(",
        tests=("tests/segments/log/test_keeping_statistics.py::test_every_trimmed_ledger_counts_by_its_bytes",),
        why_tests=WHY,
    ),
    Mutant(
        name="bytes-of-the-last-trimmed",
        rule="trimmed bytes are those of all ledgers that a trim took",
        section="§8",
        file="segments/log/housekeeping.py",
        old="self._trimmed_bytes += sum(listed[ledger_id].bytes for ledger_id in going)",
        new="self._trimmed_bytes += listed[going[-1]].bytes",
        tests=("tests/segments/log/test_keeping_statistics.py::test_every_trimmed_ledger_counts_by_its_bytes",),
        why_tests=WHY,
    ),
    Mutant(
        name="skipped-by-the-last-trim",
        rule="entries that were trimmed unread add up over the trims",
        section="§8",
        file="segments/log/housekeeping.py",
        old="self._skipped += unread",
        new="self._skipped = unread",
        tests=(
            "tests/segments/log/test_keeping_statistics.py::"
            "test_entries_that_nobody_read_in_time_add_up_over_the_trims",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="load-of-the-whole-broker",
        rule="the load of a segment is what that segment took in",
        section="§8",
        file="segments/log/sends/appender.py",
        old="self.stored_bytes += measures.bytes_stored - bytes_before",
        new="self.stored_bytes += measures.bytes_stored",
        tests=("tests/segments/log/test_keeping_statistics.py::test_what_one_segment_takes_in_is_no_load_of_another",),
        why_tests=WHY,
    ),
    Mutant(
        name="pages-leave-the-share",
        rule="ledgers in pages use up the share of a hash range as those of the head do",
        section="§8",
        file="segments/log/ledgers/retention.py",
        old="kept = record.paged_bytes + sum(",
        new="kept = sum(",
        tests=(
            "tests/segments/log/ledgers/test_retention.py::test_ledgers_that_stand_in_pages_count_as_those_of_the_head",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="time-of-the-last-snapshot",
        rule="the time of all snapshots taken is told",
        section="§10",
        file="segments/controller/snapshots.py",
        old="self._taken_s += self._clock",
        new="self._taken_s = self._clock",
        tests=(
            "tests/segments/controller/test_cut.py::"
            "test_a_segment_without_an_owner_is_waited_for_and_named_when_the_time_is_up",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="tenth-ledger-before-the-second",
        rule="a repair gets a segment's ledgers in the order of their numbers",
        section="§12",
        file="segments/ledger/ledger_files.py",
        old="return sorted(int(stem) for stem in stems if stem.isdecimal())",
        new="return [int(stem) for stem in sorted(stems) if stem.isdecimal()]",
        tests=("tests/segments/ledger/test_many_ledgers.py::test_ledgers_are_listed_by_their_numbers",),
        why_tests=WHY,
    ),
    Mutant(
        name="last-hot-segment-is-split",
        rule="the segment furthest above a threshold is split, wherever it stands",
        section="§8",
        file="segments/layout/autoscale.py",
        old="found, heat = entry.id, how",
        new="found = entry.id",
        tests=("tests/segments/layout/test_autoscale.py::test_the_segment_furthest_above_a_threshold_is_split",),
        why_tests=WHY,
    ),
    Mutant(
        name="redeliveries-outlive-a-seek",
        rule="what a seek delivers again was given back by nobody",
        section="§8",
        file="segments/subscription/stream_subscription.py",
        old=("self.cursor.mark_delete\n        self._rewinds.clear()"),
        new="self.cursor.mark_delete",
        tests=(
            "tests/segments/subscription/cursors/test_seek.py::test_what_is_delivered_again_by_a_seek_counts_as_new",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="clocks-are-never-apart",
        rule="a producer's clock may be a day ahead of the broker's",
        section="§7",
        file="segments/broker/broker_service.py",
        old="now_ms + MAX_DELAY_MS + CLOCKS_APART_MS",
        new="now_ms + MAX_DELAY_MS",
        tests=(
            "tests/segments/subscription/queueing/test_delivered_later.py::"
            "test_a_time_that_nobody_could_wait_for_is_refused",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="as-old-as-its-answer",
        rule="a view is as old as the question that the store has answered last",
        section="§11",
        file="segments/layout/freshness.py",
        old="self._heard_at = asked_at",
        new="self._heard_at = self._clock.monotonic()",
        tests=(
            "tests/segments/layout/test_freshness.py::test_a_view_is_as_old_as_the_question_that_was_answered_last",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="one-limit-for-all-records",
        rule="each kind of record has its own time to be read at the start",
        section="§11",
        file="segments/layout/directory.py",
        old="limit.reschedule(loop.time() + timeout_s)",
        new="pass",
        tests=(
            "tests/segments/layout/test_directory.py::"
            "test_each_kind_of_record_has_its_own_time_to_be_read_at_the_start",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="layout-revision-falls",
        rule="the revision of a layout never falls, whichever watch is ahead",
        section="§11",
        file="segments/layout/directory.py",
        old="self._layout_revisions[path] = max(self._layout_revisions.get(path, 0), revision)",
        new="self._layout_revisions[path] = revision",
        tests=(
            "tests/segments/layout/test_directory.py::"
            "test_the_revision_of_a_layout_never_falls_though_owners_are_followed_ahead_of_topics",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="page-number-used-twice",
        rule="no record of a cursor grows past its bound, also behind a page that was emptied",
        section="§6",
        file="segments/subscription/cursors/partial_acks.py",
        old=("number = 1\n        while number in self.pages:\n            number += 1"),
        new="number = len(self.pages) + 1",
        tests=(
            "tests/segments/subscription/cursors/test_cursor.py::"
            "test_a_page_that_was_emptied_is_the_first_to_be_filled_again",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="appended-below-what-was-trimmed",
        rule="a ledger opened where none is left lies behind all that was trimmed",
        section="§7",
        file="segments/log/ledgers/segment_log.py",
        old=("if record.trimmed_below is not None:\n            next_id = max(next_id, record.trimmed_below[0])\n"),
        new="pass\n",
        tests=(
            "tests/segments/log/ledgers/test_trimming.py::"
            "test_a_log_of_which_nothing_is_left_goes_on_behind_what_was_trimmed",
        ),
        why_tests=WHY,
    ),
)
