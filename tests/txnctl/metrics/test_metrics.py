"""`/metrics`, `/healthz`, `/readyz`: every metric that API.md names, on every process, with its meaning."""

from __future__ import annotations

import asyncio
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from tests.cluster import InProcessCluster
from tests.waiting import until, until_answer
from txnctl.metrics.catalogue import catalogue, families
from txnctl.metrics.metric import Metric, MetricKind, cumulative, largest
from txnctl.metrics.of_process import SWEEPER
from txnctl.metrics.statistics import NamesOfNamespace, SweeperStatistics
from txnctl.process.http import HttpEndpoint
from txnctl.process.server import Server
from txnwire.errors import InvalidArgument
from txnwire.histogram import Histogram

TOPIC = "topic://public/default/measured"

PROMISED = {
    "from the seeds": (
        "pulsar_txn_metadata_store_op_writes_total",
        "pulsar_txn_metadata_store_header_cas_total",
        "pulsar_txn_metadata_store_index_query_seconds",
        "pulsar_txn_metadata_store_outstanding_op_records",
        "pulsar_txn_transaction_key_count",
        "pulsar_txn_transaction_key_epoch",
        "pulsar_txn_transaction_key_age",
    ),
    "active, created, committed, aborted, timed out": (
        "txnstore_transactions_active",
        "txnstore_transactions_created_total",
        "txnstore_transactions_committed_total",
        "txnstore_transactions_aborted_total",
        "txnstore_transactions_timed_out_total",
    ),
    "latencies": ("txnstore_begin_seconds", "txnstore_commit_seconds", "txnstore_publish_seconds"),
    "visibility lag": ("txnstore_visibility_lag_seconds",),
    "open transaction age": ("txnstore_transaction_oldest_open_seconds",),
    "pinned entries per segment": ("txnstore_segment_pinned_entries",),
    "group sizes": ("txnstore_group_size",),
    "watch lag": ("txnstore_watch_lag_seconds",),
    "ledger sync time": ("txnstore_ledger_sync_seconds",),
    "sweep and GC backlog": ("txnstore_sweep_backlog", "txnstore_gc_backlog", "txnstore_clean_up_backlog"),
}
"""API.md, "Metrics"."""


@pytest.mark.parametrize("name", [name for names in PROMISED.values() for name in names])
def test_every_promised_metric_is_in_the_catalogue(name: str) -> None:
    assert name in {metric.name for metric in catalogue()}


def test_names_are_the_conventions() -> None:
    names = [metric.name for metric in catalogue()]
    assert len(set(names)) == len(names)
    for metric in catalogue():
        assert re.fullmatch(r"(txnstore|pulsar_txn)(_[a-z]+)+", metric.name), metric.name
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER), metric.name
        assert metric.help[0].isupper() or metric.help[0].isdigit() or metric.help.startswith("etcd"), metric.name
        assert metric.help.endswith("."), metric.name
        if metric.kind is MetricKind.HISTOGRAM:
            assert metric.name.endswith(("_seconds", "_size")), metric.name


def scraped(server: Server) -> dict[str, Family]:
    """As Prometheus reads it."""
    from prometheus_client.exposition import generate_latest

    class Read:
        def collect(self) -> Iterator[Family]:
            return families(server.statistics())

    text = generate_latest(Read()).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(family: Family, **labels: str) -> float:
    """The one sample with these labels; of a histogram its count."""
    names = (family.name, f"{family.name}_total", f"{family.name}_count")
    found = [one.value for one in family.samples if one.name in names and labels.items() <= one.labels.items()]
    assert len(found) == 1, (family.name, labels, family.samples)
    return float(found[0])


