"""The HTTP pages of a process at addresses of IPv6, as the chart's `listenHost: "[::]"` asks for them."""

from __future__ import annotations

import asyncio
import urllib.request
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from txnctl.launch.preflight import expect_free
from txnctl.process.http import HttpEndpoint
from txnstore.etcd.embedded_etcd import free_port

pytestmark = pytest.mark.skipif(
    not Path("/proc/net/if_inet6").exists() or not Path("/proc/net/if_inet6").read_text(),
    reason="there is no IPv6 here",
)


async def nothing() -> None:
    """There are no statistics."""


def fetched(address: str) -> bytes:
    no_proxy = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with no_proxy.open(f"http://{address}/readyz", timeout=20) as answer:
        body: bytes = answer.read()
        return body


@pytest.mark.parametrize(
    ("listen", "asked"), [("[::1]:0", ["[::1]"]), ("[::]:0", ["[::1]", "127.0.0.1"]), ("127.0.0.1:0", ["127.0.0.1"])]
)
async def test_the_pages_are_served_at_addresses_of_ipv6_too(listen: str, asked: list[str]) -> None:
    endpoint = HttpEndpoint(
        listen, not_ready=lambda: None, statistics=nothing, families=lambda _: [], process=CollectorRegistry()
    )
    try:
        host, _, port = endpoint.address.rpartition(":")
        assert host == listen.rpartition(":")[0]
        for one in asked:
            assert await asyncio.to_thread(fetched, f"{one}:{port}") == b"ready\n"
    finally:
        await endpoint.close()


def test_a_cluster_of_this_machine_may_listen_at_an_address_of_ipv6() -> None:
    expect_free(f"[::1]:{free_port()}", part="--listen")
