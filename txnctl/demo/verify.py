"""The demo's judge, a process of its own: reads the topics from the beginning and compares them with the data file.

Run as `python -m txnctl.demo.verify URL JOURNALS_FOLDER FLIGHTS`; prints one JSON object, exits 1 on any difference.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path

import msgspec
import uvloop

import txnclient
from txnctl.demo.flights import (
    OUTCOMES,
    TALLIES,
    CarrierTotal,
    FlightOutcome,
    Tally,
    outcome_of,
    read_flights,
    totals_of,
)
from txnctl.demo.journal import ABORTED, COMMITTED, read_lines

SHOWN = 5


class DemoFindings(msgspec.Struct):
    """`aircraft`: how many keys the outcomes had. `differences`: what is wrong, in words, a few of each kind; empty is
    the only good verdict."""

    outcomes: int = 0
    tallies: int = 0
    aircraft: int = 0
    transactions_seen: int = 0
    differences: list[str] = msgspec.field(default_factory=list)


class DemoJudge:
    """Compares the messages read with the data file and the workers' journals."""

    def __init__(self, flights: int, journals: Path) -> None:
        rows = list(read_flights(flights))
        self._expected = {flight.row_id: outcome_of(flight) for flight in rows}
        self._expected_totals = totals_of(rows)
        lines = list(read_lines(journals))
        self._aborted = {line.txn_id for line in lines if line.event == ABORTED}
        self._committed = {line.txn_id: line.flights for line in lines if line.event == COMMITTED}
        self._seen: Counter[int] = Counter()
        self._last: dict[str, int] = {}
        self._out_of_order: list[str] = []
        self._per_txn: Counter[str] = Counter()
        self._totals: dict[str, CarrierTotal] = {}
        self.findings = DemoFindings()

    def outcome(self, message: txnclient.Message) -> None:
        self.findings.outcomes += 1
        outcome = msgspec.json.decode(message.value, type=FlightOutcome)
        self._seen[outcome.row_id] += 1
        self._per_txn[str(message.txn_id)] += 1
        self._expect_order(message, outcome.row_id)
        if self._expected.get(outcome.row_id) != outcome:
            self._differ(f"row {outcome.row_id} reads {outcome}, computed {self._expected.get(outcome.row_id)}")

    def _expect_order(self, message: txnclient.Message, row_id: int) -> None:
        """Flights of one aircraft were loaded in the order of the file; flights without one have no order."""
        if message.key is None:
            return
        aircraft = message.key.decode()
        before = self._last.get(aircraft, 0)
        if row_id <= before:
            self._out_of_order.append(f"{aircraft}: row {row_id} after row {before}")
        self._last[aircraft] = row_id

    def tally(self, message: txnclient.Message) -> None:
        self.findings.tallies += 1
        tally = msgspec.json.decode(message.value, type=Tally)
        if str(message.txn_id) in self._aborted:
            self._differ(f"a tally of the aborted transaction {message.txn_id} is visible")
        before = self._totals.get(tally.carrier, CarrierTotal())
        self._totals[tally.carrier] = before.plus(tally.count, tally.delay_sum, tally.row_ids_xor)

    def verdict(self) -> DemoFindings:
        missing = [row_id for row_id in self._expected if row_id not in self._seen]
        doubled = [row_id for row_id, times in self._seen.items() if times > 1]
        self._differ_some(missing, "row {} has no outcome")
        self._differ_some(doubled, "row {} has more than one outcome")
        self._differ_some(self._out_of_order, "out of order, aircraft {}")
        for carrier in sorted(self._expected_totals | self._totals):
            expected, found = self._expected_totals.get(carrier), self._totals.get(carrier)
            if expected != found:
                self._differ(f"carrier {carrier}: tallies add up to {found}, computed {expected}")
        self._differ_some([txn for txn in self._per_txn if txn in self._aborted], "aborted transaction {} is visible")
        torn = [txn for txn, flights in self._committed.items() if self._per_txn[txn] != flights]
        self._differ_some(torn, "committed transaction {} is not visible as a whole")
        self.findings.aircraft = len(self._last)
        self.findings.transactions_seen = len(self._per_txn)
        return self.findings

    def _differ(self, difference: str) -> None:
        if len(self.findings.differences) < 20 * SHOWN:
            self.findings.differences.append(difference)

    def _differ_some(self, wrong: list[int] | list[str], text: str) -> None:
        for one in wrong[:SHOWN]:
            self._differ(text.format(one))
        if len(wrong) > SHOWN:
            self._differ(f"… and {len(wrong) - SHOWN} more like that")


async def main(url: str, journals: Path, flights: int) -> int:
    judge = DemoJudge(flights, journals)
    async with txnclient.connect(url) as client:
        async with await client.reader(OUTCOMES, start="earliest", end="latest") as reader:
            async for message in reader:
                judge.outcome(message)
        async with await client.reader(TALLIES, start="earliest", end="latest") as reader:
            async for message in reader:
                judge.tally(message)
    findings = judge.verdict()
    sys.stdout.buffer.write(msgspec.json.encode(findings) + b"\n")
    return 1 if findings.differences else 0


if __name__ == "__main__":
    try:
        sys.exit(uvloop.run(main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
    except (asyncio.CancelledError, KeyboardInterrupt):
        sys.exit(130)
