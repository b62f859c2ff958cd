"""Removes what a run of the container tests made, once the run has ended in whatever way:
`python -m tests.containers.reaper RUN`.

Its standard input is a pipe that only the run holds: its end is the run's end, after SIGKILL too.
"""

from __future__ import annotations

import subprocess
import sys

LABEL = "txnstore.test"
TIMEOUT_S = 120
KINDS = {
    "container": (["ps", "-aq"], ["rm", "-f", "-v"]),
    "network": (["network", "ls", "-q"], ["network", "rm"]),
    "volume": (["volume", "ls", "-q"], ["volume", "rm", "-f"]),
}
"""Kind → `docker` words that list it, and that remove it; in the order of removal."""


def reap(run: str) -> list[str]:
    """Removes everything with the label; returns the complaints of the engine."""
    said = []
    for kind, (listing, removing) in KINDS.items():
        words = ["docker", *listing, "--filter", f"label={LABEL}={run}"]
        found = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False).stdout.split()
        if found:
            words = ["docker", *removing, *found]
            done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
            said += [f"{kind}: {done.stderr.strip()}"] if done.returncode else []
    return said


if __name__ == "__main__":
    sys.stdin.read()
    sys.exit("; ".join(reap(sys.argv[1])) or 0)
