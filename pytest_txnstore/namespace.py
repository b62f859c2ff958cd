"""A test's own namespace."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import txnclient.sync
from pytest_txnstore.cluster import PytestCluster

if TYPE_CHECKING:
    from txnclient.connection.opening import Opening

TENANT = "pytest"
NAME_CHARACTERS = 60
CLEAN_TIMEOUT_S = 60.0
"""Timeout of one deletion: the test may have killed the server that it needs."""


@dataclass(frozen=True, slots=True)
class PytestNamespace:
    """`path`: `tenant/namespace`, which begins the names of the test's topics."""

    cluster: PytestCluster
    path: str

    @staticmethod
    def of_test(cluster: PytestCluster, test: str) -> PytestNamespace:
        """▲ Random besides the test's name: a cluster may be shared with other workers, runs and machines."""
        readable = re.sub(r"[^A-Za-z0-9_-]+", "-", test)[:NAME_CHARACTERS].strip("-")
        return PytestNamespace(cluster, f"{TENANT}/{readable or 'test'}-{uuid.uuid4().hex[:12]}")

    @property
    def url(self) -> str:
        return self.cluster.url

    def topic(self, name: str) -> str:
        """`topic://pytest/…/name`. It is not made by that."""
        return f"topic://{self.path}/{name}"

    def unique(self, name: str) -> str:
        """`pytest/…/name`, for what has no namespace: names of transactions, transaction keys."""
        return f"{self.path}/{name}"

    def connect(self, **options: Any) -> Opening[txnclient.Client]:
        """`txnclient.connect` to the cluster, to be used in `async with`, or awaited and closed."""
        return txnclient.connect(self.url, **options)

    def connect_sync(self, **options: Any) -> txnclient.sync.Client:
        """`txnclient.sync.connect` to the cluster, to be used in `with`, or closed."""
        return txnclient.sync.connect(self.url, **options)

    def clean(self) -> None:
        """Delete the namespace's topics, also those that are in use. Raises the first `TxnError` once all others are
        gone: what stays is told."""
        failed: list[txnclient.TxnError] = []
        with self.connect_sync(client_name="pytest", timeout=CLEAN_TIMEOUT_S) as client:
            for topic in client.list_topics(f"{self.path}/"):
                try:
                    client.delete_topic(topic, force=True)
                except txnclient.TopicNotFound:
                    continue  # the test's own deletion, which was under way
                except txnclient.TxnError as error:
                    error.add_note(f"{topic} stays")
                    failed.append(error)
        if failed:
            raise failed[0]
