"""Requests and replies between a `Caller` and `serve_connection`, over the gRPC transport."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Coroutine

import pytest
import structlog
from structlog.testing import capture_logs

from tests.txnwire.test_grpc_transport import echo_process
from tests.waiting import idle, until
from txnwire import errors
from txnwire.calls import Caller, Handler, Peer, serve_connection
from txnwire.clock import SystemClock
from txnwire.errors import (
    ConnectionLost,
    InternalError,
    InvalidArgument,
    MessageTooLarge,
    Overloaded,
    Timeout,
    TxnError,
)
from txnwire.grpc_transport import GrpcListener, GrpcTransport
from txnwire.ports import Connection
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_COMMAND_BYTES, MAX_ENTRY_BYTES, PROTOCOL_VERSION
from txnwire.serving import Authenticate, Service
from txnwire.stream import StreamConnection

CLOCK = SystemClock()
HELLO = pb.Hello(client_name="tests", session_id=b"session")


def send(sequence_id: int, size: int = 0) -> pb.Command:
    return pb.Command(send=pb.Send(sequence_id=sequence_id, entry=bytes(size)))


def send_ok(command: pb.Command) -> pb.Command:
    return pb.Command(send_ok=pb.SendOk(entry_id=command.send.sequence_id))


class TestService:
    """Handlers are set by each test; what happens to peers is kept."""

    __test__ = False

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {"send": lambda _peer, command: send_ok(command)}
        self.peers: list[Peer] = []
        self.events: list[str] = []

    def disconnected(self, peer: Peer) -> None:
        self.peers.append(peer)
        self.events.append("disconnected")


class TestServer:
    """A listener that serves with these services; the connections it has accepted are kept."""

    __test__ = False

    def __init__(self) -> None:
        self.services: list[Service] = []
        self.authenticate: Authenticate | None = None
        self.connections: list[Connection] = []
        self.served = 0
        self.listener: GrpcListener | None = None

    @property
    def address(self) -> str:
        assert self.listener is not None
        return self.listener.address

    async def __call__(self, connection: Connection) -> None:
        self.connections.append(connection)
        await serve_connection(
            connection,
            self.services,
            server_id="server-1",
            roles=["coordinator", "broker"],
            incarnation="abc",
            clock=CLOCK,
            authenticate=self.authenticate,
        )
        self.served += 1


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


class Pushes:
    """What a caller was told unasked; `take` may be replaced."""

    def __init__(self) -> None:
        self.commands: list[pb.Command] = []
        self.reasons: list[TxnError] = []
        self.take: Callable[[pb.Command], object] = self.commands.append


@pytest.fixture
def pushes() -> Pushes:
    return Pushes()


def pushes_to(pushes: Pushes) -> Callable[[pb.Command], None]:
    def take(command: pb.Command) -> None:
        pushes.take(command)

    return take


async def open_caller(address: str, pushes: Pushes, hello: pb.Hello = HELLO, timeout_s: float = 10.0) -> Caller:
    return await Caller.open(
        GrpcTransport(CLOCK),
        address,
        hello,
        clock=CLOCK,
        on_push=pushes_to(pushes),
        on_closed=pushes.reasons.append,
        timeout_s=timeout_s,
    )


@pytest.fixture
async def caller(server: TestServer, pushes: Pushes) -> AsyncIterator[Caller]:
    caller = await open_caller(server.address, pushes)
    yield caller
    await caller.close()


# ---- requests and replies ---------------------------------------------------------------------------------------


async def test_every_request_gets_its_own_reply(caller: Caller) -> None:
    replies = await asyncio.gather(*(caller.call(send(i)) for i in range(3000)))
    assert [reply.send_ok.entry_id for reply in replies] == list(range(3000))
    assert caller.outstanding == 0


async def test_replies_may_come_in_any_order_and_later(server: TestServer, service: TestService) -> None:
    held: list[tuple[Peer, int, pb.Command]] = []

    def hold(peer: Peer, command: pb.Command) -> None:
        held.append((peer, command.request_id, send_ok(command)))
        if len(held) == 100:
            for held_peer, request_id, reply in reversed(held):
                held_peer.reply(request_id, reply)

    service.handlers["send"] = hold
    async with reconnected(server) as caller:
        replies = await asyncio.gather(*(caller.call(send(i)) for i in range(100)))
    assert [reply.send_ok.entry_id for reply in replies] == list(range(100))
    assert held[0][0].unanswered == 0


async def test_a_coroutine_s_result_is_the_reply(server: TestServer, service: TestService) -> None:
    started: list[int] = []

    async def later(command: pb.Command) -> pb.Command:
        started.append(command.send.sequence_id)
        while len(started) < 5:
            await asyncio.sleep(0)
        return send_ok(command)

    service.handlers["send"] = lambda _peer, command: later(command)
    async with reconnected(server) as fresh:
        replies = await asyncio.gather(*(fresh.call(send(i)) for i in range(5)))
    assert [reply.send_ok.entry_id for reply in replies] == list(range(5))


@contextlib.asynccontextmanager
async def reconnected(server: TestServer) -> AsyncIterator[Caller]:
    """A caller whose connection knows the handlers as they are now."""
    caller = await open_caller(server.address, Pushes())
    try:
        yield caller
    finally:
        await caller.close()


@pytest.mark.parametrize("error", [errors.TxnConflict, errors.NotOwner, errors.StoreFull, errors.ExpiredTransaction])
@pytest.mark.parametrize("how", ["raised", "raised in a coroutine", "failed later"])
async def test_an_error_reaches_the_caller_as_what_it_is(
    server: TestServer, service: TestService, error: type[TxnError], how: str
) -> None:
    async def fail() -> pb.Command | None:
        raise error("the reason")

    def handle(peer: Peer, command: pb.Command) -> Coroutine[object, object, pb.Command | None] | None:
        if how == "raised":
            raise error("the reason")
        if how == "failed later":
            peer.fail(command.request_id, error("the reason"))
            return None
        return fail()

    service.handlers["send"] = handle
    async with reconnected(server) as caller:
        with pytest.raises(error, match="the reason") as caught:
            await caller.call(send(1))
        assert type(caught.value) is error


@pytest.mark.parametrize("in_coroutine", [False, True])
async def test_a_bug_in_a_handler_is_internal_and_logged_and_the_connection_lives(
    server: TestServer, service: TestService, in_coroutine: bool
) -> None:
    async def fail() -> pb.Command | None:
        raise KeyError("bug")

    def handle(_peer: Peer, command: pb.Command) -> Coroutine[object, object, pb.Command | None] | pb.Command:
        if command.send.sequence_id:
            return send_ok(command)
        if in_coroutine:
            return fail()
        raise KeyError("bug")

    service.handlers["send"] = handle
    async with reconnected(server) as caller:
        with capture_logs() as logs, pytest.raises(InternalError, match="KeyError: 'bug'"):
            await caller.call(send(0))
        assert [(log["event"], log["command"]) for log in logs] == [("handler_failed", "send")]
        assert (await caller.call(send(1))).send_ok.entry_id == 1


@pytest.mark.parametrize(
    ("command", "named"),
    [(pb.Command(flow=pb.Flow()), "command flow is not served here"), (pb.Command(), "no body known")],
    ids=["not served", "no body"],
)
async def test_an_unknown_command_is_an_invalid_argument(caller: Caller, command: pb.Command, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        await caller.call(command)
    await caller.call(send(1))


async def test_a_ping_is_answered_without_any_service(caller: Caller) -> None:
    assert (await caller.call(pb.Command(ping=pb.Ping()))).HasField("ok")


async def test_the_largest_entry_passes_and_a_reply_too_large_is_an_error(
    server: TestServer, service: TestService
) -> None:
    service.handlers["send"] = lambda _peer, command: (
        send_ok(command) if command.send.sequence_id else send(0, MAX_COMMAND_BYTES)
    )
    async with reconnected(server) as caller:
        assert (await caller.call(send(1, MAX_ENTRY_BYTES))).send_ok.entry_id == 1
        with pytest.raises(MessageTooLarge):
            await caller.call(send(0))
        with pytest.raises(MessageTooLarge):
            await caller.call(send(1, MAX_COMMAND_BYTES))
        assert caller.outstanding == 0
        await caller.call(send(2))


# ---- pushes -----------------------------------------------------------------------------------------------------


async def test_pushes_and_replies_keep_their_order(server: TestServer, service: TestService) -> None:
    def push_then_reply(peer: Peer, command: pb.Command) -> pb.Command:
        for _ in range(3):
            peer.push(pb.Command(rewind=pb.Rewind(consumer_id=command.send.sequence_id)))
        return send_ok(command)

    service.handlers["send"] = push_then_reply
    pushes = Pushes()
    caller = await open_caller(server.address, pushes)
    for i in range(1, 11):
        await caller.call(send(i))
        assert [push.rewind.consumer_id for push in pushes.commands] == [n for n in range(1, i + 1) for _ in range(3)]
    await caller.close()


async def test_a_client_s_push_is_handled_and_not_answered(
    server: TestServer, service: TestService, pushes: Pushes
) -> None:
    pushed: list[int] = []

    def flow(peer: Peer, command: pb.Command) -> pb.Command:
        assert command.request_id == 0
        pushed.append(command.flow.permits)
        if command.flow.permits == 2:
            raise errors.NotAllowed("not yours")
        peer.reply(command.request_id, pb.Command(ok=pb.Ok()))
        return pb.Command(ok=pb.Ok())

    service.handlers["flow"] = flow
    async with reconnected(server) as fresh:
        with capture_logs() as logs:
            for permits in (1, 2, 3):
                fresh.push(pb.Command(request_id=77, flow=pb.Flow(permits=permits)))
            await fresh.call(pb.Command(ping=pb.Ping()))
        assert pushed == [1, 2, 3]
        assert [(log["event"], log["reason"]) for log in logs] == [("push_refused", "not yours")]
    assert pushes.commands == []


async def test_a_push_that_cannot_be_handled_ends_the_connection(
    service: TestService, server: TestServer, pushes: Pushes
) -> None:
    def fail(_command: pb.Command) -> None:
        raise KeyError("bug")

    pushes.take = fail
    service.handlers["send"] = lambda peer, _command: peer.push(pb.Command(rewind=pb.Rewind()))
    fresh = await open_caller(server.address, pushes)
    with pytest.raises(ConnectionLost, match="a push could not be handled"):
        await fresh.call(send(1))
    assert fresh.closed
    await fresh.close()
    assert len(pushes.reasons) == 1


# ---- deadlines --------------------------------------------------------------------------------------------------


async def test_a_request_without_reply_times_out_and_no_other_does(server: TestServer, service: TestService) -> None:
    held: list[Callable[[], None]] = []

    def hold(peer: Peer, command: pb.Command) -> None:
        reply, request_id = send_ok(command), command.request_id
        held.append(lambda: peer.reply(request_id, reply))

    service.handlers["send"] = hold
    async with reconnected(server) as caller:
        patient = caller.call_nowait(send(1), timeout_s=30)
        futures = [caller.call_nowait(send(2 + i), timeout_s=0.02 + 0.01 * (i % 5)) for i in range(50)]
        hasty = caller.call_nowait(send(99), timeout_s=0.001)
        results = await asyncio.gather(hasty, *futures, return_exceptions=True)
        assert [type(result) for result in results] == [Timeout] * 51
        assert "did not answer request" in str(results[0])
        assert not patient.done()
        assert caller.outstanding == 1
        for reply in held:  # late replies to those that timed out are nobody's
            reply()
        assert (await patient).send_ok.entry_id == 1


async def test_a_cancelled_call_leaves_the_connection_and_the_others(server: TestServer, service: TestService) -> None:
    held: list[Callable[[], None]] = []

    def hold(peer: Peer, command: pb.Command) -> None:
        reply, request_id = send_ok(command), command.request_id
        held.append(lambda: peer.reply(request_id, reply))

    service.handlers["send"] = hold
    async with reconnected(server) as caller:
        calls = [asyncio.ensure_future(caller.call(send(i), timeout_s=30)) for i in range(10)]
        await until(lambda: len(held) == 10)
        for call in calls[::2]:
            call.cancel()
        for reply in held:
            reply()
        results = await asyncio.gather(*calls[1::2])
        assert [reply.send_ok.entry_id for reply in results] == [1, 3, 5, 7, 9]
        await until(lambda: caller.outstanding == 0)


@pytest.mark.parametrize("end", ["refused", "late", "closed"])
async def test_an_error_that_nobody_waits_for_any_more_is_nobody_s(
    server: TestServer, service: TestService, end: str
) -> None:
    """▲ A caller that is cancelled behind a `shield` leaves its answer behind; asyncio would print its error."""
    held: list[Callable[[], None]] = []

    def hold(peer: Peer, command: pb.Command) -> None:
        request_id = command.request_id
        held.append(lambda: peer.fail(request_id, Overloaded("too much")))

    service.handlers["send"] = hold
    printed: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: printed.append(context))
    async with reconnected(server) as caller:
        answer = caller.call_nowait(send(1), timeout_s=0.01 if end == "late" else 30)
        waiting = asyncio.ensure_future(asyncio.shield(answer))
        await until(lambda: bool(held))
        waiting.cancel()
        await asyncio.sleep(0)
        if end == "refused":
            held[0]()
        if end != "closed":
            await until(lambda: caller.outstanding == 0)
    await until(answer.done)
    del answer, waiting
    gc.collect()
    await asyncio.sleep(0)
    assert printed == []


# ---- ends -------------------------------------------------------------------------------------------------------


async def test_the_end_of_the_connection_fails_all_that_wait(server: TestServer, service: TestService) -> None:
    service.handlers["send"] = lambda _peer, _command: None
    pushes = Pushes()
    caller = await open_caller(server.address, pushes)
    futures = [caller.call_nowait(send(i), timeout_s=30) for i in range(1000)]
    await asyncio.sleep(0)
    assert server.listener is not None
    await server.listener.close()
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionLost] * 1000
    await caller.wait_closed()
    assert caller.closed
    assert pushes.reasons == [caller.reason]
    with pytest.raises(ConnectionLost):
        caller.call_nowait(send(1), timeout_s=1)
    with pytest.raises(ConnectionLost):
        caller.push(send(1))
    await caller.close()
    assert len(pushes.reasons) == 1


async def test_closing_fails_what_waits_tells_nobody_and_may_be_repeated(
    server: TestServer, service: TestService
) -> None:
    service.handlers["send"] = lambda _peer, _command: None
    pushes = Pushes()
    caller = await open_caller(server.address, pushes)
    future = caller.call_nowait(send(1), timeout_s=30)
    await asyncio.gather(caller.close(), caller.close())
    await caller.close()
    with pytest.raises(ConnectionLost, match="closed here"):
        await future
    assert pushes.reasons == []
    await until(lambda: server.served == 1)


async def test_closing_from_inside_a_push_does_not_hang(server: TestServer, service: TestService) -> None:
    closings: list[asyncio.Task[None]] = []
    pushes = Pushes()
    service.handlers["send"] = lambda peer, _command: peer.push(pb.Command(rewind=pb.Rewind()))
    caller = await open_caller(server.address, pushes)
    pushes.take = lambda _command: closings.append(asyncio.ensure_future(caller.close()))
    with pytest.raises(ConnectionLost):
        await caller.call(send(1))
    await asyncio.wait_for(closings[0], 5)


async def test_handlers_tasks_end_before_disconnected_is_told(server: TestServer, service: TestService) -> None:
    async def wait_for_ever() -> pb.Command | None:
        service.events.append("started")
        try:
            await asyncio.Event().wait()
        finally:
            await idle()
            service.events.append("ended")
        return None

    service.handlers["send"] = lambda _peer, _command: wait_for_ever()
    caller = await open_caller(server.address, Pushes())
    futures = [caller.call_nowait(send(i), timeout_s=30) for i in range(3)]
    await until(lambda: len(service.events) == 3)
    await caller.close()
    await until(lambda: server.served == 1)
    assert service.events == ["started"] * 3 + ["ended"] * 3 + ["disconnected"]
    (peer,) = service.peers
    assert peer.closed
    peer.reply(7, pb.Command(ok=pb.Ok()))
    peer.push(pb.Command(rewind=pb.Rewind()))
    with pytest.raises(ConnectionLost):
        await peer.drain(0)
    await asyncio.wait(futures)
    assert all(isinstance(future.exception(), ConnectionLost) for future in futures)


async def test_a_handler_whose_connection_ends_before_it_begins_is_put_away(
    server: TestServer, service: TestService
) -> None:
    """Its coroutine was never awaited; Python warns of one that is merely dropped."""
    began = False

    async def handle() -> pb.Command | None:
        nonlocal began
        began = True
        return None

    def lose_first(_peer: Peer, _command: pb.Command) -> Coroutine[object, object, pb.Command | None]:
        connection = server.connections[0]
        assert isinstance(connection, StreamConnection)
        connection.end(ConnectionLost("just now"))
        return handle()

    service.handlers["send"] = lose_first
    caller = await open_caller(server.address, Pushes())
    with pytest.raises(ConnectionLost):
        await caller.call(send(1), timeout_s=10)
    await until(lambda: server.served == 1)
    assert not began
    await caller.close()


async def test_every_service_hears_of_a_disconnect_even_if_one_fails(server: TestServer, service: TestService) -> None:
    class Failing(TestService):
        def disconnected(self, peer: Peer) -> None:
            raise KeyError("bug")

    failing = Failing()
    failing.handlers = {}
    server.services.insert(0, failing)
    caller = await open_caller(server.address, Pushes())
    with capture_logs() as logs:
        await caller.close()
        await until(lambda: server.served == 1)
    assert service.events == ["disconnected"]
    assert [log["event"] for log in logs if log["log_level"] == "error"] == ["disconnected_failed"]


async def test_a_peer_is_known_by_its_hello(caller: Caller, server: TestServer, service: TestService) -> None:
    await caller.close()
    await until(lambda: bool(service.peers))
    (peer,) = service.peers
    assert (peer.session_id, peer.client_name, peer.owner) == (b"session", "tests", "anonymous")
    assert peer.address.startswith("127.0.0.1:")
    assert (caller.hello_ok.server_id, list(caller.hello_ok.roles)) == ("server-1", ["coordinator", "broker"])
    assert caller.hello_ok.incarnation == "abc"


@pytest.mark.process
async def test_a_server_killed_in_the_middle_fails_all_that_wait() -> None:
    async with echo_process() as (process, address):
        pushes = Pushes()
        caller = await open_caller(address, pushes)
        for i in range(100):
            await caller.call(send(i))
        futures = [caller.call_nowait(send(-1), timeout_s=30) for _ in range(1000)]
        process.kill()
        async with asyncio.timeout(10):
            results = await asyncio.gather(*futures, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionLost] * 1000
        assert len(pushes.reasons) == 1
        await caller.close()


# ---- the handshake ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hello", "named"),
    [
        (
            pb.Hello(protocol_version=99, client_name="old", session_id=b"s"),
            f"protocol version 99 of client 'old': this server speaks {PROTOCOL_VERSION}",
        ),
        (pb.Hello(session_id=b""), "session id of 0 bytes"),
        (pb.Hello(session_id=bytes(65)), "session id of 65 bytes"),
    ],
    ids=["version", "no session", "long session"],
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
    with pytest.raises(ConnectionLost, match=r"did not answer the handshake within 0\.2 s"):
        await open_caller(server.address, Pushes(), timeout_s=0.2)


async def test_a_client_that_says_nothing_is_refused_in_time(
    server: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnwire.serving.HANDSHAKE_TIMEOUT_S", 0.1)
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


async def test_two_services_for_one_command_are_a_mistake_of_ours(server: TestServer, service: TestService) -> None:
    server.services.append(TestService())
    with capture_logs() as logs, pytest.raises(ConnectionLost):
        await open_caller(server.address, Pushes())
    (failure,) = [log for log in logs if log["event"] == "connection_handler_failed"]
    assert "two services handle 'send'" in failure["error"]


# ---- bounds -----------------------------------------------------------------------------------------------------


async def test_more_requests_than_may_be_outstanding_are_refused_at_the_caller(
    server: TestServer, service: TestService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnwire.calls.MAX_OUTSTANDING_REQUESTS", 10)
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
    monkeypatch.setattr("txnwire.serving.MAX_OUTSTANDING_REQUESTS", 10)
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
    monkeypatch.setattr("txnwire.serving.MAX_PENDING_BYTES", 4_000_000)

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
    monkeypatch.setattr("txnwire.calls.MAX_PENDING_BYTES", 4_000_000)
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
    assert "does not read what it is sent" in caplog.text
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


@pytest.fixture(autouse=True)
def fresh_loggers() -> None:
    """`capture_logs` reaches only loggers that are not cached."""
    structlog.configure(cache_logger_on_first_use=False)
