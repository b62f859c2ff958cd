"""The admin role's answers about processes: the brokers, and the counts of the coordinators.

A process that does not answer is named in its row instead of failing the whole answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from coordinator_v5.statistics import CoordinatorStatistics
from segments.layout.directory import Directory
from txnctl.admin.role_calls import RoleCalls
from txnstore import keys
from txnstore.access.store_client import StoreClient
from txnwire.errors import TxnError
from txnwire.histogram import HistogramSnapshot

COUNTED = ("active", "created", "committed", "aborted", "timed_out", "sweep_backlog", "retained", "stuck", "collected")
"""Fields of a coordinator's row that the total adds up."""

BROKER_FACTS = ("pid", "taking", "failed", "not_ready", "admin", "connections", "uptime_s", "version")


class ClusterAnswers:
    def __init__(self, store: StoreClient, directory: Directory, calls: RoleCalls) -> None:
        self._store = store
        self._directory = directory
        self._calls = calls

    @property
    def answers(self) -> Mapping[str, Any]:
        return {
            "brokers.list": self._list_brokers,
            "transactions.stats": self._transaction_stats,
            "store.counts": self._counts,
        }

    async def _list_brokers(self, _: Mapping[str, Any]) -> dict[str, Any]:
        brokers = self._directory.brokers()
        owned = dict.fromkeys(brokers, 0)
        for owner in self._directory.owners().values():
            owned[owner.broker] = owned.get(owner.broker, 0) + 1
        told = await asyncio.gather(*(self._ask(info.address, "process.describe") for info in brokers.values()))
        rows = [
            {"broker": name, "address": info.address, "segments": owned[name], **_of_broker(one)}
            for (name, info), one in zip(brokers.items(), told, strict=True)
        ]
        return {"brokers": sorted(rows, key=lambda row: str(row["broker"]))}

    async def _transaction_stats(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """A row per coordinator process, their total, and the records in etcd."""
        addresses: dict[str, str] = {}
        for info in self._directory.coordinators().values():
            addresses[info.id] = info.address
        told = await asyncio.gather(*(self._ask(address, "coordinator.stats") for address in addresses.values()))
        rows = [{"coordinator": name, **one} for name, one in zip(addresses, told, strict=True)]
        counts = await self._counts({})
        return {
            "coordinators": sorted(rows, key=lambda row: str(row["coordinator"])),
            "total": _total(rows),
            "op_records": counts["ops"],
            "headers": counts["headers"],
        }

    async def _counts(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """How many op records and headers there are: the backlog of clean-up and collection."""
        counts = {}
        for what, prefix in (("ops", keys.TXN_OP), ("headers", keys.TXN)):
            counts[what] = await self._store.count(prefix, keys.prefix_end(prefix))
        return counts

    async def _ask(self, address: str, what: str) -> dict[str, Any]:
        try:
            answer = await self._calls.ask(address, what)
        except TxnError as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {name: value for name, value in answer.items() if name != "v"}


def _of_broker(told: Mapping[str, Any]) -> dict[str, Any]:
    if "error" in told:
        return dict(told)
    return {name: told[name] for name in BROKER_FACTS}


def coordinator_row(of: CoordinatorStatistics) -> dict[str, Any]:
    """One coordinator's statistics, as JSON. Latencies are upper bounds of histogram buckets, in ms; None if nothing
    was observed, or it took longer than the last bound."""
    return {
        "tcids": len(of.tcids),
        "active": of.open,
        "oldest_open_s": round(of.oldest_open_s, 1),
        "created": of.begun,
        "committed": of.committed,
        "aborted": of.aborted,
        "timed_out": of.timed_out,
        "aborted_by": of.aborted_by,
        "begin_p50_ms": _quantile_ms(of.begin_latency, 0.5),
        "begin_p99_ms": _quantile_ms(of.begin_latency, 0.99),
        "commit_p50_ms": _quantile_ms(of.commit_latency, 0.5),
        "commit_p99_ms": _quantile_ms(of.commit_latency, 0.99),
        "sweep_backlog": of.overdue,
        "retained": of.retained,
        "stuck": of.stuck,
        "collected": of.collected,
    }


def _quantile_ms(latency: HistogramSnapshot, q: float) -> float | None:
    bound_s = latency.quantile(q)
    return None if not latency.count or bound_s == float("inf") else round(bound_s * 1000, 1)


def _total(rows: list[dict[str, Any]]) -> dict[str, Any]:
    answered = [row for row in rows if "error" not in row]
    total: dict[str, Any] = {name: sum(row[name] for row in answered) for name in COUNTED}
    return total | {"oldest_open_s": max((row["oldest_open_s"] for row in answered), default=0.0)}
