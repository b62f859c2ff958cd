"""The fixture `txn_client` of a session with pytest-asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest_asyncio

if TYPE_CHECKING:
    import txnclient
    from pytest_txnstore.namespace import PytestNamespace


@pytest_asyncio.fixture
async def txn_client(txn_namespace: PytestNamespace) -> AsyncIterator[txnclient.Client]:
    """A `txnclient.Client` of the test's cluster, in the event loop of fixtures: a test with a loop of a wider scope
    connects by itself, `async with txn_namespace.connect() as client`."""
    async with txn_namespace.connect() as client:
        yield client
