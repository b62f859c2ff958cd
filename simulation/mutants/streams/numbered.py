"""Break the rules of numbered producers (DESIGN §7, "Numbered producers")."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

OWNER = "tests/segments/owner/test_names.py::"
NAMES = "tests/segments/log/sends/test_numbered.py::"
IDS = "tests/txnclient/producing/channels/test_source_ids.py::"
CLIENT = "tests/txnclient/producing/channels/test_numbered.py::"
WHY = "not looked for with seeds; tests/simulation/workloads/test_numbered_work.py has runs of its own besides"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="name-told-before-what-is-on-its-way",
        rule="what an earlier life has appended is stored, or not, before its name is told",
        section="§7",
        file="segments/owner/names.py",
        old="checkpoint(settle=True)",
        new="checkpoint(settle=False)",
        tests=(f"{OWNER}test_what_is_on_its_way_when_the_name_is_taken_is_told_as_stored",),
        why_tests=WHY,
    ),
    Mutant(
        name="fence-of-a-name-in-memory-only",
        rule="the fence of a name stands beside the ledger before anything is told",
        section="§7",
        file="segments/owner/names.py",
        old="    if not names.is_durable(name):",
        new="    if names.is_durable(name):",
        tests=(f"{OWNER}test_an_earlier_life_stores_nothing_behind_the_answer_not_even_under_the_next_owner",),
        why_tests=WHY,
    ),
    Mutant(
        name="name-told-by-a-replaced-owner",
        rule="an owner that was replaced tells no name: it looks for its ledger's fence after the write",
        section="§7",
        file="segments/log/sends/appender.py",
        old="                if settle:\n",
        new="                if settle and failures:\n",
        tests=(f"{OWNER}test_an_owner_that_slept_and_was_replaced_tells_nothing",),
        why_tests=WHY,
    ),
    Mutant(
        name="earlier-life-keeps-its-connection",
        rule="a life that takes a name ends the connection of the one before",
        section="§7",
        file="segments/owner/producers.py",
        old="        token = self._dedup.disconnect_others(name, incarnation, now_s)",
        new="        token = self._dedup.disconnect_others(name + name, incarnation, now_s)",
        tests=(f"{OWNER}test_an_earlier_life_stores_nothing_behind_the_answer_not_even_under_the_next_owner",),
        why_tests=WHY,
    ),
    Mutant(
        name="sealed-segment-refuses-no-earlier-life",
        rule="a segment that was sealed behind the fence of a name still refuses earlier lives",
        section="§7",
        file="segments/owner/names.py",
        old="    if ledgers.ended:\n        if names.is_fenced(name, epoch, incarnation):",
        new="    if ledgers.ended:\n        if names.is_fenced(name, epoch + segment.epoch, incarnation):",
        tests=(f"{OWNER}test_a_sealed_segment_tells_what_it_holds_for_good_and_still_refuses_earlier_lives",),
        why_tests=WHY,
    ),
    Mutant(
        name="ids-not-kept-with-the-answer",
        rule="an id counts as stored before its send is answered",
        section="§7",
        file="segments/log/sends/appender.py",
        old="            if entry.numbers is not None:\n",
        new="            if entry.numbers is not None and entry.txn_id is not None:\n",
        tests=(f"{OWNER}test_what_is_stored_is_told_over_crashes_and_handovers",),
        why_tests=WHY,
    ),
    Mutant(
        name="ids-not-found-again",
        rule="a take-over finds the ids of entries behind the last footer",
        section="§7",
        file="segments/owner/take_over.py",
        old="            if (numbers := numbers_of(metadata)) is not None:",
        new="            if (numbers := numbers_of(metadata)) is not None and metadata.txnid_least_bits:",
        tests=(f"{OWNER}test_what_is_stored_is_told_over_crashes_and_handovers",),
        why_tests=WHY,
    ),
    Mutant(
        name="numbers-in-a-snapshot-that-older-brokers-read",
        rule="a snapshot with numbered producers has a version that an older broker refuses",
        section="§7",
        file="segments/log/sends/dedup.py",
        old="""    return b'{"v":2,'""",
        new="""    return b'{"v":1,'""",
        tests=(
            f"{NAMES}test_the_snapshot_keeps_lives_ids_and_idle_times_and_says_that_an_older_release_cannot_read_it",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="highest-id-believed",
        rule="the highest stored id proves nothing of lower ones",
        section="§7",
        file="txnclient/producing/channels/source_ids.py",
        old="        self._below = max(self._below, all_below)",
        new="        self._below = max([self._below, all_below, *ids])",
        tests=(f"{IDS}test_what_any_segment_holds_is_stored_and_nothing_else",),
        why_tests=WHY,
    ),
    Mutant(
        name="owed-id-passed-over",
        rule="`all_below` passes no id that was given and is not stored",
        section="§7",
        file="txnclient/producing/channels/source_ids.py",
        old="        while self._given and self._given[0] not in self._unstored:",
        new="        while self._given and self._unstored.get(self._given[0], _OWED) == _OWED:",
        tests=(
            f"{IDS}test_an_id_whose_sender_gave_up_before_it_was_placed_may_be_sent_again_and_holds_all_below_back",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="ancestors-not-asked",
        rule="a life asks the ancestors of a segment that came later before it opens there",
        section="§7",
        file="txnclient/producing/channels/numbered.py",
        old="            for ancestor in _ancestors(self._layout(), segment):",
        new="            for ancestor in _ancestors(self._layout(), segment)[:0]:",
        tests=(f"{CLIENT}test_an_earlier_life_stores_nothing_in_a_segment_that_came_after_it_was_fenced",),
        why_tests=WHY,
    ),
    Mutant(
        name="children-not-asked",
        rule="an opening ends only when every unsealed segment has answered",
        section="§7",
        file="txnclient/producing/channels/numbered.py",
        old="            elif any(sealed[one.path] for one in layout.active):",
        new="            elif any(sealed[one.path] for one in layout.active[:0]):",
        tests=(
            f"{CLIENT}test_an_opening_asks_the_children_of_a_segment_that_was_sealed_before_this_client_heard_of_it",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="slept-and-asked-nobody",
        rule="a life that has asked nobody for a day asks every segment before it opens at one",
        section="§7",
        file="txnclient/producing/channels/numbered.py",
        old="        slept = self._session.clock.monotonic() - self._asked_s > ASK_AGAIN_S",
        new="        slept = self._session.clock.monotonic() - self._asked_s > 30 * ASK_AGAIN_S",
        tests=(f"{CLIENT}test_a_life_that_slept_asks_every_segment_before_it_goes_on",),
        why_tests=WHY,
    ),
    Mutant(
        name="numbered-producer-goes-on-behind-a-failure",
        rule="a numbered producer ends with its first failure",
        section="§7",
        file="txnclient/producing/producer_impl.py",
        old="        if self.life is not None and self._failure is None and batch.failure is not None:",
        new="        if self.life is not None and self._failure is not None and batch.failure is not None:",
        tests=(f"{CLIENT}test_a_numbered_producer_ends_with_its_first_failure",),
        why_tests=WHY,
    ),
    Mutant(
        name="remembered-pushed-out-by-those-ahead",
        rule="ids stored ahead of one that is not push none out of those that are known to be stored",
        section="§7",
        file="txnclient/producing/channels/source_ids.py",
        old="MOST_REMEMBERED + len(self._given)",
        new="MOST_REMEMBERED",
        tests=(
            "tests/txnclient/producing/channels/test_source_ids.py::"
            "test_the_last_stored_ids_are_known_though_many_are_stored_ahead_of_one_that_is_not",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="repeats-that-gave-up-are-kept",
        rule="repeated sends that gave up are not kept while the first one is under way",
        section="§7",
        file="txnclient/producing/channels/numbered.py",
        old="others = [one for one in self._waiting.get(sequence_id, ()) if not one.done()]",
        new="others = list(self._waiting.get(sequence_id, ()))",
        tests=(
            "tests/txnclient/producing/channels/test_numbered.py::"
            "test_repeated_sends_that_gave_up_are_not_kept_while_the_first_one_is_under_way",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="last-answer-counts-for-all",
        rule="a name that any segment refuses is not taken",
        section="§7",
        file="txnclient/producing/channels/numbered.py",
        old="refused or not answer.taken",
        new="not answer.taken",
        tests=(
            "tests/txnclient/producing/channels/test_numbered.py::"
            "test_a_name_that_one_segment_refuses_is_taken_everywhere_again",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="silent-ancestor-counts-as-asked",
        rule="an ancestor that did not answer is asked again before a new segment is written to",
        section="§7",
        file="txnclient/producing/channels/numbered.py",
        old=(
            "            for ancestor in _ancestors(self._layout(), segment):\n"
            "                await self._expect_taken(ancestor.path, deadline)\n"
            "            self._ancestors_asked.add(segment.path)\n"
        ),
        new=(
            "            self._ancestors_asked.add(segment.path)\n"
            "            for ancestor in _ancestors(self._layout(), segment):\n"
            "                await self._expect_taken(ancestor.path, deadline)\n"
        ),
        tests=(
            "tests/txnclient/producing/channels/test_numbered.py::"
            "test_an_ancestor_that_did_not_answer_is_asked_again_before_a_new_segment_is_written_to",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="fenced-while-its-fence-was-written",
        rule="a life that was fenced while its fence was written is told so",
        section="§7",
        file="segments/owner/names.py",
        old=(
            "    segment.check()\n"
            "    if names.is_fenced(name, epoch, incarnation):\n"
            "        return TakenName(False, names.epoch_of(name))\n"
            "    return"
        ),
        new=("    segment.check()\n    return"),
        tests=(
            "tests/segments/owner/test_names.py::"
            "test_of_two_lives_that_take_a_name_at_once_the_earlier_one_is_told_of_the_later",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="ids-take-no-room",
        rule="a numbered producer's batch fits into an entry with its ids, however far apart they are",
        section="§7",
        file="txnclient/producing/numbered_sends.py",
        old="    size += ID_BYTES\n    if standing is Standing.NEW",
        new="    if standing is Standing.NEW",
        tests=(
            "tests/txnclient/producing/channels/test_numbered.py::test_ids_far_apart_and_their_messages_fit_into_one_entry",
        ),
        why_tests="simulated batches are small",
    ),
)
