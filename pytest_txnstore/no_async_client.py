"""The fixture `txn_client` of a session that has no pytest-asyncio: says what to do."""

from __future__ import annotations

import pytest


@pytest.fixture
def txn_client() -> None:
    """Fails: nothing here could run a coroutine."""
    pytest.fail(
        "txn_client is asynchronous: install pytest-asyncio; or take txn_sync_client, or connect in a loop of your "
        "own: `async with txn_namespace.connect() as client`",
        pytrace=False,
    )
