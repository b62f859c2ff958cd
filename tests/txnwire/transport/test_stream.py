"""`StreamConnection` over a stream that insists on one reader and one writer: gathering, backpressure, closing."""

from __future__ import annotations

import asyncio

import pytest

from tests.waiting import idle, until
from txnwire.errors import ConnectionLost, InternalError, InvalidArgument, MessageTooLarge
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import FRAME_VERSION, MAX_COMMAND_BYTES
from txnwire.transport.frames import parse_frame
from txnwire.transport.stream import INBOX_BYTES, INBOX_FRAMES, StreamConnection


class PickyStream:
    """A `FrameStream` in memory. As gRPC's do, it breaks under a second concurrent read or write, and when a read or
    write is cancelled while the stream lives."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[bytes | ConnectionLost | None] = asyncio.Queue()
        self.written: list[bytes] = []
        self.writable = asyncio.Event()
        self.writable.set()
        self.write_error: Exception | None = None
        self.broken: list[str] = []
        self.aborted: list[Exception | None] = []
        self.finished = asyncio.Event()
        self.finish_allowed = asyncio.Event()
        self.finish_allowed.set()
        self.released = False
        self._under_way: dict[str, None] = {}

    async def _exclusively(self, what: str, operation: asyncio.Future[object]) -> object:
        if what in self._under_way:
            self.broken.append(f"two {what}s at once")
        self._under_way[what] = None
        try:
            return await operation
        except asyncio.CancelledError:
            if not self.aborted:
                self.broken.append(f"{what} cancelled while the stream lives")
            raise
        finally:
            self._under_way.pop(what, None)

    async def read(self) -> bytes | None:
        got = await self._exclusively("read", asyncio.ensure_future(self.incoming.get()))
        if isinstance(got, ConnectionLost):
            raise got
        assert got is None or isinstance(got, bytes)
        return got

    async def write(self, frame: bytes) -> None:
        await self._exclusively("write", asyncio.ensure_future(self.writable.wait()))
        if self.write_error is not None:
            raise self.write_error
        self.written.append(frame)

    async def finish(self) -> None:
        self.finished.set()
        await self.finish_allowed.wait()

    def abort(self, reason: Exception | None) -> None:
        self.aborted.append(reason)

    async def release(self) -> None:
        self.released = True

    def commands(self) -> list[int]:
        return [command.request_id for frame in self.written for command in parse_frame(frame)]


def command(request_id: int, size: int = 0) -> pb.Command:
    return pb.Command(request_id=request_id, send=pb.Send(entry=bytes(size)))


def frame(*request_ids: int, size: int = 0) -> bytes:
    return pb.Frame(version=FRAME_VERSION, commands=[command(i, size) for i in request_ids]).SerializeToString()


@pytest.fixture
async def stream() -> PickyStream:
    return PickyStream()


@pytest.fixture
async def connection(stream: PickyStream) -> StreamConnection:
    return StreamConnection(stream, "peer:1")


async def received(connection: StreamConnection) -> list[int]:
    return [command.request_id for command in await connection.receive()]


async def test_what_gathers_in_one_turn_leaves_as_one_frame(stream: PickyStream, connection: StreamConnection) -> None:
    for request_id in range(100):
        connection.send_nowait(command(request_id))
    await until(lambda: connection.pending_bytes == 0)
    assert len(stream.written) == 1
    assert stream.commands() == list(range(100))
    await connection.close()


async def test_what_comes_during_a_write_leaves_with_the_next(
    stream: PickyStream, connection: StreamConnection
) -> None:
    stream.writable.clear()
    connection.send_nowait(command(1))
    await idle()
    for request_id in (2, 3, 4):
        connection.send_nowait(command(request_id))
        await idle()
    stream.writable.set()
    await until(lambda: connection.pending_bytes == 0)
    assert [len(parse_frame(frame)) for frame in stream.written] == [1, 3]
    await connection.close()


async def test_many_senders_and_cancelled_receivers_never_touch_the_stream_twice(
    stream: PickyStream, connection: StreamConnection
) -> None:
    """▲ DESIGN §11: exactly one writer and one reader; a timeout around `receive` is no cancelled read."""

    async def sender(base: int) -> None:
        for request_id in range(base, base + 50):
            connection.send_nowait(command(request_id))
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for base in range(0, 500, 50):
            group.create_task(sender(base))
        for _ in range(20):
            receiver = group.create_task(connection.receive())
            await idle(3)
            receiver.cancel()
    await until(lambda: connection.pending_bytes == 0)
    stream.incoming.put_nowait(frame(7))
    assert await received(connection) == [7]
    assert sorted(stream.commands()) == list(range(500))
    assert stream.broken == []
    await connection.close()


async def test_a_cancelled_receive_loses_no_frame(stream: PickyStream, connection: StreamConnection) -> None:
    for turns in range(8):
        receiver = asyncio.ensure_future(connection.receive())
        await idle(turns)
        stream.incoming.put_nowait(frame(turns + 1))
        await idle(turns)
        receiver.cancel()
        done, _ = await asyncio.wait({receiver})
        got = [c.request_id for task in done if not task.cancelled() for c in task.result()]
        assert (got or await received(connection)) == [turns + 1]
    await connection.close()


async def test_a_second_receiver_is_refused(connection: StreamConnection) -> None:
    first = asyncio.ensure_future(connection.receive())
    await idle()
    with pytest.raises(InternalError, match="two receivers"):
        await connection.receive()
    await connection.close()
    with pytest.raises(ConnectionLost, match="closed here"):
        await first


async def test_a_receiver_with_much_to_take_leaves_others_their_turn(
    stream: PickyStream, connection: StreamConnection
) -> None:
    for request_id in range(1, INBOX_FRAMES + 1):
        stream.incoming.put_nowait(frame(request_id))
    await idle()
    connection.send_nowait(command(99))
    for _ in range(INBOX_FRAMES - 1):
        await received(connection)
    assert stream.commands() == [99]
    await connection.close()


async def test_nothing_more_is_read_while_nobody_takes_it(stream: PickyStream, connection: StreamConnection) -> None:
    for request_id in range(1, 101):
        stream.incoming.put_nowait(frame(request_id))
    await idle()
    assert stream.incoming.qsize() >= 100 - INBOX_FRAMES - 1
    assert [number for _ in range(100) for number in await received(connection)] == list(range(1, 101))
    await connection.close()


async def test_few_large_frames_keep_more_from_being_read_as_many_small_ones_do(
    stream: PickyStream, connection: StreamConnection
) -> None:
    """▲ Else a peer that sends large entries would take the memory of the one that is behind."""
    for request_id in range(1, INBOX_FRAMES):
        stream.incoming.put_nowait(frame(request_id, size=INBOX_BYTES // 3))
    await idle()
    assert stream.incoming.qsize() == INBOX_FRAMES - 1 - 3
    taken = [number for _ in range(INBOX_FRAMES - 1) for number in await received(connection)]
    assert taken == list(range(1, INBOX_FRAMES))
    await connection.close()


async def test_drain_waits_for_what_is_unsent(stream: PickyStream, connection: StreamConnection) -> None:
    await connection.drain(0)
    stream.writable.clear()
    connection.send_nowait(command(1, size=1000))
    low, high = asyncio.ensure_future(connection.drain(10)), asyncio.ensure_future(connection.drain(5000))
    await idle()
    assert high.done()
    assert not low.done()
    stream.writable.set()
    await asyncio.wait_for(low, 5)
    await connection.close()


async def test_a_cancelled_drain_leaves_the_others(stream: PickyStream, connection: StreamConnection) -> None:
    stream.writable.clear()
    connection.send_nowait(command(1))
    first, second = asyncio.ensure_future(connection.drain(0)), asyncio.ensure_future(connection.drain(0))
    await idle()
    first.cancel()
    stream.writable.set()
    await asyncio.wait_for(second, 5)
    await connection.close()


async def test_what_arrived_before_the_end_is_still_delivered(
    stream: PickyStream, connection: StreamConnection
) -> None:
    stream.incoming.put_nowait(frame(1))
    stream.incoming.put_nowait(None)
    await idle()
    assert await received(connection) == [1]
    with pytest.raises(ConnectionLost, match="peer:1: the other end has closed it"):
        await connection.receive()
    with pytest.raises(ConnectionLost, match="the other end has closed it"):
        connection.send_nowait(command(2))
    with pytest.raises(ConnectionLost, match="the other end has closed it"):
        await connection.drain(0)
    await connection.close()


@pytest.mark.parametrize(
    ("data", "named"), [(b"\xff\xff\xff", "malformed"), (b"\x08\x09", "frame version 9")], ids=["malformed", "version"]
)
async def test_a_bad_frame_ends_the_connection_and_tells_the_other_end(
    stream: PickyStream, connection: StreamConnection, data: bytes, named: str
) -> None:
    stream.incoming.put_nowait(data)
    with pytest.raises(ConnectionLost, match=named):
        await connection.receive()
    (reason,) = stream.aborted
    assert isinstance(reason, InvalidArgument)
    await connection.close()


async def test_the_reader_s_reason_counts_when_a_write_fails(stream: PickyStream, connection: StreamConnection) -> None:
    stream.write_error = ConnectionLost("the stream has ended")
    connection.send_nowait(command(1))
    await idle()
    stream.incoming.put_nowait(ConnectionLost("UNAVAILABLE: ping timeout"))
    with pytest.raises(ConnectionLost, match="ping timeout"):
        await connection.receive()
    await connection.close()


async def test_a_bug_in_the_stream_ends_the_connection(stream: PickyStream, connection: StreamConnection) -> None:
    stream.write_error = RuntimeError("bug")
    connection.send_nowait(command(1))
    with pytest.raises(ConnectionLost, match="RuntimeError: bug"):
        await connection.receive()
    await connection.close()


async def test_an_end_wakes_everybody(stream: PickyStream, connection: StreamConnection) -> None:
    stream.writable.clear()
    connection.send_nowait(command(1))
    waiting = [asyncio.ensure_future(wait) for wait in (*(connection.drain(0) for _ in range(3)), connection.receive())]
    await idle()
    stream.incoming.put_nowait(ConnectionLost("cut"))
    done, _ = await asyncio.wait(waiting, timeout=5)
    assert [str(task.exception()) for task in waiting if task in done] == ["connection with peer:1: cut"] * 4
    await connection.close()


async def test_close_sends_what_is_queued_then_says_goodbye(stream: PickyStream, connection: StreamConnection) -> None:
    connection.send_nowait(command(1))
    await connection.close()
    assert stream.commands() == [1]
    assert stream.finished.is_set()
    assert stream.aborted == [None]
    assert stream.released
    with pytest.raises(ConnectionLost, match="closed here"):
        connection.send_nowait(command(2))
    with pytest.raises(ConnectionLost, match="closed here"):
        await connection.receive()


async def test_close_is_bounded_when_the_other_end_does_not_read(
    stream: PickyStream, connection: StreamConnection
) -> None:
    stream.writable.clear()
    connection.send_nowait(command(1))
    await asyncio.wait_for(connection.close(), 5)
    assert stream.released


async def test_close_is_bounded_when_the_other_end_does_not_say_goodbye(
    stream: PickyStream, connection: StreamConnection
) -> None:
    stream.finish_allowed.clear()
    await asyncio.wait_for(connection.close(), 5)
    assert stream.released


async def test_close_is_idempotent_and_survives_a_cancelled_closer(
    stream: PickyStream, connection: StreamConnection
) -> None:
    stream.finish_allowed.clear()
    first = asyncio.ensure_future(connection.close())
    await idle()
    first.cancel()
    stream.finish_allowed.set()
    await asyncio.gather(connection.close(), connection.close())
    assert stream.released
    assert len(stream.aborted) == 1


async def test_close_lets_a_full_inbox_go(stream: PickyStream, connection: StreamConnection) -> None:
    for request_id in range(1, 101):
        stream.incoming.put_nowait(frame(request_id))
    await idle()
    await asyncio.wait_for(connection.close(), 5)
    with pytest.raises(ConnectionLost):
        await connection.receive()


async def test_a_command_too_large_is_refused_and_the_connection_lives(
    stream: PickyStream, connection: StreamConnection
) -> None:
    with pytest.raises(MessageTooLarge):
        connection.send_nowait(command(1, size=MAX_COMMAND_BYTES))
    connection.send_nowait(command(2))
    await until(lambda: stream.commands() == [2])
    await connection.close()
