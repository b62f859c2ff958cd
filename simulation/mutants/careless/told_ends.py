"""Break the errors that a client receives when its transaction has ended otherwise than it asked (DESIGN §11)."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

OBEYING = "tests/txnclient/transactions/test_obeying_errors.py::test_"
TOLD_APART = f"{OBEYING}committed_otherwise_aborted_by_another_and_used_wrongly_are_different_errors"
DEADLINE = f"{OBEYING}d2_a_commit_after_the_deadline_says_that_it_was_the_deadline"
TRANSACTION = "txnclient/transactions/transaction_impl.py"
BY_FLAGS = "the simulation's clients go by the flags, or by what is stored"


def _mutant(name: str, rule: str, file: str, old: str, new: str, test: str) -> Mutant:
    return Mutant(name=name, rule=rule, section="§11", file=file, old=old, new=new, tests=(test,), why_tests=BY_FLAGS)


MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "committed-told-as-misuse",
        "a commit that finds another one says that it is decided",
        TRANSACTION,
        "            return TxnDecided(str(error))\n",
        "            return error\n",
        TOLD_APART,
    ),
    _mutant(
        "aborted-told-as-misuse",
        "a commit of what somebody else has aborted says so",
        TRANSACTION,
        "        return TxnAborted(str(error))\n",
        "        return error\n",
        TOLD_APART,
    ),
    _mutant(
        "deadline-told-as-another-s-abort",
        "a commit after the deadline says that it was the deadline",
        TRANSACTION,
        '            return TxnTimedOut(f"{self._too_late()}: {error}")\n',
        "            pass\n",
        DEADLINE,
    ),
    _mutant(
        "another-s-abort-told-as-deadline",
        "what was aborted before its deadline did not time out",
        TRANSACTION,
        "        if self._session.clock.monotonic() >= self.expires_at:\n            return TxnTimedOut(",
        "        if True:\n            return TxnTimedOut(",
        TOLD_APART,
    ),
    _mutant(
        "failed-send-hides-the-deadline",
        "a commit after the deadline raises one error, whether or not a send in it has failed",
        TRANSACTION,
        "            raise TxnTimedOut(self._too_late()) from failure\n",
        "            pass\n",
        "tests/txnclient/transactions/test_transactions.py",
    ),
    _mutant(
        "decided-commit-done-again",
        "a commit that had decided stands, whatever has failed behind it",
        TRANSACTION,
        "        if self._result is not None:\n            return  # ▲",
        "        if False:\n            return  # ▲",
        f"{OBEYING}a_commit_that_had_decided_stays_one_whatever_fails_behind_it",
    ),
    _mutant(
        "unknown-end-told-as-misuse",
        "where it is not known how a named transaction has ended, its commit is to be asked for again",
        TRANSACTION,
        "            if self._state is TransactionState.COMMITTING and not isinstance(error, ExpiredTransaction):\n",
        "            if False:\n",
        "tests/txnclient/transactions",
    ),
    _mutant(
        "other-writers-told-as-the-same-commit",
        "a commit with another list of writers is told of the first one",
        "txnclient/transactions/commit_request.py",
        "    if result.writers != counted:\n",
        "    if False:\n",
        "tests/txnclient/transactions",
    ),
    _mutant(
        "other-note-told-as-the-same-commit",
        "a commit with another note is told of the first one",
        "txnclient/transactions/commit_request.py",
        "    if None not in (note, result.note) and note != result.note:\n",
        "    if False:\n",
        "tests/txnclient/transactions",
    ),
    _mutant(
        "abort-of-the-committed-raises",
        "an abort of what has committed is quiet and tells the state",
        "txnclient/transactions/transaction.py",
        "        except TxnDecided as decided:\n",
        "        except TimeoutError as decided:\n",
        f"{OBEYING}an_abort_of_what_has_committed_is_quiet_and_tells_it",
    ),
    _mutant(
        "unnamed-can-be-left",
        "only a named transaction can be left: nobody else would end it",
        TRANSACTION,
        "        if self.name is None:\n            raise InvalidArgument(",
        "        if False:\n            raise InvalidArgument(",
        f"{OBEYING}only_a_named_transaction_can_be_left",
    ),
    _mutant(
        "decided-counts-as-left",
        "a writer that leaves what is decided still knows how it has ended",
        TRANSACTION,
        "        if self._state in (TransactionState.COMMITTED, TransactionState.ABORTED):\n            return\n",
        "",
        f"{OBEYING}who_leaves_what_it_has_ended_knows_how_it_ended",
    ),
)