async def test_every_process_tells_every_metric_and_its_roles_fill_them(cluster: InProcessCluster) -> None:
    async with cluster.connect() as client:
        await client.create_topic(TOPIC)
        async with await client.producer(TOPIC) as producer, await client.consumer(TOPIC, "sub") as consumer:
            async with client.transaction() as txn:
                await producer.send(b"one", txn=txn)
            async with client.transaction() as txn:
                await consumer.ack(await consumer.receive(timeout=20), txn=txn)
            aborted = await client.begin()
            await producer.send(b"never", txn=aborted)
            await aborted.abort()
            open_txn = await client.begin()
            await producer.send(b"held", txn=open_txn)
            await producer.send(b"behind")
            server = cluster.servers["broker"].server
            await until(lambda: value(scraped(server)["txnstore_visibility_lag_seconds"]) == 2, "the abort to be known")
            control, broker = scraped(cluster.servers["control"].server), scraped(server)
            await open_txn.abort()
    for found in (control, broker):
        for metric in catalogue():
            assert found[metric.name.removesuffix("_total")].documentation == metric.help
    assert value(control["txnstore_transactions_active"]) == 1
    assert value(control["txnstore_transactions_created"]) == 4
    assert value(control["txnstore_transactions_committed"]) == 2
    assert value(control["txnstore_transactions_aborted"], reason="client") == 1
    assert value(control["txnstore_begin_seconds"]) == 4
    assert value(control["txnstore_commit_seconds"]) == 2
    assert value(control["txnstore_abort_seconds"]) == 1
    assert value(control["pulsar_txn_metadata_store_header_cas"], result="ok") == 7
    assert value(control["pulsar_txn_metadata_store_header_cas"], result="conflict") == 0
    assert value(control["pulsar_txn_transaction_key_count"]) == 0
    assert value(control["txnstore_ready"]) == 1
    assert value(control["txnstore_controller_leading"]) == 1
    assert value(broker["pulsar_txn_metadata_store_op_writes"]) == 4
    assert value(broker["txnstore_publish_seconds"]) == 4
    assert value(broker["txnstore_entries_stored"]) == 4
    assert value(broker["txnstore_visibility_lag_seconds"]) == 2
    assert value(broker["txnstore_segment_pinned_entries"]) == 1
    assert value(broker["txnstore_pinned_segments"]) == 1
    assert value(broker["pulsar_txn_metadata_store_index_query_seconds"]) > 0
    assert value(broker["txnstore_ledger_sync_seconds"]) > 0
    assert value(broker["txnstore_group_size"]) > 0
    assert not broker["txnstore_transactions_active"].samples  # it is no coordinator


async def test_segments_of_all_topics_are_counted_and_those_without_an_owner(cluster: InProcessCluster) -> None:
    server = cluster.servers["control"].server
    async with cluster.connect() as client:
        for name in ("a", "b"):
            await client.create_topic(f"topic://public/default/{name}", segments=3)
    await until(lambda: server.statistics().segments == 6 and not server.statistics().unowned_segments, within_s=20)
    assert value(scraped(server)["txnstore_topics"]) == 2
    await cluster.stop_server("broker")
    await until(lambda: server.statistics().unowned_segments == 6, within_s=20)


async def test_the_elected_sweeper_counts_what_stands_in_etcd(cluster: InProcessCluster) -> None:
    server = cluster.servers["control"].server
    await until(
        lambda: (
            not (
                server.statistics().sweeper is None or server.sweeper is None or not server.sweeper.statistics().census
            )
        ),
        within_s=20,
    )
    found = scraped(server)
    assert value(found["txnstore_sweeper_elected"]) == 1
    assert value(found["pulsar_txn_metadata_store_outstanding_op_records"]) == 0
    assert value(found["txnstore_etcd_file_bytes"]) > 0
    assert value(found["txnstore_etcd_quota_bytes"]) > 0


def test_names_are_told_by_namespace_beside_what_each_may_have() -> None:
    """Both of the same namespaces: the alert divides one by the other."""
    names = tuple(NamesOfNamespace(f"n{number:02}", number, 100) for number in range(1, 31))
    statistics = SweeperStatistics(elected=True, census=None, names=names)
    kept, allowed = (
        {one.labels["names"]: one.value for one in metric.family(statistics).samples}
        for metric in SWEEPER
        if metric.labels
    )
    assert kept == {f"n{number:02}": number for number in range(11, 31)}
    assert allowed == dict.fromkeys(kept, 100)


def test_a_small_namespace_that_is_almost_full_is_told_before_large_ones_with_room() -> None:
    large = tuple(NamesOfNamespace(f"n{number:02}", 1000, 2_000_000) for number in range(30))
    statistics = SweeperStatistics(elected=True, census=None, names=(*large, NamesOfNamespace("small", 9, 10)))
    for metric in SWEEPER:
        if metric.labels:
            assert "small" in {one.labels["names"] for one in metric.family(statistics).samples}


