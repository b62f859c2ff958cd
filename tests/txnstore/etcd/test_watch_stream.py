"""What an etcd says on a watch: events count, everything else proves only that it is there."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from txnstore.etcd import rpc_pb2 as pb
from txnstore.etcd.watch import EtcdWatchStream


class Replies:
    """The client's end of a gRPC stream, with what etcd has sent."""

    def __init__(self, *replies: Any) -> None:
        self._replies = [reply.SerializeToString() for reply in replies]

    async def read(self) -> bytes:
        return cast(bytes, self._replies.pop(0))


def answer(revision: int, *keys: bytes) -> Any:
    """With events, or without any: "created", or a progress answer."""
    response = pb.WatchResponse(header=pb.ResponseHeader(revision=revision))
    for key in keys:
        response.events.add(kv=pb.KeyValue(key=key, version=1, create_revision=revision, mod_revision=revision))
    return response


def test_e1_a_progress_answer_whose_revision_runs_ahead_is_never_followed() -> None:
    """▲ Resumed from there, or taken for followed, the events behind it that are still to come would be missed."""

    async def scenario() -> None:
        replies = Replies(answer(9), answer(900), answer(5, b"/a"), answer(901), answer(6, b"/b", b"/c"))
        connection, endpoint = cast(Any, SimpleNamespace(token=None)), cast(Any, None)
        stream = EtcdWatchStream(connection, endpoint, cast(Any, replies), 0)
        received = [await stream.receive(), await stream.receive()]
        assert [[(event.record.key, event.record.mod_revision) for event in events] for events in received] == [
            [(b"/a", 5)],
            [(b"/b", 6), (b"/c", 6)],
        ]

    asyncio.run(scenario())
