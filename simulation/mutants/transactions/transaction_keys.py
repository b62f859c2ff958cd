"""Break the rules of transaction keys (DESIGN §9)."""

# ruff: noqa: E501  (texts stand on one line, as in the code)
from __future__ import annotations

from simulation.mutants.mutant import Edit, Mutant

MUTANTS = (
    Mutant(
        name="late-connect-fences",
        rule="a connect whose epoch has moved on, a late duplicate, is refused",
        section="§9",
        faults="lose replies,reset,pause,cut a connection",
        file="txnstore/writes/key_transitions.py",
        old="    if record.epoch == epoch:\n        return None\n",
        new="    if record.epoch >= epoch and record.attempt != attempt:\n        return None\n",
    ),
    Mutant(
        name="connect-leaves-the-holders-transaction-open",
        rule="a connect aborts what the holder before has open, in the same etcd transaction",
        section="§9",
        file="coordinator_v5/naming/transaction_keys.py",
        old="            opened = header if is_open(header) else None\n            commit, taken = plan_connect(",
        new="            opened = None\n            commit, taken = plan_connect(",
    ),
    Mutant(
        name="connect-over-a-begin",
        rule="a connect compares the key's record as it was read: it lands before a begin of the old holder or sees it",
        section="§9",
        faults="slow etcd,pause",
        file="txnstore/writes/key_transitions.py",
        old="    compares: list[Compare] = [unchanged_since(key, state.mod_revision)]\n",
        new="    compares: list[Compare] = []\n",
    ),
    Mutant(
        name="begin-of-a-fenced-holder",
        rule="a begin of a key compares the key's record: a fenced holder begins nothing",
        section="§9",
        faults="slow etcd,pause",
        file="txnstore/writes/key_transitions.py",
        old="    return unchanged_since(key, state.mod_revision)\n",
        new="    return Compare(key, Target.MOD, Relation.NOT_EQUAL, -state.mod_revision - 1)\n",
    ),
    Mutant(
        name="two-transactions-of-a-key",
        rule="a keyed client has one open transaction at a time",
        section="§9",
        file="txnstore/writes/key_transitions.py",
        old="    if is_open(header) or begin.number == state.record.begins:\n",
        new="    if begin.number == state.record.begins:\n",
        more=(
            Edit(
                "txnstore/writes/key_transitions.py",
                "    ended = () if before is None else (Compare(keys.txn(before), Target.VERSION, Relation.NOT_EQUAL, 1),)\n",
                "    ended: tuple[Compare, ...] = ()\n",
            ),
            Edit(
                "txnclient/transactions/transaction_keys.py",
                "        elif latest.state in (TransactionState.OPEN, TransactionState.COMMITTING):\n",
                "        elif latest.state in (TransactionState.OPEN,):\n",
            ),
        ),
        tests=("tests/txnstore/writes/test_key_transitions.py::test_which_begins_are_let_in",),
        why_tests="the client that holds a key begins nothing while it has one open",
    ),
    Mutant(
        name="late-begin-of-a-key",
        rule="a begin of a key that comes late, behind the holder's next one, opens nothing",
        section="§9",
        file="txnstore/writes/key_transitions.py",
        old="    if begin.number < state.record.begins:\n",
        new="    if begin.number < 0:\n",
        tests=("tests/txnstore/writes/test_key_transitions.py::test_which_begins_are_let_in",),
        why_tests="it takes a begin that outlives its repetition, the end of that one and its collection",
    ),
    Mutant(
        name="deleted-key-keeps-its-epoch",
        rule="deleting a key raises its epoch",
        section="§9",
        file="txnstore/writes/key_transitions.py",
        old="    record = TransactionKey(epoch=state.record.epoch + 1, since_ms=state.record.since_ms, deleted_ms=now_ms)\n",
        new="    record = TransactionKey(epoch=state.record.epoch, since_ms=state.record.since_ms, deleted_ms=now_ms)\n",
    ),
    Mutant(
        name="decided-commit-fails-the-next-begin",
        rule="a begin goes on where the cancelled commit before it has been decided",
        section="§9",
        file="txnclient/transactions/transaction_keys.py",
        old="            with suppress(TxnDecided):",
        new="            with suppress():",
        tests=(
            "tests/test_transaction_keys.py::test_a_begin_goes_on_where_the_cancelled_commit_before_it_has_been_decided",
        ),
        why_tests="it takes a begin within the moment in which a cancelled commit is being settled",
    ),
)