def test_buckets_are_cumulative_and_the_last_holds_all() -> None:
    histogram = Histogram((0.5, 1.0))
    for seconds in (0.1, 0.5, 0.7, 3.0):
        histogram.observe(seconds)
    assert cumulative(histogram.snapshot()) == [("0.5", 2.0), ("1", 3.0), ("+Inf", 4.0)]


def test_label_values_are_bounded() -> None:
    assert largest([((str(n),), float(n % 50)) for n in range(1000)], 3) == [
        (("149",), 49.0),
        (("199",), 49.0),
        (("249",), 49.0),
    ]
    assert largest([(("idle",), 0.0)], 3) == []


# ---- the HTTP endpoint ----------------------------------------------------------------------------------------------


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def ask(endpoint: HttpEndpoint, path: str) -> tuple[int, str]:
    return await asyncio.to_thread(get, endpoint.address, path)


ANSWER: Metric[int] = Metric(name="txnstore_answer", kind=MetricKind.GAUGE, help="It.", read=lambda of: of)


async def test_readiness_says_why_and_metrics_are_of_this_moment() -> None:
    states = ["its roles are being taken up", None]
    remarks: list[str | None] = ["sends get StoreFull"]

    async def count() -> int:
        return len(states)

    endpoint = HttpEndpoint(
        "127.0.0.1:0",
        not_ready=lambda: states[0],
        statistics=count,
        families=lambda counted: [ANSWER.family(counted)],
        remark=lambda: remarks[0],
        process=CollectorRegistry(),
    )
    try:
        assert await ask(endpoint, "/healthz") == (200, "alive\n")
        assert await ask(endpoint, "/readyz") == (503, "not ready: its roles are being taken up\n")
        assert "txnstore_answer 2.0" in (await ask(endpoint, "/metrics"))[1]
        del states[0]
        assert await ask(endpoint, "/readyz") == (200, "ready, but sends get StoreFull\n")
        remarks[0] = None
        assert await ask(endpoint, "/readyz") == (200, "ready\n")
        assert "txnstore_answer 1.0" in (await ask(endpoint, "/metrics"))[1]
        assert (await ask(endpoint, "/"))[0] == 404
    finally:
        await endpoint.close()


async def test_a_loop_that_does_not_turn_is_not_alive() -> None:
    async def nothing() -> None:
        """There are none."""

    endpoint = HttpEndpoint(
        "127.0.0.1:0",
        not_ready=lambda: None,
        statistics=nothing,
        families=lambda _: [],
        process=CollectorRegistry(),
        answer_within_s=0.05,
    )
    try:
        with ThreadPoolExecutor() as threads:
            asking = [threads.submit(get, endpoint.address, path) for path in ("/healthz", "/metrics")]
            assert [one.result()[0] for one in asking] == [503, 503]  # the loop is blocked: that is the point
        await until_answer(lambda: ask(endpoint, "/healthz"), lambda told: told == (200, "alive\n"), "it to turn")
    finally:
        await endpoint.close()


async def test_what_is_not_answered_in_time_is_not_read_on() -> None:
    """▲ Each further question would make a process slower that is too slow already."""
    ended = asyncio.Event()

    async def never() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    endpoint = HttpEndpoint(
        "127.0.0.1:0",
        not_ready=lambda: None,
        statistics=never,
        families=lambda _: [],
        process=CollectorRegistry(),
        answer_within_s=0.05,
    )
    try:
        assert (await ask(endpoint, "/metrics"))[0] == 503
        await asyncio.wait_for(ended.wait(), 20.0)
    finally:
        await endpoint.close()


async def test_an_address_that_something_else_has_is_told_as_a_wrong_setting() -> None:
    async def nothing() -> None:
        """There are none."""

    def endpoint(listen: str) -> HttpEndpoint:
        return HttpEndpoint(
            listen,
            not_ready=lambda: None,
            statistics=nothing,
            families=lambda _: [],
            process=CollectorRegistry(),
        )

    first = endpoint("127.0.0.1:0")
    try:
        with pytest.raises(InvalidArgument, match=f"cannot serve HTTP on '{first.address}': .*in use"):
            endpoint(first.address)
    finally:
        await first.close()
