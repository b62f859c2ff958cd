"""The probes of etcd's pods, asked of a real etcd that is at its quota."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.charts.rendering import of_kind, render
from txnstore.etcd.embedded_etcd import EmbeddedEtcd, wait_etcd_ready


def status(url: str) -> int:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(url, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def raise_alarm(url: str) -> None:
    """As etcd does at its quota. Blocks."""

    def call(path: str, body: dict[str, str]) -> dict[str, Any]:
        request = urllib.request.Request(f"{url}{path}", json.dumps(body).encode(), method="POST")
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=20) as answer:
            found: dict[str, Any] = json.loads(answer.read())
            return found

    member = call("/v3/maintenance/status", {})["header"]["member_id"]
    call("/v3/maintenance/alarm", {"action": "ACTIVATE", "memberID": member, "alarm": "NOSPACE"})


async def test_an_etcd_at_its_quota_is_started_again(etcd_process: EmbeddedEtcd) -> None:
    """Such as that of `txnctl dev`: its servers make room in it."""
    await asyncio.to_thread(raise_alarm, etcd_process.url)
    await wait_etcd_ready(etcd_process.url, timeout_s=5.0)


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe", "readinessProbe"])
async def test_an_etcd_at_its_quota_is_not_killed_nor_left_out(etcd_process: EmbeddedEtcd, probe: str) -> None:
    """▲ All members have that alarm at once, and have to go on: room is made by compaction, which they take."""
    (pods,) = [one for one in of_kind(render({}), "StatefulSet") if one["metadata"]["name"].endswith("-etcd")]
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    path = container[probe]["httpGet"]["path"]
    assert await asyncio.to_thread(status, f"{etcd_process.url}{path}") == 200
    await asyncio.to_thread(raise_alarm, etcd_process.url)
    assert await asyncio.to_thread(status, f"{etcd_process.url}/health") == 503
    assert await asyncio.to_thread(status, f"{etcd_process.url}{path}") == 200
