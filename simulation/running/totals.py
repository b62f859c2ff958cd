"""Sums over many runs, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from typing import Any

from simulation.running.job import Result


class Totals:
    """Call `add` once with every result."""

    def __init__(self) -> None:
        self.seeds = 0
        self.failed: dict[int, list[str]] = {}
        """seed → findings"""
        self._virtual_s = self._worked_s = 0.0
        self._events = self._transactions = 0
        self._slowest = (0.0, 0)
        self._shapes: Counter[str] = Counter()
        self._settled: dict[str, float] = {}
        self._sums: dict[str, Counter[str]] = {
            "faults": Counter(), "operations": Counter(), "errors": Counter(), "reached": Counter()
        }  # fmt: skip

    def add(self, result: Result) -> None:
        self.seeds += 1
        if result.findings:
            self.failed.setdefault(result.seed, []).extend(result.findings)
        self._virtual_s += result.virtual_s
        self._worked_s += result.wall_s
        self._events += result.events
        self._transactions += result.transactions
        self._slowest = max(self._slowest, (result.wall_s, result.seed))
        self._shapes["calm" if result.shape and not result.numbers else "under faults"] += 1
        for what, took_s in result.settled.items():
            self._settled[what] = max(took_s, self._settled.get(what, 0.0))
        for name, counts in self._sums.items():
            counts.update(getattr(result, name))

    @property
    def never_reached(self) -> list[str]:
        return [what for what, count in self._sums["reached"].items() if not count]

    def as_json(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "failed": {str(seed): findings for seed, findings in self.failed.items()},
            "calm": self._shapes["calm"],
            "virtual_s": round(self._virtual_s, 1),
            "worked_s": round(self._worked_s, 1),
            "slowest": {"seconds": round(self._slowest[0], 1), "seed": self._slowest[1]},
            "events": self._events,
            "transactions": self._transactions,
            "settled_s": {what: round(took_s, 1) for what, took_s in self._settled.items()},
            **{name: dict(counts) for name, counts in self._sums.items()},
            "never_reached": self.never_reached,
        }

    def lines(self, wall_s: float) -> list[str]:
        """▲ Tests read the last two lines: what was reached, how often; and what was never reached."""
        faults, reached = self._sums["faults"], self._sums["reached"]
        return [
            f"{self.seeds - len(self.failed)} of {self.seeds} runs ok"
            + (f"; failed seeds: {', '.join(map(str, self.failed))}" if self.failed else ""),
            f"{self._virtual_s / 3600:.2f} virtual hours in {wall_s:.0f} s ({self._worked_s:.0f} s of runs, the "
            f"longest {self._slowest[0]:.1f} s: seed {self._slowest[1]}); {self._events} events, "
            f"{self._shapes['calm']} calm runs",
            f"{self._transactions} transactions judged; {_counts(self._sums['operations'])}",
            f"{faults.total()} faults: {_counts(faults)}",
            "settled after healing in at most (virtual s): "
            + ", ".join(f"{took_s:.1f} {what}" for what, took_s in self._settled.items()),
            f"reached: {_counts(reached)}",
            f"never reached: {', '.join(self.never_reached) or 'nothing'}",
        ]


def _counts(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {what}" for what, count in sorted(counts.items()) if count) or "nothing"
