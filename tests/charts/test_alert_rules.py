"""The alert rules by `promtool`: valid, and each fires behind its time, and not before, on what it warns of."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import yaml

from tests.charts.prometheus import program
from tests.charts.rendering import CHART
from txnctl.metrics.catalogue import catalogue

RULES = CHART / "files" / "alerts.yaml"


class Case(NamedTuple):
    """`wrong`: series while it should fire, `right`: while it should not; `labels` of the alert."""

    wrong: dict[str, str]
    right: dict[str, str]
    labels: Mapping[str, str] = MappingProxyType({})


def slow(metric: str, seconds: str) -> dict[str, str]:
    """A histogram of which all lies between half of `seconds` and it, and another one of which all lies below."""
    return {
        f'{metric}_bucket{{le="0.0005"}}': "0x120",
        f'{metric}_bucket{{le="{seconds}"}}': "0+10x120",
        f'{metric}_bucket{{le="+Inf"}}': "0+10x120",
    }


POD = 'pod="a"'
CASES = {
    "ProcessNotReady": Case({f"txnstore_ready{{{POD}}}": "0x120"}, {f"txnstore_ready{{{POD}}}": "1x120"}, {"pod": "a"}),
    "ProcessGone": Case(
        {'up{job="txnstore",pod="a"}': "0x120"},
        {'up{job="other",pod="a"}': "0x120", 'up{job="txnstore",pod="a"}': "1x120"},
        {"job": "txnstore", "pod": "a"},
    ),
    "NobodyAnswers": Case({'up{job="txnstore"}': "0x120"}, {f"txnstore_ready{{{POD}}}": "0x120"}),
    "TaskEnded": Case(
        {f'txnstore_task_failures_total{{task="t",{POD}}}': "0x40 1x80"},
        {f'txnstore_task_failures_total{{task="t",{POD}}}': "3x120"},
        {"task": "t", "pod": "a"},
    ),
    "SegmentsUnowned": Case(
        {f"txnstore_segments_unowned{{{POD}}}": "2x120"}, {f"txnstore_segments_unowned{{{POD}}}": "0x120"}
    ),
    "SegmentCorrupt": Case(
        {'txnstore_broker_segments{state="failed"}': "1x120"},
        {'txnstore_broker_segments{state="failed"}': "0x120", 'txnstore_broker_segments{state="serving"}': "9x120"},
        {"state": "failed"},
    ),
    "ReadersHeldBack": Case(
        {"txnstore_transaction_oldest_open_seconds": "700x120", f"txnstore_pinned_entries{{{POD}}}": "3x120"},
        {"txnstore_transaction_oldest_open_seconds": "700x120", f"txnstore_pinned_entries{{{POD}}}": "0x120"},
    ),
    "CommitsSlow": Case(slow("txnstore_commit_seconds", "0.25"), slow("txnstore_commit_seconds", "0.05")),
    "VisibilityLags": Case(
        slow("txnstore_visibility_lag_seconds", "2.5"), slow("txnstore_visibility_lag_seconds", "0.5")
    ),
    "LedgerDiskSlow": Case(slow("txnstore_ledger_sync_seconds", "0.25"), slow("txnstore_ledger_sync_seconds", "0.05")),
    "WatchStarved": Case(
        {
            f"txnstore_watch_followed_revision{{{POD}}}": "70x120",
            "txnstore_transactions_committed_total": "0+50x120",
        },
        {
            f"txnstore_watch_followed_revision{{{POD}}}": "70+9x120",
            "txnstore_transactions_committed_total": "0+50x120",
        },
        {"pod": "a"},
    ),
    "SweepBehind": Case({"txnstore_sweep_backlog": "1001x120"}, {"txnstore_sweep_backlog": "1000x120"}),
    "CollectionStuck": Case(
        {'txnstore_gc_backlog{state="stuck"}': "101x120"},
        {'txnstore_gc_backlog{state="stuck"}': "100x120", 'txnstore_gc_backlog{state="retained"}': "5000x120"},
    ),
    "NobodySweeps": Case(
        {f"txnstore_ready{{{POD}}}": "1x120"},  # of a broker: where no coordinator is, nothing tells of sweepers
        {f"txnstore_sweeper_elected{{{POD}}}": "0x120", 'txnstore_sweeper_elected{pod="b"}': "1x120"},
    ),
    "EtcdAlmostFull": Case(
        {"txnstore_etcd_in_use_bytes": "61x120", "txnstore_etcd_quota_bytes": "100x120"},
        {"txnstore_etcd_in_use_bytes": "60x120", "txnstore_etcd_quota_bytes": "100x120"},
    ),
    "EtcdFileAlmostFull": Case(
        {"txnstore_etcd_file_bytes": "88x120", "txnstore_etcd_quota_bytes": "100x120"},
        {"txnstore_etcd_file_bytes": "87x120", "txnstore_etcd_quota_bytes": "100x120"},
    ),
    "NewTransactionsRefused": Case(
        {f"txnstore_store_refuses_new{{{POD}}}": "1x120"}, {f"txnstore_store_refuses_new{{{POD}}}": "0x120"}
    ),
    "SendsRefused": Case(
        {f"txnstore_disk_refuses_new{{{POD}}}": "1x120"}, {f"txnstore_disk_refuses_new{{{POD}}}": "0x120"}
    ),
    "NamesAlmostFull": Case(
        {'txnstore_transaction_names{names="a"}': "81x120", 'txnstore_transaction_names_allowed{names="a"}': "100x120"},
        {
            'txnstore_transaction_names{names="a"}': "80x120",
            'txnstore_transaction_names_allowed{names="a"}': "100x120",
            'txnstore_transaction_names_allowed{names="b"}': "10x120",
        },
        {"names": "a"},
    ),
    "SubscriptionBehind": Case(
        {'txnstore_subscription_backlog_entries{topic="t",subscription="s"}': "100001x120"},
        {'txnstore_subscription_backlog_entries{topic="t",subscription="s"}': "100000x120"},
        {"topic": "t", "subscription": "s"},
    ),
    "SubscriptionLate": Case(
        {'txnstore_subscription_lag_seconds{topic="t",subscription="s"}': "3601x120"},
        {'txnstore_subscription_lag_seconds{topic="t",subscription="s"}': "3600x120"},
        {"topic": "t", "subscription": "s"},
    ),
}
INTERVAL_S = 15


def minutes(text: str) -> int:
    return int(text.removesuffix("m"))


def rules() -> dict[str, dict[str, Any]]:
    (group,) = yaml.load(RULES.read_text(), yaml.CSafeLoader)["groups"]
    return {one["alert"]: one for one in group["rules"]}


def unit_tests() -> dict[str, Any]:
    found = []
    for name, case in CASES.items():
        waits = minutes(rules()[name].get("for", "0m"))
        fired = {"alertname": name, "exp_alerts": [{"exp_labels": dict(case.labels)}]}
        silent = {"alertname": name, "exp_alerts": []}
        checks = [{**fired, "eval_time": f"{waits + 11}m"}]
        if waits:
            checks.append({**silent, "eval_time": f"{waits * 60 - INTERVAL_S}s"})
        for series, asked in ((case.wrong, checks), (case.right, [{**silent, "eval_time": f"{waits + 11}m"}])):
            given = [{"series": one, "values": values} for one, values in series.items()]
            found.append({"interval": f"{INTERVAL_S}s", "input_series": given, "alert_rule_test": asked})
    return {"rule_files": [str(RULES)], "evaluation_interval": f"{INTERVAL_S}s", "tests": found}


async def promtool(*words: str) -> str:
    """What it prints. Raises `AssertionError` with that if it finds something wrong."""
    done = await asyncio.to_thread(
        subprocess.run, [program("promtool"), *words], capture_output=True, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_promtool_takes_the_rules() -> None:
    assert f"SUCCESS: {len(rules())} rules found" in await promtool("check", "rules", str(RULES))


async def test_each_alert_fires_on_what_it_warns_of_and_not_before(tmp_path: Path) -> None:
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(unit_tests()))
    await promtool("test", "rules", str(tmp_path / "tests.yaml"))


def test_whatever_refuses_new_work_has_an_alert() -> None:
    """Such a process is ready: nothing else tells of it."""
    refusals = {one.name for one in catalogue() if one.name.endswith("_refuses_new")}
    asked = {name for one in rules().values() for name in re.findall(r"\w+_refuses_new", one["expr"])}
    assert refusals == asked


def test_each_alert_has_a_case() -> None:
    assert set(CASES) == set(rules())


async def test_rules_that_never_fire_are_noticed(tmp_path: Path) -> None:
    """The cases are no formality: each finds its own rule, once that is never true."""
    broken = yaml.load(RULES.read_text(), yaml.CSafeLoader)
    for one in broken["groups"][0]["rules"]:
        one["expr"] = f"({one['expr']}) and on() vector(1) > 2"
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(broken))
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(unit_tests() | {"rule_files": [str(tmp_path / "rules.yaml")]}))
    with pytest.raises(AssertionError) as caught:
        await promtool("test", "rules", str(tmp_path / "tests.yaml"))
    assert set(re.findall(r"alertname: (\w+),", str(caught.value))) == set(CASES)
