"""The demo's arithmetic, and its judge: what it must catch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from txnclient import Message
from txnctl.demo.flights import CarrierTotal, Tally, outcome_of, read_flights, tallies_of, totals_of
from txnctl.demo.journal import ABORTED, COMMITTED, Journal, JournalLine, read_lines
from txnctl.demo.verify import DemoFindings, DemoJudge

ROWS = 1000


def test_outcomes_tell_on_time_delayed_and_never_arrived() -> None:
    flights = list(read_flights(1000))
    assert len(flights) == 1000
    statuses = {outcome_of(flight).status for flight in flights}
    assert statuses == {"on time", "delayed", "did not arrive"}
    assert all((outcome_of(f).delay > 0) == (outcome_of(f).status == "delayed") for f in flights)


def test_tallies_of_parts_add_up_to_the_totals_of_the_whole() -> None:
    flights = list(read_flights(ROWS))
    parts = [tallies_of(flights[:70]), tallies_of(flights[70:])]
    added: dict[str, CarrierTotal] = {}
    for tally in (tally for part in parts for tally in part):
        added[tally.carrier] = added.get(tally.carrier, CarrierTotal()).plus(
            tally.count, tally.delay_sum, tally.row_ids_xor
        )
    assert added == totals_of(flights)


def test_a_torn_last_line_of_a_journal_is_passed_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "w.jsonl")
    journal.write(JournalLine("t1", COMMITTED, 3))
    journal.close()
    with (tmp_path / "w.jsonl").open("ab") as torn:
        torn.write(b'{"txn_id": "t2", "ev')
    assert [line.txn_id for line in read_lines(tmp_path)] == ["t1"]


class Seen:
    """A message as the judge reads it: its value, its key and its transaction."""

    def __init__(self, value: msgspec.Struct, txn_id: str, key: str | None) -> None:
        self.value = msgspec.json.encode(value)
        self.txn_id = txn_id
        self.key = None if key is None else key.encode()


def judged(tmp_path: Path, spoil: str) -> DemoFindings:
    """Everything as it should be, in two transactions, but for the one thing that `spoil` names."""
    flights = list(read_flights(ROWS))
    parts = {"txn-1": flights[:120], "txn-2": flights[120:]}
    journal = Journal(tmp_path / "w.jsonl")
    for txn_id, part in parts.items():
        aborted = spoil == "aborted" and txn_id == "txn-2"
        journal.write(JournalLine(txn_id, ABORTED if aborted else COMMITTED, len(part) + (spoil == "torn")))
    journal.close()
    judge = DemoJudge(ROWS, tmp_path)
    for txn_id, part in parts.items():
        outcomes: list[Any] = [(outcome_of(flight), flight.tailnum) for flight in part]
        tallies = tallies_of(part)
        if txn_id == "txn-2":
            spoiled = {"lost": outcomes[1:], "doubled": [*outcomes, outcomes[0]], "order": outcomes[::-1]}
            outcomes = spoiled.get(spoil, outcomes)
            tallies = [Tally("UA", 1, 1, 1), *tallies] if spoil == "tally" else tallies
        for outcome, aircraft in outcomes:
            judge.outcome(as_message(outcome, txn_id, aircraft))
        for tally in tallies:
            judge.tally(as_message(tally, txn_id, tally.carrier))
    return judge.verdict()


def as_message(value: msgspec.Struct, txn_id: str, key: str | None) -> Message:
    return Seen(value, txn_id, key)  # type: ignore[return-value]


def test_the_judge_passes_what_is_right(tmp_path: Path) -> None:
    findings = judged(tmp_path, "nothing")
    assert findings.differences == []
    assert (findings.outcomes, findings.transactions_seen) == (ROWS, 2)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("lost", "has no outcome"),
        ("doubled", "more than one outcome"),
        ("tally", "tallies add up to"),
        ("aborted", "aborted transaction txn-2 is visible"),
        ("torn", "not visible as a whole"),
        ("order", "out of order, aircraft"),
    ],
)
def test_the_judge_catches(tmp_path: Path, spoil: str, said: str) -> None:
    assert any(said in difference for difference in judged(tmp_path, spoil).differences)
