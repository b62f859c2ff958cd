"""What a number was measured on, and what etcd and the processes say of themselves."""

from __future__ import annotations

import os
import platform
import urllib.request
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def describe() -> str:
    """CPU, cores, memory and Python in one line."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    memory_gib = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES / 2**30
    return f"{cpu}, {os.cpu_count()} cores, {memory_gib:.0f} GiB, Python {platform.python_version()}"


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def peak_resident_bytes(pid: int) -> int:
    """The most memory the process has ever had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def cpu_seconds(pid: int) -> float:
    """User and system time a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class EtcdMetrics:
    """Counters and gauges of one etcd, by name, from its own /metrics."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/metrics"

    def read(self) -> dict[str, float]:
        with urllib.request.urlopen(self._url, timeout=10) as response:
            lines = response.read().decode().splitlines()
        values: dict[str, float] = {}
        for line in lines:
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                values[name] = float(value)
        return values

    def mutations(self) -> float:
        """Keys put and deleted since etcd's start (a range delete counts once for each key it removed)."""
        values = self.read()
        return values["etcd_debugging_mvcc_put_total"] + values["etcd_debugging_mvcc_delete_total"]

    def database_bytes(self) -> float:
        return self.read()["etcd_mvcc_db_total_size_in_bytes"]
