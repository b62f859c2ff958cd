"""Break the rules of work in pages: where a page begins, its revision, and a failure between two pages (DESIGN §4, §5,
§6, §9)."""

# ruff: noqa: E501  (texts stand on one line, as in the code)
from __future__ import annotations

from typing import Final

from simulation.mutants.mutant import Mutant

WHY: Final = "a run would have to come to a second page, and be disturbed just there"
ALONE = "no seed was looked for: its test dies of this line alone"

MUTANTS = (
    Mutant(
        name="page-begins-with-the-last-one",
        rule="a page begins behind the last record of the one before",
        section="§4",
        file="txnstore/access/paging.py",
        old='        start = page[-1].key + b"\\0"\n',
        new="        start = page[-1].key\n",
        tests=(
            "tests/txnstore/access/test_paging.py::test_pages_have_each_record_once_and_in_order_wherever_they_end",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="page-passes-over-longer-keys",
        rule="a page begins right behind the last record of the one before, at longer keys that begin like it",
        section="§4",
        file="txnstore/access/paging.py",
        old='        start = page[-1].key + b"\\0"\n',
        new='        start = page[-1].key + b"0"\n',
        tests=(
            "tests/txnstore/access/test_paging.py::test_pages_have_each_record_once_and_in_order_wherever_they_end",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="full-page-is-the-last",
        rule="only a page that is not full is the last",
        section="§4",
        file="txnstore/access/paging.py",
        old="        if len(page) < at_once:\n",
        new="        if len(page) <= at_once:\n",
        tests=(
            "tests/txnstore/access/test_paging.py::test_pages_have_each_record_once_and_in_order_wherever_they_end",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="pages-of-other-revisions",
        rule="pages are of the revision that is asked for",
        section="§6",
        file="txnstore/access/paging.py",
        old="store.range(start, end, revision=revision,",
        new="store.range(start, end, revision=0,",
        tests=("tests/txnstore/access/test_paging.py::test_pages_of_a_revision_show_nothing_of_what_comes_meanwhile",),
        why_tests=WHY,
    ),
    Mutant(
        name="failed-load-costs-the-others",
        rule="a coordinator id that cannot be loaded costs none of the others",
        section="§9",
        file="coordinator_v5/background/take_over.py",
        old='            except TxnError as error:\n                log.warning("coordinator id not loaded, trying again", tcid=tcid, error=str(error))\n',
        new='            except TxnError as error:\n                log.warning("coordinator id not loaded, trying again", tcid=tcid, error=str(error))\n                return\n',
        tests=(
            "tests/coordinator_v5/background/test_take_over.py::test_an_id_that_cannot_be_loaded_costs_none_of_the_others",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="announced-before-it-is-claimable",
        rule="an id is served and its transactions wait for claims in one turn",
        section="§9",
        file="coordinator_v5/background/take_over.py",
        old="        state.tcids[tcid] = tc\n",
        new="        state.tcids[tcid] = tc\n        await asyncio.sleep(0.001)\n",
        tests=(
            "tests/coordinator_v5/background/test_take_over.py::test_an_announcement_at_the_moment_in_which_an_id_is_served_claims_what_is_open",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="walk-finds-what-is-known",
        rule="headers that are found in pages behind a take-over are those that it does not know yet",
        section="§9",
        file="coordinator_v5/background/take_over.py",
        old="            if tc.find(counter) is None and not tc.retains(counter):\n",
        new="            if not tc.retains(counter):\n",
        tests=(
            "tests/coordinator_v5/background/test_take_over.py::test_d4_a_successor_finds_every_open_transaction_and_ends_it",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="uncollected-left-out-of-line",
        rule="what a round of collection has not come to stays in line",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="                for seen in left.values():\n                    tc.collect_again(seen)\n",
        new="                left.clear()\n",
        tests=(
            "tests/coordinator_v5/background/test_collection.py::test_what_a_round_that_is_interrupted_has_not_come_to_stays_in_line",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="last-segment-s-leftovers-stay",
        rule="what was left in the last segment is cleared behind the last page",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="        for leftover in leftovers.rest():\n            await self._clear(txn_id, leftover)\n",
        new="",
        tests=(
            "tests/coordinator_v5/background/test_collection.py::test_leftovers_of_a_segment_without_an_owner_are_cleared_and_the_header_goes",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="ops-go-behind-a-refused-part",
        rule="the next part of leftovers goes only behind one that stands",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="                if not (await store.commit(commit)).succeeded:\n                    return\n",
        new="                await store.commit(commit)\n",
        tests=(
            "tests/coordinator_v5/background/test_collection.py::test_a_loser_beyond_the_first_page_of_ops_stays_hidden",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="loser-between-two-parts-dropped",
        rule="parts of leftovers name each loser",
        section="§5",
        file="txnstore/writes/collection_transitions.py",
        old="        at += LOSERS_AT_ONCE\n",
        new="        at += LOSERS_AT_ONCE + 1\n",
        tests=(
            "tests/txnstore/writes/test_collection_transitions.py::test_leftovers_are_cut_to_the_limits_and_records_never_follow_their_ops",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="ack-between-two-parts-dropped",
        rule="parts of leftovers name each ack",
        section="§5",
        file="txnstore/writes/collection_transitions.py",
        old="    for at in range(first, len(rest.acks), ACKS_AT_ONCE):\n",
        new="    for at in range(first + 1, len(rest.acks), ACKS_AT_ONCE):\n",
        tests=(
            "tests/txnstore/writes/test_collection_transitions.py::test_leftovers_are_cut_to_the_limits_and_records_never_follow_their_ops",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="ops-go-with-the-first-part",
        rule="ops go with the last of the records that are to stand instead of them",
        section="§5",
        file="txnstore/writes/collection_transitions.py",
        old="        yield Leftover(leftover.segment, False, leftover.aborted[at : at + LOSERS_AT_ONCE], (), ())\n",
        new="        yield Leftover(leftover.segment, leftover.writes, leftover.aborted[at : at + LOSERS_AT_ONCE], (), ())\n",
        tests=(
            "tests/txnstore/writes/test_collection_transitions.py::test_leftovers_are_cut_to_the_limits_and_records_never_follow_their_ops",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="newest-of-each-page",
        rule="which name is the newest of its prefix is a question over all pages",
        section="§4",
        file="coordinator_v5/naming/name_expiry.py",
        old="_expired(retention, part))",
        new="_expired(NameRetention(self._clock.wall_ms()), part))",
        tests=(
            "tests/coordinator_v5/naming/test_name_expiry.py::test_names_expire_page_by_page_while_the_role_is_held",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="last-name-of-a-page-not-judged",
        rule="each name of a page is judged",
        section="§4",
        file="coordinator_v5/naming/name_expiry.py",
        old="for part in in_parts(page, self._store.page_size(AT_ONCE)):",
        new="for part in in_parts(page[:-1], self._store.page_size(AT_ONCE)):",
        tests=(
            "tests/coordinator_v5/naming/test_name_expiry.py::test_names_expire_page_by_page_while_the_role_is_held",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="last-of-the-aged-not-looked-at",
        rule="what has been open for long is looked at, on the last page too",
        section="§5",
        file="coordinator_v5/background/sweeper.py",
        old="            for at in range(0, len(aged), at_once):\n",
        new="            for at in range(0, len(aged) - at_once + 1, at_once):\n",
        tests=(
            "tests/coordinator_v5/background/test_collection.py::test_decisions_of_other_coordinators_are_found_and_collected",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="crowd-due-in-one-turn",
        rule="of a crowd that is overdue a few are aborted at a time",
        section="§5",
        file="coordinator_v5/background/sweeper.py",
        old="            for txn in tc.due(now, self._room):\n",
        new="            for txn in tc.due(now, 1_000_000):\n",
        tests=(
            "tests/coordinator_v5/test_crowds.py::test_one_deadline_of_many_is_met_in_parts_and_another_coordinator_id_waits_for_no_crowd",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="crowd-vanished-in-one-turn",
        rule="of what a client leaves a few are aborted at a time",
        section="§9",
        file="coordinator_v5/background/sweeper.py",
        old="state.sessions.vanished(state.awake_s, self._room)",
        new="state.sessions.vanished(state.awake_s, 1_000_000)",
        tests=("tests/coordinator_v5/test_crowds.py::test_what_a_vanished_client_leaves_is_aborted_in_parts",),
        why_tests=WHY,
    ),
    Mutant(
        name="headers-of-another-revision",
        rule="headers are of the revision of the ops, on every page",
        section="§6",
        file="watchers/recovery.py",
        old="[keys.txn(txn_id) for txn_id in part], revision=self._revision)",
        new="[keys.txn(txn_id) for txn_id in part])",
        tests=("tests/watchers/test_recovery.py::test_everything_is_of_one_revision_headers_included",),
        why_tests=WHY,
    ),
    Mutant(
        name="ops-of-another-revision",
        rule="acks are of the revision of their index",
        section="§6",
        file="watchers/recovery.py",
        old="self._store.ranges(ranges, revision=self._revision)",
        new="self._store.ranges(ranges, revision=0)",
        tests=("tests/watchers/test_recovery.py::test_everything_is_of_one_revision_headers_included",),
        why_tests=WHY,
    ),
    Mutant(
        name="pages-of-a-segment-at-the-present",
        rule="the pages of a segment's state are of one revision",
        section="§6",
        file="watchers/recovery.py",
        old="at_once=self._at_once, revision=revision):",
        new="at_once=self._at_once):",
        tests=("tests/watchers/test_recovery.py::test_everything_is_of_one_revision_headers_included",),
        why_tests=WHY,
    ),
    Mutant(
        name="one-limit-over-all-pages",
        rule="a load goes on while the store answers",
        section="§6",
        file="watchers/recovery.py",
        old="    async def _pause(self) -> None:\n        self._went_on()\n",
        new="    async def _pause(self) -> None:\n",
        tests=("tests/watchers/test_recovery.py::test_however_long_a_load_takes_it_goes_on_while_the_store_answers",),
        why_tests=WHY,
    ),
    Mutant(
        name="last-of-a-part-not-loaded",
        rule="each transaction of the index is registered",
        section="§6",
        file="watchers/recovery.py",
        old="            for txn_id in part:\n                buffer.loaded(txn_id)\n",
        new="            for txn_id in part[:-1]:\n                buffer.loaded(txn_id)\n",
        tests=("tests/watchers/test_recovery.py::test_r1_open_pins_aborted_is_filtered_committed_is_visible",),
        why_tests=WHY,
    ),
    Mutant(
        name="rest-of-a-range-dropped",
        rule="of a range with more records than one read takes the rest is read too",
        section="§6",
        file="txnstore/access/store_client.py",
        old="                    records += rest.records\n",
        new="                    records += rest.records[:0]\n",
        tests=("tests/txnstore/test_stores.py::TestEtcdStore::test_many_small_ranges_are_read_at_one_revision",),
        why_tests=WHY,
    ),
    Mutant(
        name="rest-of-a-range-at-another-revision",
        rule="the rest of a range is read at the revision that was asked for",
        section="§6",
        file="txnstore/access/store_client.py",
        old="end, revision, False, 0, timeout_s)\n                    records += rest.records",
        new="end, 0, False, 0, timeout_s)\n                    records += rest.records",
        tests=("tests/txnstore/test_stores.py::TestMemoryStore::test_many_small_ranges_are_read_at_one_revision",),
        why_tests=WHY,
    ),
    Mutant(
        name="stuck-goes-back-to-a-lost-id",
        rule="what was set aside goes back to its id as that is when its turn has come",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="                if stuck is None or tc is None:\n                    continue\n",
        new="                assert stuck and tc\n",
        tests=(
            "tests/coordinator_v5/background/test_collection.py::test_what_was_set_aside_goes_back_in_line_in_turns_and_not_to_an_id_that_is_lost_meanwhile",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="one-page-is-erased",
        rule="an erased segment leaves no record behind, however many there are (S8)",
        section="§5",
        file="segments/log/erasing.py",
        old=(
            "        remains = read(list(found.records))\n"
            "        if not remains:\n"
            "            return\n"
            "        for commit in plan_erase(segment, epoch, remains):\n"
            "            await _commit(store, commit)\n"
        ),
        new=(
            "        remains = read(list(found.records))\n"
            "        for commit in plan_erase(segment, epoch, remains):\n"
            "            await _commit(store, commit)\n"
            "        return\n"
        ),
        tests=("tests/segments/log/test_erasing.py::test_s8_what_does_not_fit_into_one_page_goes_as_well",),
        why_tests=ALONE,
    ),
    Mutant(
        name="foreign-key-ends-a-deletion",
        rule="a foreign record does not hide the names beside it",
        section="§9",
        file="coordinator_v5/naming/kept_names.py",
        old='last = page[-1].record.key.decode(errors="replace")',
        new="last = page[-1].record.key.decode()",
        tests=("tests/coordinator_v5/naming/test_kept_names.py::test_a_key_that_is_no_text_ends_no_request",),
        why_tests="nobody writes a foreign key there",
    ),
)
