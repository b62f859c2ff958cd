"""Prometheus beside a release of rendered pods: it scrapes what the chart's ServiceMonitors select, and evaluates the
chart's rules, with shorter times."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.charts.kubelet import Kubelet
from tests.charts.rendering import NAMESPACE, Object, of_kind, selects
from tests.waiting import until
from txnstore.etcd.embedded_etcd import free_port
from txnstore.etcd.lifetime import tied_to_parent

SCRAPED_EVERY = "500ms"
WINDOW = "8s"
"""In place of the minutes over which rules look back."""


def program(name: str) -> str:
    """`prometheus` or `promtool`; without it the test is skipped."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here: Debian's package prometheus has it")
    return found


def groups(objects: list[Object]) -> dict[str, Any]:
    (rule,) = of_kind(objects, "PrometheusRule")
    found: dict[str, Any] = rule["spec"]
    return found


def hastened(rules: dict[str, Any], thresholds: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """The rules with seconds for minutes. `thresholds`: alert → what of its expression is replaced, and by what. Raises
    `ValueError` where that is not in it."""
    hasty: dict[str, Any] = json.loads(json.dumps(rules))
    for one in hasty["groups"][0]["rules"]:
        if "for" in one:
            one["for"] = "1s"
        one["expr"] = re.sub(r"\[\d+m\]", f"[{WINDOW}]", one["expr"])
        if one["alert"] in thresholds:
            old, new = thresholds[one["alert"]]
            if not one["expr"].count(old):
                raise ValueError(f"{one['alert']}: {one['expr']} has no {old}")
            one["expr"] = one["expr"].replace(old, new)
    return hasty


def targets(release: Kubelet) -> list[dict[str, Any]]:
    """Jobs as the Prometheus operator would make them of the ServiceMonitors."""
    jobs = []
    for monitor in of_kind(release.objects, "ServiceMonitor"):
        (endpoint,) = monitor["spec"]["endpoints"]
        (relabeled,) = endpoint["relabelings"]
        scraped = {}
        for service in of_kind(release.objects, "Service"):
            if not selects(monitor["spec"]["selector"], service["metadata"]["labels"]):
                continue
            (port,) = [one["targetPort"] for one in service["spec"]["ports"] if one["name"] == endpoint["port"]]
            for pod in release.served:
                if selects({"matchLabels": service["spec"]["selector"]}, pod.template["metadata"]["labels"]):
                    scraped[pod.name] = f"{pod.address}:{pod.port(port)}"
        labelled = [
            {"targets": [address], "labels": {"pod": name, "namespace": NAMESPACE}} for name, address in scraped.items()
        ]
        jobs.append({"job_name": relabeled["replacement"], "metrics_path": "/metrics", "static_configs": labelled})
    return jobs


@dataclass
class Prometheus:
    url: str

    async def ask(self, path: str, **parameters: str) -> Any:
        def fetch() -> Any:
            query = urllib.parse.urlencode(parameters)
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=10) as answer:
                return json.load(answer)["data"]

        return await asyncio.to_thread(fetch)

    async def query(self, expression: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.ask("query", query=expression))["result"]
        return found

    async def firing(self) -> set[str]:
        alerts = (await self.ask("alerts"))["alerts"]
        return {one["labels"]["alertname"] for one in alerts if one["state"] == "firing"}

    async def wait_firing(self, *names: str, timeout_s: float = 60.0) -> None:
        await self._wait(set(names), True, timeout_s)

    async def wait_silent(self, *names: str, timeout_s: float = 60.0) -> None:
        await self._wait(set(names), False, timeout_s)

    async def _wait(self, names: set[str], fires: bool, timeout_s: float) -> None:
        """▲ All at one moment is not asked for: what one alert warns of may end while another one waits."""
        missing = set(names)

        async def met() -> bool:
            now = await self.firing()
            missing.difference_update([name for name in missing if (name in now) is fires])
            return not missing

        await until(met, lambda: f"{'not ' * fires}firing: {sorted(missing)}", within_s=timeout_s, longest_poll_s=0.1)


@asynccontextmanager
async def running_prometheus(
    release: Kubelet, folder: Path, rules: dict[str, Any], *, evaluated_every: str = SCRAPED_EVERY
) -> AsyncIterator[Prometheus]:
    """Yields once every target was scraped."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    config = {
        "global": {
            "scrape_interval": SCRAPED_EVERY,
            "scrape_timeout": SCRAPED_EVERY,
            "evaluation_interval": evaluated_every,
        },
        "rule_files": ["rules.yaml"],
        "scrape_configs": targets(release),
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [program("prometheus"), f"--config.file={folder / 'prometheus.yaml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(*tied_to_parent(command), stdout=log, stderr=log)
    try:
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        await _wait_scraped(prometheus, sum(len(job["static_configs"]) for job in config["scrape_configs"]))  # type: ignore[attr-defined]
        yield prometheus
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 30)


async def _wait_scraped(prometheus: Prometheus, count: int) -> None:
    async def scraped() -> bool:
        try:
            return len([one for one in await prometheus.query("up") if one["value"][1] == "1"]) == count
        except OSError:
            return False  # it does not listen yet

    await until(scraped, f"{count} targets to be scraped", longest_poll_s=0.1)
