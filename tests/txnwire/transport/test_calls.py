"""Requests and replies between a `Caller` and `serve_connection`, over the gRPC transport."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Coroutine

import pytest
from structlog.testing import capture_logs

from tests.txnwire.transport.calling import Pushes, TestServer, TestService, open_caller, send, send_ok
from tests.txnwire.transport.test_grpc_transport import echo_process
from tests.waiting import idle, until, until_turn
from txnwire import errors
from txnwire.errors import (
    ConnectionLost,
    InternalError,
    InvalidArgument,
    MessageTooLarge,
    Overloaded,
    Timeout,
    TxnError,
)
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_COMMAND_BYTES, MAX_ENTRY_BYTES
from txnwire.transport.calls import Caller, Peer
from txnwire.transport.stream import StreamConnection


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
        await until_turn(lambda: len(started) >= 5, "five calls at once")
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
        await until(lambda: len(held) == 52, "all of them, which the server may get late")
        for reply in held:  # late replies to those that timed out are nobody's
            reply()
        assert (await patient).send_ok.entry_id == 1


async def test_requests_behind_one_that_timed_out_time_out_too(server: TestServer, service: TestService) -> None:
    """Nothing else waits between them."""
    service.handlers["send"] = lambda _peer, _command: None
    async with reconnected(server) as caller, asyncio.timeout(20):
        for _ in range(3):
            with pytest.raises(Timeout):
                await caller.call(send(1), timeout_s=0.02)


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
        waiting.cancel()  # before the time runs out, which may be sooner than the server has it
        await until(lambda: bool(held))
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


async def test_two_services_for_one_command_are_a_mistake_of_ours(server: TestServer, service: TestService) -> None:
    server.services.append(TestService())
    with capture_logs() as logs, pytest.raises(ConnectionLost):
        await open_caller(server.address, Pushes())
    (failure,) = [log for log in logs if log["event"] == "connection_handler_failed"]
    assert "two services handle 'send'" in failure["error"]
