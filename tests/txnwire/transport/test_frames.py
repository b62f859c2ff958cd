"""Frames: gathering, splitting, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnwire.errors import InvalidArgument, MessageTooLarge
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import (
    FRAME_TARGET_BYTES,
    FRAME_TARGET_COMMANDS,
    FRAME_VERSION,
    MAX_COMMAND_BYTES,
    MAX_FRAME_BYTES,
)
from txnwire.transport.frames import FrameOutbox, parse_frame


def send(size: int, request_id: int = 1) -> pb.Command:
    return pb.Command(request_id=request_id, send=pb.Send(producer_id=1, entry=bytes(size)))


def frames_of(outbox: FrameOutbox) -> list[bytes]:
    frames = []
    while (gathered := outbox.next_frame()) is not None:
        frame, command_bytes = gathered
        outbox.sent(command_bytes)
        frames.append(frame)
    return frames


@given(st.lists(st.integers(0, 40_000), max_size=30))
def test_commands_come_out_as_they_went_in(sizes: list[int]) -> None:
    outbox = FrameOutbox()
    commands = [send(size, request_id) for request_id, size in enumerate(sizes, 1)]
    for command in commands:
        outbox.add(command)
    assert [command for frame in frames_of(outbox) for command in parse_frame(frame)] == commands
    assert outbox.pending_bytes == 0


@pytest.mark.parametrize("size", [0, 100, 127, 128, 1000, 1010, 1023, 1024, 1025, 16383, 16384, 70_000, 2_100_000])
def test_a_joined_frame_is_what_protobuf_would_write(size: int) -> None:
    outbox = FrameOutbox()
    outbox.add(send(size))
    outbox.add(send(0))
    expected = pb.Frame(version=FRAME_VERSION, commands=[send(size), send(0)])
    assert frames_of(outbox) == [expected.SerializeToString()]


def test_a_command_may_be_reused_at_once() -> None:
    outbox, command = FrameOutbox(), pb.Command(ok=pb.Ok())
    for request_id in (1, 2):
        command.request_id = request_id
        outbox.add(command)
    (frame,) = frames_of(outbox)
    assert [command.request_id for command in parse_frame(frame)] == [1, 2]


def test_pending_bytes_count_until_the_frame_has_left() -> None:
    outbox = FrameOutbox()
    outbox.add(send(1000))
    pending = outbox.pending_bytes
    gathered = outbox.next_frame()
    assert gathered is not None
    assert outbox.pending_bytes == pending >= 1000
    outbox.sent(gathered[1])
    assert outbox.pending_bytes == 0
    assert outbox.next_frame() is None


def test_a_large_gathering_leaves_as_several_frames() -> None:
    outbox = FrameOutbox()
    for _ in range(12):
        outbox.add(send(1_000_000))
    frames = frames_of(outbox)
    assert [len(parse_frame(frame)) for frame in frames] == [4, 4, 4]
    assert all(len(frame) <= FRAME_TARGET_BYTES + 64 for frame in frames)


def test_many_small_commands_leave_as_several_frames() -> None:
    outbox = FrameOutbox()
    for _ in range(FRAME_TARGET_COMMANDS * 2 + 1):
        outbox.add(pb.Command(request_id=1, ok=pb.Ok()))
    assert [len(parse_frame(frame)) for frame in frames_of(outbox)] == [FRAME_TARGET_COMMANDS, FRAME_TARGET_COMMANDS, 1]


def test_the_largest_command_travels_alone_and_fits_its_frame() -> None:
    outbox = FrameOutbox()
    overhead = len(send(MAX_COMMAND_BYTES).SerializeToString()) - MAX_COMMAND_BYTES
    for size in (1, MAX_COMMAND_BYTES - overhead, 1):
        outbox.add(send(size))
    frames = frames_of(outbox)
    assert [len(parse_frame(frame)) for frame in frames] == [1, 1, 1]
    assert max(map(len, frames)) <= MAX_FRAME_BYTES


def test_a_larger_command_is_refused_and_leaves_no_trace() -> None:
    outbox = FrameOutbox()
    with pytest.raises(MessageTooLarge, match="a frame can carry"):
        outbox.add(send(MAX_COMMAND_BYTES))
    assert outbox.pending_bytes == 0
    assert outbox.next_frame() is None


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"\xff\xff\xff", "frame of 3 bytes is malformed"),
        (b"\x08\x01\x12\x7f", "malformed"),
        (pb.Frame(version=2).SerializeToString(), "frame version 2: this version of txnstore speaks 1"),
        (b"", "frame version 0"),
    ],
)
def test_what_is_no_frame_of_ours_is_refused(data: bytes, named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        parse_frame(data)


@given(st.binary(max_size=200))
def test_random_bytes_give_commands_or_a_named_error(data: bytes) -> None:
    try:
        assert isinstance(list(parse_frame(data)), list)
    except InvalidArgument as error:
        named = error.message
    else:
        return
    assert named.startswith("frame")
