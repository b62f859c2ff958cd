"""What has to do with sockets is tested under both event loops that our processes run on; a server and its caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import structlog
import uvloop

from tests.txnwire.transport.calling import CLOCK, Pushes, TestServer, TestService, open_caller
from txnwire.transport.calls import Caller
from txnwire.transport.grpc_transport import GrpcTransport

BOTH = ("test_grpc_transport.py", "test_calls.py", "test_handshakes.py", "test_call_bounds.py")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if item.path.name in BOTH:
        factories["uvloop"] = uvloop.new_event_loop
    return factories


@pytest.fixture
def service() -> TestService:
    return TestService()


@pytest.fixture
async def server(service: TestService) -> AsyncIterator[TestServer]:
    server = TestServer()
    server.services.append(service)
    server.listener = await GrpcTransport(CLOCK).listen("127.0.0.1:0", server)
    yield server
    await server.listener.close()


@pytest.fixture
def pushes() -> Pushes:
    return Pushes()


@pytest.fixture
async def caller(server: TestServer, pushes: Pushes) -> AsyncIterator[Caller]:
    caller = await open_caller(server.address, pushes)
    yield caller
    await caller.close()


# ---- requests and replies ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def fresh_loggers() -> None:
    """`capture_logs` reaches only loggers that are not cached."""
    structlog.configure(cache_logger_on_first_use=False)
