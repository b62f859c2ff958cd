"""`make bench-spark`: run the Spark benchmarks, print a table, write bench-spark.json.

`python -m benchmarks.spark [NAME …]` runs some of them; `--quick` runs each just long enough to see that it works.
"""

from __future__ import annotations

import sys

from benchmarks.harness import running
from benchmarks.harness.running import Benchmark
from benchmarks.spark.commits import commits
from benchmarks.spark.offsets import offsets
from benchmarks.spark.rows import rows

BENCHMARKS: dict[str, Benchmark] = {"rows": rows, "commits": commits, "offsets": offsets}

if __name__ == "__main__":
    sys.exit(running.main(BENCHMARKS, description=__doc__, out="bench-spark.json"))
