"""Drop the conditions of the judges (X5): each one has a history, or a change of etcd, that it alone finds."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

JUDGE = "a judge that finds less is found by what is planted alone"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="judge-mark",
        rule="the judge finds a begin below the late-index mark (X5)",
        section="§13",
        file="simulation/judges/record_judge.py",
        old=(
            "        elif txn_id.counter < seq.indexed_below:\n"
            '            yield f"{txn_id} begins below the late-index mark {seq.indexed_below}"\n'
        ),
        new="",
        tests=("tests/simulation/judges/test_record_judge.py::test_x5_what_breaks_a_rule_is_found",),
        why_tests=JUDGE,
    ),
    Mutant(
        name="judge-nobody-owns",
        rule="the judge finds a begin by nobody (X5)",
        section="§13",
        file="simulation/judges/record_judge.py",
        old='            yield f"{txn_id} begins, and nobody owns its coordinator id"\n',
        new="            pass\n",
        tests=("tests/simulation/judges/test_record_judge.py::test_x5_what_breaks_a_rule_is_found",),
        why_tests=JUDGE,
    ),
    Mutant(
        name="judge-author-of-begin",
        rule="the judge finds a begin by another than the owner (X5)",
        section="§13",
        file="simulation/judges/record_judge.py",
        old="        elif txn_id.counter < owner.first_id or author not in (None, owner.id):\n",
        new="        elif txn_id.counter < owner.first_id:\n",
        tests=(
            "tests/simulation/judges/test_record_judge.py::test_x5_what_somebody_else_does_than_the_owner_is_found",
        ),
        why_tests=JUDGE,
    ),
    Mutant(
        name="judge-begin-name",
        rule="the judge finds a begin under another one's name (X5)",
        section="§13",
        file="simulation/judges/record_judge.py",
        old=("            if named is None or named.txn_id != str(txn_id):\n                yield"),
        new=("            if named is None:\n                yield"),
        tests=("tests/simulation/judges/test_record_judge.py::test_x5_what_breaks_a_rule_is_found",),
        why_tests=JUDGE,
    ),
    Mutant(
        name="judge-collected-name",
        rule="the judge finds a name without its outcome (X5)",
        section="§13",
        file="simulation/judges/record_judge.py",
        old=(
            '            yield f"{txn_id} is collected, and its name {before.header.name!r} does not '
            'say how it ended"\n'
        ),
        new="            pass\n",
        tests=("tests/simulation/judges/test_record_judge.py::test_x5_what_breaks_a_rule_is_found",),
        why_tests=JUDGE,
    ),
    Mutant(
        name="judge-op-author",
        rule="the judge finds an op by another than the owner (X5)",
        section="§13",
        file="simulation/judges/record_judge.py",
        old="        if owner is None or owner.epoch != epoch or author not in (None, owner.broker):\n",
        new="        if owner is None or owner.epoch != epoch:\n",
        tests=(
            "tests/simulation/judges/test_record_judge.py::test_x5_what_somebody_else_does_than_the_owner_is_found",
        ),
        why_tests=JUDGE,
    ),
    Mutant(
        name="judge-op-nobody",
        rule="the judge finds an op in a segment of nobody (X5)",
        section="§13",
        file="simulation/judges/record_judge.py",
        old="        if owner is None or owner.epoch != epoch or author not in (None, owner.broker):\n",
        new=("        if owner is not None and (owner.epoch != epoch or author not in (None, owner.broker)):\n"),
        tests=("tests/simulation/judges/test_record_judge.py::test_x5_what_breaks_a_rule_is_found",),
        why_tests=JUDGE,
    ),
    Mutant(
        name="judge-acks-cleared",
        rule="the judge finds acks that were lost (X5)",
        section="§13",
        file="simulation/judges/record_judge.py",
        old='            yield f"{participant} committed, go while nobody owns the segment"\n',
        new="            pass\n",
        tests=("tests/simulation/judges/test_record_judge.py::test_x5_what_breaks_a_rule_is_found",),
        why_tests=JUDGE,
    ),
    Mutant(
        name="judge-seq-nobody",
        rule="the judge finds ids given out by nobody (X5)",
        section="§13",
        file="simulation/judges/record_judge.py",
        old='            yield f"/txn-seq/{tcid:04x} is written, and nobody owns the coordinator id"\n',
        new="            pass\n",
        tests=("tests/simulation/judges/test_record_judge.py::test_x5_what_breaks_a_rule_is_found",),
        why_tests=JUDGE,
    ),
    Mutant(
        name="judge-mark-back",
        rule="the judge finds a late-index mark that goes back (X5)",
        section="§13",
        file="simulation/judges/record_judge.py",
        old=(
            "        if before is not None and (seq.next < before.next or seq.indexed_below < before.indexed_below):\n"
        ),
        new="        if before is not None and seq.next < before.next:\n",
        tests=("tests/simulation/judges/test_record_judge.py::test_x5_what_breaks_a_rule_is_found",),
        why_tests=JUDGE,
    ),
    Mutant(
        name="judge-horizon-back",
        rule="the judge finds a horizon that goes back (X5)",
        section="§13",
        file="simulation/judges/record_judge.py",
        old='            found.append("/gc-horizon goes back")\n',
        new="            pass\n",
        tests=("tests/simulation/judges/test_record_judge.py::test_x5_what_breaks_a_rule_is_found",),
        why_tests=JUDGE,
    ),
    Mutant(
        name="judge-deadline-decided",
        rule="the judge finds a deadline key of what is decided (X5)",
        section="§13",
        file="simulation/judges/record_judge.py",
        old=(
            "        header = self._now.headers.get(keys.txn(txn_id))\n"
            "        if header is None or header.header.state != OPEN:\n"
            '            yield f"{key.decode()} is put, its transaction is'
        ),
        new=(
            "        header = self._now.headers.get(keys.txn(txn_id))\n"
            "        if header is None:\n"
            '            yield f"{key.decode()} is put, its transaction is'
        ),
        tests=("tests/simulation/judges/test_record_judge.py::test_x5_what_breaks_a_rule_is_found",),
        why_tests=JUDGE,
    ),
    Mutant(
        name="judge-name-of-collected",
        rule="the judge finds a commit's name that was taken over (X5)",
        section="§13",
        file="simulation/judges/record_judge.py",
        old="        state = before.outcome if header is None else header.header.state\n",
        new="        state = ABORTED if header is None else header.header.state\n",
        tests=("tests/simulation/judges/test_record_judge.py::test_x5_what_breaks_a_rule_is_found",),
        why_tests=JUDGE,
    ),
    Mutant(
        name="checker-unknown-reported",
        rule="what was reported as committed must have committed (X5)",
        section="§13",
        file="simulation/judges/anomalies/facts.py",
        old='(operation.outcome == "unknown" and (seen or "committed" in operation.reports))',
        new='(operation.outcome == "unknown" and seen)',
        tests=("tests/simulation/judges/test_checker_edges.py::test_x5_a_planted_anomaly_at_an_edge_is_caught",),
        why_tests=JUDGE,
    ),
    Mutant(
        name="checker-acked-unfinished",
        rule="when an unknown commit landed is not known (X5)",
        section="§13",
        file="simulation/judges/anomalies/acks.py",
        old=('    if operation.completed is None or operation.outcome != "ok":\n        return\n'),
        new=("    if operation.completed is None:\n        return\n"),
        tests=("tests/simulation/judges/test_checker_edges.py::test_x5_a_clean_history_at_an_edge_passes",),
        why_tests=JUDGE,
    ),
    Mutant(
        name="checker-snapshot-covered",
        rule="a snapshot is judged by the topics that it covers (X5)",
        section="§13",
        file="simulation/judges/anomalies/acks.py",
        old="            sends = [send for send in sends if send.key in covered[snapshot]]\n",
        new="",
        tests=("tests/simulation/judges/test_checker_edges.py::test_x5_a_clean_history_at_an_edge_passes",),
        why_tests=JUDGE,
    ),
    Mutant(
        name="checker-unseen-by-subscription",
        rule="a subscription is due all keys of its topic (X5)",
        section="§13",
        file="simulation/judges/anomalies/values.py",
        old=("            if topic_of(send.key) in topics and send.value not in delivered[subscription]:\n"),
        new="            if send.key in topics and send.value not in delivered[subscription]:\n",
        tests=("tests/simulation/judges/test_checker_edges.py::test_x5_a_planted_anomaly_at_an_edge_is_caught",),
        why_tests=JUDGE,
    ),
    Mutant(
        name="checker-poll-own-acks-any-sub",
        rule="an ack excuses a skip on its own subscription alone (X5)",
        section="§13",
        file="simulation/judges/anomalies/polls.py",
        old="for ack in operation.acks if ack.subscription == subscription and ack.at < poll.at}",
        new="for ack in operation.acks if ack.at < poll.at}",
        tests=("tests/simulation/judges/test_checker_edges.py::test_x5_a_planted_anomaly_at_an_edge_is_caught",),
        why_tests=JUDGE,
    ),
    Mutant(
        name="checker-non-monotonic-last",
        rule="a send is held against the one before it (X5)",
        section="§13",
        file="simulation/judges/anomalies/values.py",
        old="            last[operation.process, send.key] = send\n",
        new="            last.setdefault((operation.process, send.key), send)\n",
        tests=("tests/simulation/judges/test_checker_edges.py::test_x5_a_planted_anomaly_at_an_edge_is_caught",),
        why_tests=JUDGE,
    ),
    Mutant(
        name="checker-raised-outside",
        rule="a loss that any call has told of is heard (X5)",
        section="§13",
        file="simulation/judges/anomalies/promises.py",
        old=('        elif call.ended == "raised":\n            accepted = []\n'),
        new=('        elif call.what == "accept" and call.ended == "raised":\n            accepted = []\n'),
        tests=("tests/simulation/judges/test_checker_edges.py::test_x5_a_clean_history_at_an_edge_passes",),
        why_tests=JUDGE,
    ),
)
