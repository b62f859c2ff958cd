"""Break the controllers' duties to consumers that stay, through terms and deletions (DESIGN §8)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

TERMS = "term unheard of"

USED_AGAIN = "tests/segments/test_names_used_again.py::test_a_request_"
USERS = "tests/segments/controller/test_topic_users.py::"
NO_JUDGE = "the simulation deletes without force once everything has healed, when brokers and controller know all users"
STANDBYS = "tests/segments/controller/test_standbys.py::"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="stranger-not-told",
        rule="a consumer that a new term does not know is told so, and joins again",
        section="§8",
        file="segments/controller/stream_group.py",
        old="                links.pop(consumer).push(pb.Command(assignment=gone))\n",
        new="                del links[consumer]\n",
        faults=TERMS,
        work_s=60.0,
    ),
    Mutant(
        name="queues-not-taken-up",
        rule="queue consumers that are connected since an earlier term hear of layouts in the next one",
        section="§8",
        file="segments/controller/controller.py",
        old="            _tell_unassigned,\n",
        new="",
        faults=TERMS,
        work_s=60.0,
    ),
    Mutant(
        name="unsent-producers-not-counted",
        rule="a topic with a producer that has sent nothing yet is not deleted without force",
        section="§8",
        file="segments/controller/deletions.py",
        old="else self._users.producers(topic_path, use.created_at)",
        new="else 0",
        faults="none",
        work_s=8.0,
    ),
    *(
        Mutant(
            name=name,
            rule="a request to change or delete, late or repeated, leaves what was made again under the name alone",
            section="§8",
            file=file,
            old=old,
            new=new,
            tests=(test,),
            why_tests="its topics are made again by the client that has deleted them",
        )
        for name, file, old, new, test in (
            (
                "late-deletion-of-the-next-topic",
                "segments/controller/deletions.py",
                "is not None and (marked or life) in (0, record.create_revision):",
                "is not None and marked in (0, record.create_revision):",
                f"{USED_AGAIN}for_a_topic_of_before_leaves_the_next_of_its_name_alone[True]",
            ),
            (
                "late-deletion-of-the-next-subscription",
                "segments/controller/deletions.py",
                "record is None or (marked or life) not in",
                "record is None or marked not in",
                f"{USED_AGAIN}for_a_subscription_of_before_leaves_the_next_of_its_name_alone",
            ),
            (
                "late-policies-for-the-next-topic",
                "segments/controller/controller.py",
                "if record is None or life not in (0, record.create_revision):",
                "if record is None:",
                f"{USED_AGAIN}for_a_topic_of_before_leaves_the_next_of_its_name_alone[True]",
            ),
            (
                "repeated-deletion-asks-again",
                "txnclient/connection/topic_changes.py",
                "        if not life:\n",
                "        if True:\n",
                "tests/txnclient/test_lost_replies.py::test_what_is_made_again_before_an_unanswered_deletion_is_repeated"
                "_stays[delete_topic]",
            ),
        )
    ),
    Mutant(
        name="marked-and-left",
        rule="a deletion whose client leaves while its mark is on its way is gone on with",
        section="§8",
        file="segments/controller/deletions.py",
        old="        if marked:\n            go_on()\n",
        new="",
        tests=(
            "tests/segments/controller/test_deletions_left.py::test_s8_a_deletion_whose_client_leaves_while_the_mark_is_on_its_"
            "way_is_gone_on_with[subscription]",
        ),
        why_tests="few seeds cancel a deletion in that very moment",
    ),
    Mutant(
        name="idle-members-not-counted",
        rule="what has members that no broker knows of is not deleted without force",
        section="§8",
        file="segments/controller/deletions.py",
        old="return producers, self._users.consumers(topic_path, use.subscription)",
        new="return producers, 0",
        tests=(USERS + "test_a_member_that_no_broker_knows_of_keeps_topic_and_subscription",),
        why_tests=NO_JUDGE,
    ),
    Mutant(
        name="ownerless-is-unused",
        rule="a topic of which a segment has no owner is not deleted without force",
        section="§8",
        file="segments/controller/deletions.py",
        old="        if ownerless:\n            # ▲",
        new="        if not ownerless:\n            pass\n        elif False:\n            # ▲",
        tests=(USERS + "test_what_a_segment_without_owner_is_used_by_is_not_guessed",),
        why_tests=NO_JUDGE,
    ),
    Mutant(
        name="new-controller-knows-nobody",
        rule="a controller deletes nothing without force before its users could register again",
        section="§8",
        file="segments/controller/deletions.py",
        old="use.created_at < self._leadership.epoch and left_s > 0",
        new="False",
        tests=(USERS + "test_another_controller_waits_for_users_to_come",),
        why_tests=NO_JUDGE,
    ),
    Mutant(
        name="comes-before-the-mark",
        rule="who registers while a topic is being marked is told so, and not that it is in",
        section="§8",
        file="segments/controller/controller.py",
        old="            try:\n                await self._users.wait_marked(topic.path)\n",
        new="            try:\n",
        tests=(USERS + "test_who_comes_while_the_mark_is_on_its_way_is_told_that_the_topic_is_gone",),
        why_tests=NO_JUDGE,
    ),
    Mutant(
        name="standby-not-told",
        rule="whoever is connected to a subscription that was deleted while another process led is told",
        section="§8",
        file="segments/controller/stream_groups.py",
        old="for key in [key for key in self._links if key not in self._groups]:",
        new="for key in ():",
        tests=(STANDBYS + "test_a_standby_hears_of_a_deletion_under_another_controller_from_the_first_one",),
        why_tests="the simulation's consumers hear of the other controller, too",
    ),
    Mutant(
        name="member-of-the-next-life",
        rule="who was a member of a deleted subscription does not go on in the next one of its name",
        section="§8",
        file="segments/controller/stream_groups.py",
        old="again and life not in (0, self._lives[key])",
        new="False",
        faults="none",
        work_s=8.0,
    ),
    Mutant(
        name="deletion-ends-the-next-group",
        rule="the last attempt of a deletion leaves alone what bears the name by then",
        section="§8",
        file="segments/controller/deletions.py",
        old="        if record is None or not _marked(record, SubscriptionRecord):\n            return True",
        new=(
            "        if record is None or not _marked(record, SubscriptionRecord):\n"
            '            await self._groups.drop(key, SubscriptionNotFound("it is deleted"))\n'
            "            return True"
        ),
        tests=(
            "tests/segments/test_names_used_again.py::"
            "test_a_deletion_whose_last_step_is_not_answered_leaves_the_next_of_its_name_alone",
        ),
        why_tests="whoever is dropped is told to join again, which heals it: fourteen seeds saw nothing",
    ),
    Mutant(
        name="deletion-ends-at-damage",
        rule="a deletion that damage has stopped goes on once that is mended, in the same term",
        section="§8",
        file="segments/controller/deletions.py",
        old="            if not task.cancelled() and isinstance(task.exception(), DataCorrupt):\n",
        new="            if False:\n",
        tests=("tests/segments/controller/test_deletions.py::test_a_deletion_goes_on_once_what_was_damaged_is_mended",),
        why_tests="a subscription of a damaged segment is seldom deleted before its controller changes",
    ),
    Mutant(
        name="member-not-told-of-a-deletion",
        rule="every member of a subscription that is deleted is told so, also before any broker has taken it in",
        section="§8",
        file="segments/controller/stream_groups.py",
        old="            link.push(pb.Command(assignment=unassigned(*key, consumer, epoch=0)))\n",
        new="            del consumer, link\n",
        work_s=30.0,
        faults="none",
    ),
    Mutant(
        name="members-not-told-at-a-new-term",
        rule="members that have stayed connected are told what the last term wrote without an answer",
        section="§8",
        file="segments/controller/stream_group.py",
        old="        self._tell()\n        self.refresh()\n",
        new="        self.refresh()\n",
        tests=(
            "tests/segments/controller/test_controller_terms.py::"
            "test_what_the_last_term_wrote_without_an_answer_is_told_by_the_next_one",
        ),
        why_tests="two in some hundreds of seeds showed it",
    ),
    Mutant(
        name="damage-told-as-routine",
        rule="an end of a deletion or layout change that needs a repair is logged as an error",
        section="§8",
        file="segments/controller/term_work.py",
        old="        elif isinstance(error, DataCorrupt):\n",
        new="        elif False:\n",
        tests=(
            "tests/segments/controller/test_term_work.py::test_only_an_end_that_needs_a_repair_is_logged_as_an_error",
        ),
        why_tests="no judge reads the level of a line in the log",
    ),
    Mutant(
        name="sealed-parent-asked-again",
        rule="a split whose parent is sealed waits for no owner of it (S10)",
        section="§8",
        file="segments/controller/layout_changes.py",
        old="                seals[parent] = revision\n            else:\n                asked[parent] = path\n",
        new="                seals[parent] = revision\n            asked[parent] = path\n",
        tests=(
            "tests/segments/controller/test_layout_steps.py::"
            "test_s10_a_split_whose_parent_is_sealed_waits_for_no_owner",
        ),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="marked-subscriptions-not-taken-up",
        rule="a new controller goes on with deletions of subscriptions, though nobody asks again (P9)",
        section="§5",
        file="segments/controller/deletions.py",
        old="                if _found_marked(record, SubscriptionRecord):\n",
        new="                if _found_marked(record, SubscriptionRecord) and not page:\n",
        tests=(
            "tests/segments/controller/test_deletions.py::"
            "test_p9_a_marked_subscription_found_at_the_start_of_a_term_is_gone_on_with",
        ),
        why_tests="not looked for with seeds",
    ),
    Mutant(
        name="deleted-topics-fill-a-connection",
        rule="topics that are gone count for no connection",
        section="§8",
        file="segments/layout/layout_service.py",
        old="and not self._forget_gone(peer):\n",
        new="and peer in self._topics_of:\n",
        tests=("tests/segments/layout/test_layout_service.py::test_topics_that_are_gone_count_for_no_connection",),
        why_tests="no simulated client opens ten thousand topics",
    ),
    Mutant(
        name="one-broker-keeps-all-questions-waiting",
        rule="a process that cannot be reached keeps no question to another one waiting",
        section="§8",
        file="txnctl/admin/role_calls.py",
        old="        return await asyncio.shield(opening)\n",
        new=(
            "        for other in list(self._opening.values()):\n"
            "            await asyncio.wait((other,))\n"
            "        return await asyncio.shield(opening)\n"
        ),
        tests=(
            "tests/txnctl/admin/test_admin.py::"
            "test_a_process_that_cannot_be_reached_keeps_no_question_to_another_one_waiting",
        ),
        why_tests="a simulated server that cannot be reached refuses connections",
    ),
    Mutant(
        name="starts-looked-up-one-by-one",
        rule="where a subscription starts is found within one request, in however many segments",
        section="§8",
        file="segments/controller/stream_groups.py",
        old="POSITIONS_AT_ONCE: Final = 16\n",
        new="POSITIONS_AT_ONCE: Final = 1\n",
        tests=(
            "tests/segments/controller/test_controller.py::"
            "test_a_start_at_the_latest_over_many_segments_is_found_within_one_request",
        ),
        why_tests="no simulated topic has that many segments",
    ),
    Mutant(
        name="made-again-and-not-listed",
        rule="a list of topics has one that was made again, also where a process knows of its deletion alone (X2)",
        section="§10",
        file="segments/layout/layout_service.py",
        old=" and known.deleting and known.life == record.create_revision",
        new=" and known.deleting",
        tests=(
            "tests/segments/layout/test_layout_service.py::"
            "test_x2_a_topic_made_again_is_listed_by_a_process_that_knows_of_the_deletion_alone",
        ),
        why_tests="nobody lists topics there while one is made again",
    ),
)
