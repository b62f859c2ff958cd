"""Break what is told to all in segments so that only the first of them hears of it: subscriptions, consumers,
topics, connections (docs/testing.md)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

WHY = "not looked for with seeds"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="drained-told-to-one-subscription",
        rule="all subscriptions that have drained a segment get its children",
        section="§8",
        file="segments/controller/stream_groups.py",
        old=(
            "if (group := self._groups.get((topic_path, subscription))) is not None:\n                group.refresh()"
        ),
        new=(
            "if (group := self._groups.get((topic_path, subscription))) is not None:\n"
            "                group.refresh()\n"
            "                break"
        ),
        tests=(
            "tests/segments/controller/test_several_subscriptions.py::"
            "test_consumers_of_all_subscriptions_that_have_drained_a_parent_get_its_children",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="layout-told-to-one-queue",
        rule="all subscriptions of a topic are told of its layout",
        section="§8",
        file="segments/controller/stream_groups.py",
        old=("if topic_path in topic_paths:\n                group.refresh()"),
        new=("if topic_path in topic_paths:\n                group.refresh()\n                break"),
        tests=(
            "tests/segments/controller/test_several_subscriptions.py::"
            "test_all_consumers_of_all_queues_of_a_topic_are_told_of_a_layout",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="layout-told-to-one-consumer",
        rule="all consumers of a queue are told of a layout",
        section="§8",
        file="segments/controller/queue_group.py",
        old="link.push(pb.Command(assignment=assignment))",
        new=("link.push(pb.Command(assignment=assignment))\n                break"),
        tests=(
            "tests/segments/controller/test_several_subscriptions.py::"
            "test_all_consumers_of_all_queues_of_a_topic_are_told_of_a_layout",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="deletion-told-to-one-subscription",
        rule="with a topic all its subscriptions end",
        section="§8",
        file="segments/controller/stream_groups.py",
        old=("if key[0] == topic_path:\n                await self.drop(key, error)"),
        new=("if key[0] == topic_path:\n                await self.drop(key, error)\n                break"),
        tests=(
            "tests/segments/controller/test_several_subscriptions.py::"
            "test_the_consumers_of_all_subscriptions_of_a_deleted_topic_are_told_to_join_again",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="changes-of-one-topic-followed",
        rule="changes of all topics that are heard of together are gone on with",
        section="§8",
        file="segments/controller/controller.py",
        old="self._term.layouts.follow(topology)",
        new=("self._term.layouts.follow(topology)\n                break"),
        tests=(
            "tests/segments/controller/test_several_subscriptions.py::"
            "test_changes_of_several_topics_that_are_heard_of_together_are_all_gone_on_with",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="lost-links-of-one-subscription",
        rule="consumers of all subscriptions that went during a take-over are given up",
        section="§8",
        file="segments/controller/stream_groups.py",
        old="group.links_changed(gone_at=gone_at)",
        new=("group.links_changed(gone_at=gone_at)\n                break"),
        tests=(
            "tests/segments/controller/test_controller_terms.py::"
            "test_a_consumer_that_goes_during_a_take_over_is_given_up",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="lost-connection-keeps-topics",
        rule="with a connection its producers of all topics are gone",
        section="§8",
        file="segments/controller/topic_users.py",
        old=("for path, known in list(self._topics.get(link, {})):\n            self._forget(link, path, known)"),
        new=("for path, known in list(self._topics.get(link, {}))[:1]:\n            self._forget(link, path, known)"),
        tests=("tests/segments/controller/test_topic_users.py::test_who_leaves_takes_all_its_registrations_along",),
        why_tests=WHY,
    ),
    Mutant(
        name="left-while-registering-twice",
        rule="who leaves takes all its registrations along",
        section="§8",
        file="segments/controller/topic_users.py",
        old=("if found == (topic_path, link, life):\n                del self._coming[coming]"),
        new=("if found == (topic_path, link, life):\n                del self._coming[coming]\n                break"),
        tests=("tests/segments/controller/test_topic_users.py::test_who_leaves_takes_all_its_registrations_along",),
        why_tests=WHY,
    ),
    Mutant(
        name="ended-connection-watches-on",
        rule="nothing is kept of a connection that has ended",
        section="§11",
        file="segments/layout/layout_service.py",
        old=("for path in self._topics_of.pop(peer, {}):\n            self._unwatch(peer, path)"),
        new=("for path in list(self._topics_of.pop(peer, {}))[:1]:\n            self._unwatch(peer, path)"),
        tests=(
            "tests/segments/layout/test_layout_service.py::"
            "test_nothing_is_kept_of_a_connection_that_has_ended_however_many_topics_it_watched",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="lost-segment-cleans-up-on",
        rule="nothing of a lost segment is cleaned up any more",
        section="§6",
        file="segments/owner/segment.py",
        old=("for target in self._targets:\n            self._shared.clean_up.remove(target)"),
        new=("for target in self._targets[:1]:\n            self._shared.clean_up.remove(target)"),
        tests=("tests/segments/owner/test_all_of_a_segment.py::test_all_who_use_a_segment_that_is_lost_are_told_so",),
        why_tests=WHY,
    ),
    Mutant(
        name="loss-told-to-one-queue",
        rule="all queues of a lost segment are closed",
        section="§7",
        file="segments/subscription/dispatch.py",
        old=("for source in list(self._sources):\n            source.close(error)"),
        new=("for source in list(self._sources)[:1]:\n            source.close(error)"),
        tests=("tests/segments/owner/test_all_of_a_segment.py::test_all_who_use_a_segment_that_is_lost_are_told_so",),
        why_tests=WHY,
    ),
    Mutant(
        name="loss-told-to-one-reader",
        rule="all readers and stream consumers of a lost segment are closed",
        section="§7",
        file="segments/subscription/dispatch.py",
        old=("for consumer in self.consumers:\n            self.detach(consumer)\n            consumer.sink"),
        new=("for consumer in self.consumers[:1]:\n            self.detach(consumer)\n            consumer.sink"),
        tests=("tests/segments/owner/test_all_of_a_segment.py::test_all_who_use_a_segment_that_is_lost_are_told_so",),
        why_tests=WHY,
    ),
    Mutant(
        name="lost-connection-keeps-consumers",
        rule="with a connection all its consumers are gone",
        section="§7",
        file="segments/broker/consuming.py",
        old="for consuming in self._connections.pop(peer, {}).values():",
        new="for consuming in list(self._connections.pop(peer, {}).values())[:1]:",
        tests=(
            "tests/segments/owner/test_all_of_a_segment.py::"
            "test_with_a_connection_all_its_producers_and_consumers_are_gone",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="one-segment-of-an-assignment",
        rule="a new assignment takes all its segments from who had them",
        section="§8",
        file="segments/broker/broker.py",
        old="segment.subscriptions.assignment_changed(subscription, record)",
        new=("segment.subscriptions.assignment_changed(subscription, record)\n                break"),
        tests=(
            "tests/segments/owner/test_all_of_a_segment.py::"
            "test_a_new_assignment_takes_all_its_segments_from_who_had_them",
        ),
        why_tests=WHY,
    ),
    Mutant(
        name="commit-visible-to-one-queue",
        rule="a commit is delivered by all queues of its segment",
        section="§7",
        file="segments/subscription/subscription_table.py",
        old=("for subscription in self._subscriptions.values():\n            subscription.visible(decision)"),
        new=("for subscription in list(self._subscriptions.values())[:1]:\n            subscription.visible(decision)"),
        tests=(
            "tests/segments/owner/test_all_of_a_segment.py::test_a_commit_is_delivered_by_all_queues_of_its_segment",
        ),
        why_tests=WHY,
    ),
)
