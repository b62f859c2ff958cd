"""`make bench`: run the benchmarks, print a table, write bench.json.

`python -m benchmarks [NAME …]` runs some of them, a group by its first word (`bounds`); `--quick` runs each just long
enough to see that it works, `--share 0.3` those of `bounds` at a third of their size.
"""

from __future__ import annotations

import sys

from benchmarks.bounds import (
    bounds_collection,
    bounds_ledgers,
    bounds_names,
    bounds_pending_acks,
    bounds_take_over,
)
from benchmarks.brokers import brokers
from benchmarks.connections import connections
from benchmarks.data import data
from benchmarks.group_commit import group_commit
from benchmarks.harness import running
from benchmarks.harness.running import Benchmark
from benchmarks.layouts import layouts
from benchmarks.open_transactions import open_transactions
from benchmarks.queue import queue
from benchmarks.recovery import recovery
from benchmarks.segments import segments
from benchmarks.soak import soak
from benchmarks.split import split
from benchmarks.transactions import latency, mutations, throughput
from benchmarks.transform import transform_benchmark
from benchmarks.visibility import visibility

BENCHMARKS: dict[str, Benchmark] = {
    "group-commit": group_commit,
    "latency": latency,
    "mutations": mutations,
    "throughput": throughput,
    "visibility": visibility,
    "recovery": recovery,
    "data": data,
    "segments": segments,
    "queue": queue,
    "transform": transform_benchmark,
    "split": split,
    "layouts": layouts,
    "brokers": brokers,
    "open-transactions": open_transactions,
    "connections": connections,
    "bounds-take-over": bounds_take_over,
    "bounds-pending-acks": bounds_pending_acks,
    "bounds-ledgers": bounds_ledgers,
    "bounds-collection": bounds_collection,
    "bounds-names": bounds_names,
    "soak": soak,
}


if __name__ == "__main__":
    sys.exit(running.main(BENCHMARKS, description=__doc__, out="bench.json"))
