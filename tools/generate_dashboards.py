"""Write Grafana's dashboards of the chart, `charts/txnstore/files/dashboards`; with --check fail where one is stale."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent.parent / "charts" / "txnstore" / "files" / "dashboards"
SOURCE = {"type": "prometheus", "uid": "${source}"}
WIDTH, HEIGHT, COLUMNS = 8, 8, 3
NEWEST = "max(txnstore_store_revisionN)"
ONLY = '{namespace=~"$namespace"}'


class Panel(NamedTuple):
    """`queries`: expression → legend. `N` in an expression stands for the chosen namespaces."""

    title: str
    unit: str
    queries: dict[str, str]
    told: str = ""


def quantiles(metric: str) -> dict[str, str]:
    return {
        f"histogram_quantile({share}, sum by (le) (rate({metric}_bucketN[$__rate_interval])))": f"p{share * 100:g}"
        for share in (0.5, 0.99)
    }


DASHBOARDS: dict[str, tuple[str, Sequence[Panel]]] = {
    "cluster": (
        "txnstore: cluster",
        (
            Panel("Processes ready", "short", {"sum by (roles) (txnstore_readyN)": "{{roles}}"}),
            Panel("Segments without an owner", "short", {"max(txnstore_segments_unownedN)": "unowned"}),
            Panel("Connections", "short", {"sum by (pod) (txnstore_connectionsN)": "{{pod}}"}),
            Panel(
                "Transactions ended",
                "ops",
                {
                    "sum(rate(txnstore_transactions_committed_totalN[$__rate_interval]))": "committed",
                    "sum by (reason) (rate(txnstore_transactions_aborted_totalN[$__rate_interval]))": "{{reason}}",
                },
            ),
            Panel("Open transactions", "short", {"sum by (pod) (txnstore_transactions_activeN)": "{{pod}}"}),
            Panel(
                "Oldest open transaction",
                "s",
                {"max(txnstore_transaction_oldest_open_secondsN)": "age"},
                "It may hold readers back: `txnctl transactions hanging`.",
            ),
            Panel("Begin", "s", quantiles("txnstore_begin_seconds")),
            Panel("Commit", "s", quantiles("txnstore_commit_seconds")),
            Panel("From a decision to its readers", "s", quantiles("txnstore_visibility_lag_seconds")),
            Panel("Pauses of the event loop", "s", {"max by (pod) (txnstore_longest_pause_secondsN)": "{{pod}}"}),
            Panel("Clocks ahead of the cluster's", "s", {"max by (pod) (txnstore_clock_ahead_secondsN)": "{{pod}}"}),
            Panel("CPU", "percentunit", {"rate(process_cpu_seconds_totalN[$__rate_interval])": "{{pod}}"}),
            Panel("Memory", "bytes", {"process_resident_memory_bytesN": "{{pod}}"}),
        ),
    ),
    "brokers": (
        "txnstore: brokers",
        (
            Panel(
                "Messages in",
                "ops",
                {"sum by (pod) (rate(txnstore_messages_stored_totalN[$__rate_interval]))": "{{pod}}"},
            ),
            Panel(
                "Bytes in", "Bps", {"sum by (pod) (rate(txnstore_stored_bytes_totalN[$__rate_interval]))": "{{pod}}"}
            ),
            Panel("In flight", "bytes", {"sum by (pod) (txnstore_publish_inflight_bytesN)": "{{pod}}"}),
            Panel("Send to acknowledgement", "s", quantiles("txnstore_publish_seconds")),
            Panel("Sync of a ledger", "s", quantiles("txnstore_ledger_sync_seconds"), "The disk of the data folder."),
            Panel("Segments", "short", {"sum by (pod, state) (txnstore_broker_segmentsN)": "{{pod}} {{state}}"}),
            Panel(
                "Backlog of subscriptions",
                "short",
                {"max by (topic, subscription) (txnstore_subscription_backlog_entriesN)": "{{topic}} {{subscription}}"},
                "Entries; only subscriptions that exist are shown.",
            ),
            Panel(
                "Messages not acked",
                "short",
                {"sum by (topic, subscription) (txnstore_subscription_lag_messagesN)": "{{topic}} {{subscription}}"},
                "Of each broker the 20 subscriptions with most; one that has acked everything is not shown.",
            ),
            Panel(
                "Age of the oldest message not acked",
                "s",
                {"max by (topic, subscription) (txnstore_subscription_lag_secondsN)": "{{topic}} {{subscription}}"},
                "By its producer's clock.",
            ),
            Panel(
                "Held back behind open transactions", "short", {"sum by (pod) (txnstore_pinned_entriesN)": "{{pod}}"}
            ),
            Panel("Queues", "short", {"sum by (state) (txnstore_queue_entriesN)": "{{state}}"}),
            Panel("Kept", "bytes", {"sum(txnstore_kept_bytesN)": "ledgers"}),
            Panel("Free on the data folder's disk", "bytes", {"min(txnstore_disk_free_bytesN)": "free"}),
            Panel("Clean-up waiting", "short", {"sum by (pod) (txnstore_clean_up_backlogN)": "{{pod}}"}),
        ),
    ),
    "metadata": (
        "txnstore: etcd",
        (
            Panel(
                "etcd's file",
                "bytes",
                {
                    "max(txnstore_etcd_in_use_bytesN)": "in use",
                    "max(txnstore_etcd_file_bytesN)": "file",
                    "max(txnstore_etcd_quota_bytesN)": "quota",
                },
                "From 75 % in use, or a file of 90 %, new transactions are refused.",
            ),
            Panel("Write requests", "s", quantiles("txnstore_store_request_seconds")),
            Panel("Writes that share a request", "short", quantiles("txnstore_group_size")),
            Panel("Writes waiting", "short", {"sum by (pod) (txnstore_store_queuedN)": "{{pod}}"}),
            Panel(
                "Headers and op records",
                "short",
                {
                    "max(txnstore_headersN)": "headers",
                    "max(pulsar_txn_metadata_store_outstanding_op_recordsN)": "op records",
                },
            ),
            Panel("Decided and not collected", "short", {"sum by (state) (txnstore_gc_backlogN)": "{{state}}"}),
            Panel(
                "Revisions that brokers lag behind",
                "short",
                {
                    f"{NEWEST} - on() group_right() max by (pod) (txnstore_watch_followed_revisionN)": "{{pod}}",
                },
            ),
            Panel("Decisions heard by brokers", "s", quantiles("txnstore_watch_lag_seconds")),
            Panel(
                "Elected",
                "short",
                {
                    "sum(txnstore_sweeper_electedN)": "sweeper",
                    "sum(txnstore_controller_leadingN)": "controller",
                },
            ),
        ),
    ),
}


def panel(number: int, one: Panel) -> dict[str, Any]:
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": one.title,
        "description": one.told,
        "datasource": SOURCE,
        "gridPos": {
            "h": HEIGHT,
            "w": WIDTH,
            "x": number % COLUMNS * WIDTH,
            "y": number // COLUMNS * HEIGHT,
        },
        "fieldConfig": {"defaults": {"unit": one.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": _chosen(expression), "legendFormat": legend}
            for index, (expression, legend) in enumerate(one.queries.items())
        ],
    }


def _chosen(expression: str) -> str:
    """A metric's name ends with `N` where the namespaces go."""
    return "".join(
        ONLY if letter == "N" and before.isalnum() and before.islower() else letter
        for before, letter in zip(" " + expression, expression, strict=False)
    )


def dashboard(name: str) -> dict[str, Any]:
    title, panels = DASHBOARDS[name]
    return {
        "uid": f"txnstore-{name}",
        "title": title,
        "tags": ["txnstore"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "schemaVersion": 39,
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "label": "Prometheus", "query": "prometheus"},
                {
                    "name": "namespace",
                    "type": "query",
                    "label": "Namespace",
                    "datasource": SOURCE,
                    "query": "label_values(txnstore_ready, namespace)",
                    "includeAll": True,
                    "multi": True,
                    "allValue": ".*",
                    "refresh": 2,
                },
            ]
        },
        "annotations": {"list": []},
        "panels": [panel(number, one) for number, one in enumerate(panels)],
    }


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in DASHBOARDS:
        path, text = FOLDER / f"{name}.json", json.dumps(dashboard(name), indent=1) + "\n"
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            raise SystemExit(f"{path} is stale: run `make chart`")


if __name__ == "__main__":
    main()
