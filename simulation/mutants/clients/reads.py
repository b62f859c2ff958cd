"""Break the rules of readers with an end: one cut over all that they read, never older than one they know of."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        name="latest-without-a-cut",
        rule="a read to latest over several segments ends at one revision in all of them",
        section="§10",
        file="txnclient/reading/reader_impl.py",
        old='if self._range.end == "latest" and self._range.committed:',
        new='if self._range.end == "latest" and False:',
        tests=(
            "tests/reads/test_reader_cuts.py::test_a_read_to_latest_holds_each_transaction_whole_however_late_an_owner_hears",
        ),
        why_tests="an owner that lags just as somebody reads to latest is seldom met by the few reads of a seed",
    ),
    Mutant(
        name="older-than-asked-for",
        rule="a cut is not from before the revision that its asker was told of",
        section="§10",
        file="segments/controller/snapshots.py",
        old="while revision < at_least:",
        new="while revision < 0:",
        tests=(
            "tests/segments/controller/test_cut.py::test_a_cut_is_taken_once_the_store_has_come_to_the_revision_that_is_asked_for",
        ),
        why_tests="its clients hand each other no revisions",
    ),
    Mutant(
        name="cut-older-than-its-asker",
        rule="readers share a cut only if it is begun after each of them has asked",
        section="§10",
        file="txnclient/reading/cuts.py",
        old="cut = self._next.get(over)",
        new=(
            "cut = self._next.get(over)\n"
            "        if cut is None and over in self._begun:\n"
            "            cut = self._begun[over].cut"
        ),
        tests=(
            "tests/txnclient/reading/test_reader_cuts.py::"
            "test_readers_that_open_together_share_a_snapshot_that_is_begun_after_they_asked",
        ),
        why_tests="no two of its readers of one client open at once",
    ),
    Mutant(
        name="deliveries-forgotten",
        rule="what a client opens is no older than what it was delivered",
        section="§10",
        file="txnclient/consuming/feeds/feed.py",
        old="        self._session.told(deliver.revision)\n",
        new="        self._session.told(0 * deliver.revision)\n",
        tests=(
            "tests/reads/test_reader_cuts.py::test_what_a_client_was_delivered_is_in_whatever_it_opens_next",
            "tests/txnclient/reading/test_reader_cuts.py::"
            "test_a_delivery_and_a_revision_handed_over_count_for_what_is_opened_next",
        ),
        why_tests="its readers begin at the earliest: what they miss at first comes in the end",
    ),
    Mutant(
        name="trim-through-empty-ledger",
        rule="a read that ended at the last entry that was trimmed has missed nothing",
        section="§8",
        file="segments/log/ledgers/segment_log.py",
        old="if one.ledger_id < first_kept and one.closed_length]",
        new="if one.ledger_id < first_kept]",
        tests=(
            "tests/segments/log/ledgers/test_trimming.py::test_an_empty_ledger_behind_what_is_trimmed_is_not_counted_as_lost",
        ),
        why_tests="not looked for with seeds: an owner has to be restarted with nothing sent, and all of it trimmed",
    ),
)
