"""Bounds of what is outstanding, and peers that do not read."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from tests.txnwire.transport.calling import CLOCK, Pushes, TestServer, TestService, open_caller, send
from tests.waiting import until
from txnwire.errors import (
    ConnectionLost,
    Overloaded,
)
from txnwire.ports import Connection
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import PROTOCOL_VERSION
from txnwire.transport.calls import Peer
from txnwire.transport.grpc_transport import GrpcTransport


async def test_more_requests_than_may_be_outstanding_are_refused_at_the_caller(
    server: TestServer, service: TestService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnwire.transport.calls.MAX_OUTSTANDING_REQUESTS", 10)
    service.handlers["send"] = lambda _peer, _command: None
    caller = await open_caller(server.address, Pushes())
    futures = [caller.call_nowait(send(i), timeout_s=30) for i in range(10)]
    with pytest.raises(Overloaded, match="10 requests"):
        caller.call_nowait(send(10), timeout_s=30)
    await caller.close()
    await asyncio.wait(futures)
    assert all(isinstance(future.exception(), ConnectionLost) for future in futures)


async def test_a_peer_with_too_many_unanswered_requests_is_disconnected_and_told_why(
    server: TestServer, service: TestService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnwire.transport.serving.MAX_OUTSTANDING_REQUESTS", 10)
    service.handlers["send"] = lambda _peer, _command: None
    caller = await open_caller(server.address, Pushes())
    with capture_logs() as logs:
        futures = [caller.call_nowait(send(i), timeout_s=30) for i in range(11)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        await until(lambda: server.served == 1)
    assert [type(result) for result in results] == [ConnectionLost] * 11
    assert "ended by it: 11 requests are unanswered" in str(caller.reason)
    assert "peer_disconnected" in [log["event"] for log in logs]
    await caller.close()


async def test_a_client_that_does_not_read_is_disconnected(
    server: TestServer, service: TestService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnwire.transport.serving.MAX_PENDING_BYTES", 4_000_000)

    async def flood(peer: Peer) -> pb.Command | None:
        while not peer.closed:
            peer.push(send(0, 1_000_000))
            await asyncio.sleep(0)
        return None

    service.handlers["send"] = lambda peer, _command: flood(peer)
    connection = await GrpcTransport(CLOCK).connect(server.address, timeout_s=10)
    hello = pb.Hello(protocol_version=PROTOCOL_VERSION, session_id=b"s")
    with capture_logs() as logs:
        connection.send_nowait(pb.Command(request_id=1, hello=hello))
        connection.send_nowait(pb.Command(request_id=2, send=pb.Send()))
        await until(lambda: server.served == 1)
    assert service.events == ["disconnected"]
    (reason,) = [log["reason"] for log in logs if log["event"] == "peer_disconnected"]
    assert "does not read" in reason
    await connection.close()


async def test_a_server_that_does_not_read_loses_its_caller(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("txnwire.transport.calls.MAX_PENDING_BYTES", 4_000_000)
    let_go = asyncio.Event()

    async def serve(connection: Connection) -> None:
        await connection.receive()
        connection.send_nowait(pb.Command(request_id=1, hello_ok=pb.HelloOk(protocol_version=PROTOCOL_VERSION)))
        await let_go.wait()

    listener = await GrpcTransport(CLOCK).listen("127.0.0.1:0", serve)
    pushes = Pushes()
    caller = await open_caller(listener.address, pushes)
    waiting = caller.call_nowait(send(0), timeout_s=30)

    async def flood() -> None:
        while True:
            caller.push(send(0, 1_000_000))
            await asyncio.sleep(0)

    with caplog.at_level("WARNING", "txnclient.wire"), pytest.raises(ConnectionLost, match="does not read"):
        await asyncio.wait_for(flood(), 20)
    with pytest.raises(ConnectionLost, match="does not read"):
        await waiting
    assert isinstance(caller.reason, Overloaded)
    assert "does not read its connection" in caplog.text
    await caller.close()
    let_go.set()
    await listener.close()


async def test_drain_holds_a_bulk_sender_back(server: TestServer, service: TestService) -> None:
    """A sender that drains never reaches the bound, however much it sends."""
    caller = await open_caller(server.address, Pushes())
    futures = []
    for i in range(100):
        futures.append(caller.call_nowait(send(i, 1_000_000), timeout_s=60))
        await caller.drain(2_000_000)
        assert caller.pending_bytes <= 2_000_000
    await asyncio.gather(*futures)
    await caller.close()
