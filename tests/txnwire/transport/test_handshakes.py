"""Hello, its refusals and time limits."""

from __future__ import annotations

import asyncio

import pytest

from tests.txnwire.transport.calling import CLOCK, Pushes, TestServer, TestService, open_caller
from tests.waiting import until
from txnwire import errors
from txnwire.errors import (
    ConnectionLost,
    InvalidArgument,
)
from txnwire.ports import Connection
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import PROTOCOL_VERSION
from txnwire.transport.calls import Caller
from txnwire.transport.grpc_transport import GrpcTransport


async def test_a_peer_is_known_by_its_hello(caller: Caller, server: TestServer, service: TestService) -> None:
    await caller.close()
    await until(lambda: bool(service.peers))
    (peer,) = service.peers
    assert (peer.session_id, peer.client_name, peer.owner) == (b"session", "tests", "anonymous")
    assert peer.address.startswith("127.0.0.1:")
    assert (caller.hello_ok.server_id, list(caller.hello_ok.roles)) == ("server-1", ["coordinator", "broker"])
    assert caller.hello_ok.incarnation == "abc"


@pytest.mark.parametrize(
    ("hello", "named"),
    [
        (
            pb.Hello(protocol_version=99, client_name="old", session_id=b"s"),
            f"protocol version 99 of client 'old': this server speaks {PROTOCOL_VERSION}",
        ),
        (pb.Hello(session_id=b""), "session id of 0 bytes"),
        (pb.Hello(session_id=bytes(65)), "session id of 65 bytes"),
        (pb.Hello(session_id=b"s", client_name="n" * 4097), "client_name of 4097 characters"),
        (pb.Hello(session_id=b"s", token="t" * 20_001), "token of 20001 characters"),
    ],
    ids=["version", "no session", "long session", "long name", "long token"],
)
async def test_a_hello_that_will_not_do_is_refused_with_the_reason(
    server: TestServer, service: TestService, hello: pb.Hello, named: str
) -> None:
    for _ in range(5):
        with pytest.raises(InvalidArgument, match=named):
            await open_caller(server.address, Pushes(), hello)
    await until(lambda: server.served == 5)
    assert service.events == []


async def test_a_command_before_hello_is_refused(server: TestServer, service: TestService) -> None:
    connection = await GrpcTransport(CLOCK).connect(server.address, timeout_s=10)
    connection.send_nowait(pb.Command(request_id=5, ping=pb.Ping()))
    (reply,) = await connection.receive()
    assert (reply.request_id, reply.error.message) == (5, "the first command is ping: expected hello")
    with pytest.raises(ConnectionLost):
        await connection.receive()
    await connection.close()


async def test_commands_right_behind_hello_are_served(server: TestServer) -> None:
    connection = await GrpcTransport(CLOCK).connect(server.address, timeout_s=10)
    hello = pb.Hello(protocol_version=PROTOCOL_VERSION, session_id=b"s")
    connection.send_nowait(pb.Command(request_id=1, hello=hello))
    connection.send_nowait(pb.Command(request_id=2, ping=pb.Ping()))
    replies: list[int] = []
    while len(replies) < 2:
        replies += [reply.request_id for reply in await connection.receive()]
    assert replies == [1, 2]
    await connection.close()


async def test_commands_right_behind_the_answer_to_hello_are_taken(server: TestServer) -> None:
    """A server that goes down just then says so in the same frame."""

    async def serve(connection: Connection) -> None:
        await connection.receive()
        connection.send_nowait(pb.Command(request_id=1, hello_ok=pb.HelloOk(protocol_version=PROTOCOL_VERSION)))
        connection.send_nowait(pb.Command(cluster=pb.Cluster(revision=7)))
        connection.send_nowait(pb.Command(error=errors.to_wire(errors.Overloaded("too many connections"))))
        await connection.receive()

    listener = await GrpcTransport(CLOCK).listen("127.0.0.1:0", serve)
    pushes = Pushes()
    caller = await open_caller(listener.address, pushes)
    async with asyncio.timeout(10):
        await caller.wait_closed()
    assert [command.cluster.revision for command in pushes.commands] == [7]
    (reason,) = pushes.reasons
    assert "ended by it: too many connections" in str(reason)
    await listener.close()


async def test_authentication_names_the_owner_or_refuses(server: TestServer, service: TestService) -> None:
    async def authenticate(hello: pb.Hello) -> str:
        if hello.token != "right":
            raise errors.Unauthorized("the token is not valid")
        return "alice"

    server.authenticate = authenticate
    with pytest.raises(errors.Unauthorized, match="not valid"):
        await open_caller(server.address, Pushes(), pb.Hello(session_id=b"s", token="wrong"))
    caller = await open_caller(server.address, Pushes(), pb.Hello(session_id=b"s", token="right"))
    await caller.close()
    await until(lambda: bool(service.peers))
    assert service.peers[0].owner == "alice"


async def test_a_handshake_that_does_not_end_fails_in_time(server: TestServer) -> None:
    async def authenticate(_hello: pb.Hello) -> str:
        await asyncio.Event().wait()
        return ""

    server.authenticate = authenticate
    with pytest.raises(ConnectionLost, match=r"did not answer the handshake within 1 s"):
        await open_caller(server.address, Pushes(), timeout_s=1.0)  # to connect takes its part


async def test_a_client_that_says_nothing_is_refused_in_time(
    server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnwire.transport.serving.HANDSHAKE_TIMEOUT_S", 0.1)
    connection = await GrpcTransport(CLOCK).connect(server.address, timeout_s=10)
    (reply,) = await connection.receive()
    assert reply.error.message == "no hello within 0.1 s"
    await connection.close()


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        (pb.Command(request_id=1, hello_ok=pb.HelloOk(protocol_version=9)), "speaks protocol version 9"),
        (pb.Command(request_id=1, ok=pb.Ok()), "answered hello with ok"),
    ],
    ids=["version", "nonsense"],
)
async def test_a_server_that_answers_hello_otherwise_is_refused(answer: pb.Command, named: str) -> None:
    async def serve(connection: Connection) -> None:
        await connection.receive()
        connection.send_nowait(answer)
        await connection.receive()

    listener = await GrpcTransport(CLOCK).listen("127.0.0.1:0", serve)
    with pytest.raises(InvalidArgument, match=named):
        await open_caller(listener.address, Pushes())
    await listener.close()
