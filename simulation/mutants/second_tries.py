"""Mutants in which work that was put off, or failed once, is forgotten, and one of a hung disk (DESIGN §5, §7)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

TRIES = "tests/coordinator_v5/test_second_tries.py::test_"
SELDOM = "few seeds refuse the one write, and a later deadline or owner makes up for it"
SOON = "no judge of the simulation asks how soon a round follows a failed one"
REAL_DISK = "the simulation has disks of its own: a thread that hangs is behind `LedgerStore`"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="failed-abort-forgotten",
        rule="an abort that etcd refuses is made once there is room, however often it was refused",
        section="§5",
        file="coordinator_v5/ends.py",
        old="            if (now >= txn.due or owed) and not txn.tc.lost:\n",
        new="            if False:\n",
        tests=(f"{TRIES}d2_an_abort_that_a_full_etcd_refuses_is_made_once_there_is_room",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="second-failure-forgotten",
        rule="the abort of a begin that another id has served is tried until it is made",
        section="§5",
        file="coordinator_v5/ends.py",
        old="decided.reason in (REASON_TIMEOUT, REASON_UNANSWERED)",
        new="decided.reason == REASON_UNANSWERED",
        tests=(f"{TRIES}d7_the_abort_of_a_begin_that_another_id_has_served_is_tried_again",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="failed-index-never-tried-again",
        rule="a deadline key that etcd refuses is written later",
        section="§5",
        file="coordinator_v5/sweeper.py",
        old="        txn.indexing = False\n        try:\n",
        new="        try:\n",
        tests=(f"{TRIES}d3_a_deadline_key_that_a_full_etcd_refuses_is_written_once_there_is_room",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="returned-session-stays-lost",
        rule="a session that returns keeps none behind it from being called vanished",
        section="§5",
        file="coordinator_v5/sessions.py",
        old="            session.lost_at = None\n            self._lost.pop(session.session_id, None)\n",
        new="            session.lost_at = None\n",
        tests=(f"{TRIES}d6_a_session_that_returns_keeps_none_behind_it_from_being_called_vanished",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="uncollected-leaves-the-line",
        rule="what a failed round of collection had in hand is collected by a later one",
        section="§5",
        file="coordinator_v5/collector.py",
        old=(
            "                for counter, seen in left.items():\n"
            "                    tc.finals.setdefault(counter, seen)\n"
        ),
        new="                pass\n",
        tests=(f"{TRIES}e5_what_a_round_of_collection_could_not_take_along_is_taken_by_a_later_one",),
        why_tests=SELDOM,
    ),
    Mutant(
        name="names-tried-again-late",
        rule="behind a failed round over names another one follows soon",
        section="§5",
        file="coordinator_v5/name_expiry.py",
        old="                wait_s = self._first_s\n",
        new="                wait_s = self._every_s\n",
        tests=(f"{TRIES}names_that_a_failed_round_has_left_are_looked_at_soon_and_not_a_whole_round_later",),
        why_tests=SOON,
    ),
    Mutant(
        name="ledger-store-closes-with-its-disk",
        rule="a disk that answers nothing does not keep a process from closing",
        section="§7",
        file="segments/file_ledger.py",
        old="timeout=CLOSE_TIMEOUT_S)",
        new="timeout=None)",
        tests=("tests/segments/test_hung_disk.py",),
        why_tests=REAL_DISK,
    ),
)
