"""Break what follows a first try, a moment's race or a failed step, and figures that operators read (DESIGN §5, §9)."""

from __future__ import annotations

from simulation.mutants.mutant import Edit, Mutant

COMPANY = "tests/coordinator_v5/background/test_collection_in_company.py::test_"
OUTCOME_BLOCKS = "tests/coordinator_v5/test_outcome_blocks.py::test_"
ASKED_AGAIN = "tests/coordinator_v5/test_asked_again.py::test_"

SOON = "no judge of the simulation asks how soon a later try follows"
NO_WEEK = "a simulated run lasts no week"
SELDOM = "few seeds, if any, meet this moment"
FIGURES = "no judge of the simulation compares these figures"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="collected-again-behind-the-retained",
        rule="what could not be collected is tried again in time, though others are decided all the while",
        section="§5",
        file="coordinator_v5/transactions.py",
        old="            self.again[seen.final.counter] = seen\n",
        new="            self.finals[seen.final.counter] = seen\n",
        tests=(
            f"{COMPANY}e5_one_with_ops_is_tried_again_in_time_though_others_are_decided_all_the_while",
            f"{COMPANY}a_round_that_failed_is_made_again_at_once_though_others_are_decided_all_the_while",
        ),
        why_tests=SOON,
    ),
    Mutant(
        name="tried-again-in-the-room-of-others",
        rule="however many are collected again, others have as much room in a round",
        section="§5",
        file="coordinator_v5/transactions.py",
        old="        for seen in islice(self.finals.values(), limit):\n",
        new="        for seen in islice(self.finals.values(), limit - first):\n",
        tests=(
            "tests/coordinator_v5/test_owned_transactions.py::"
            "test_what_could_not_be_collected_comes_before_those_in_their_retention_and_takes_no_room_of_others",
        ),
        why_tests=SOON,
    ),
    Mutant(
        name="blocks-listed-once",
        rule="outcome blocks whose listing failed are listed again",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="            self._blocks.pop(tcid, None)\n            raise\n",
        new="            raise\n",
        tests=(f"{OUTCOME_BLOCKS}blocks_that_could_not_be_listed_are_listed_again_and_expire",),
        why_tests=NO_WEEK,
    ),
    Mutant(
        name="added-outcomes-expire-with-a-future-stamp",
        rule="outcomes that are added to a block stamped in the future are kept as long as others",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="            if outcomes.mod_revision not in (0, revision):\n",
        new="            if False:\n",
        tests=(
            f"{OUTCOME_BLOCKS}outcomes_added_to_a_block_touched_in_the_future_are_kept_as_long_as_others",
            f"{OUTCOME_BLOCKS}a_block_that_is_written_while_it_expires_is_looked_at_again_and_expires_later",
        ),
        why_tests=NO_WEEK,
    ),
    Mutant(
        name="written-while-it-expires-stays",
        rule="an outcome block that is written while it expires is looked at again",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="                    if not await self._expire(outcomes):\n                        break\n",
        new="                    await self._expire(outcomes)\n",
        more=(
            Edit(
                "coordinator_v5/background/collector.py",
                "                if not await self._expire(outcomes):\n                    continue\n",
                "                await self._expire(outcomes)\n",
            ),
        ),
        tests=(f"{OUTCOME_BLOCKS}a_block_that_is_written_while_it_expires_is_looked_at_again_and_expires_later",),
        why_tests=NO_WEEK,
    ),
    Mutant(
        name="unreadable-future-block-told-again-and-again",
        rule="a block set aside that can no longer be read is reported once",
        section="§5",
        file="coordinator_v5/background/collector.py",
        old="                del ahead[block]\n                continue\n",
        new="                continue\n",
        tests=(f"{OUTCOME_BLOCKS}a_block_touched_in_the_future_that_can_no_longer_be_read_is_reported_once",),
        why_tests=NO_WEEK,
    ),
    Mutant(
        name="repeated-begin-has-no-time",
        rule="a begin repeated behind its time-out has the whole time again",
        section="§5",
        file="coordinator_v5/begins.py",
        old="earlier.started_at = earlier.tried_at = self._state.clock.monotonic()",
        new="earlier.tried_at = self._state.clock.monotonic()",
        tests=(f"{ASKED_AGAIN}d7_a_begin_repeated_behind_its_time_out_has_the_whole_time_again",),
        why_tests=SOON,
    ),
    Mutant(
        name="second-end-counts-all-writers",
        rule="an end that waits behind a refused sweep is made with its own writers and note",
        section="§5",
        file="coordinator_v5/ends.py",
        old="self._send(txn, request.state, request.reason, request.writers, request.note, None)",
        new="self._send(txn, request.state, request.reason, None, None, None)",
        tests=(
            "tests/coordinator_v5/background/test_second_tries.py::"
            "test_d6_a_commit_that_comes_while_a_zombie_sweeps_is_made_although_the_sweep_is_refused",
        ),
        why_tests=SELDOM,
    ),
    Mutant(
        name="collected-meanwhile-without-its-name",
        rule="a named commit that is collected between read and write is answered from its name record",
        section="§10",
        file="coordinator_v5/ends.py",
        old=(
            "            if decision is None:\n"
            "                return await self._end_collected(txn_id, state, writers, name, note)\n"
        ),
        new=(
            "            if decision is None:\n"
            '                return await self._end_collected(txn_id, state, writers, "", note)\n'
        ),
        tests=(
            f"{ASKED_AGAIN}d1_a_named_commit_made_and_collected_between_read_and_write_is_answered_with_its_writers",
        ),
        why_tests=SELDOM,
    ),
    Mutant(
        name="oldest-of-the-youngest",
        rule="the age of the oldest open transaction is that over all coordinator ids",
        section="§9",
        file="coordinator_v5/coordinator.py",
        old="oldest = min((first for tc",
        new="oldest = max((first for tc",
        tests=(f"{ASKED_AGAIN}the_oldest_open_transaction_is_that_of_all_coordinator_ids",),
        why_tests=FIGURES,
    ),
)
