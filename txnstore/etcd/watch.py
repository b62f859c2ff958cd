"""One watch stream of etcd, until it is lost; `txnstore.access.following` builds a lasting watch from such streams."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc

from txnstore.access.backend import Reason, Refused, Unanswered
from txnstore.etcd import rpc_pb2 as pb
from txnstore.etcd.connection import Endpoint, EtcdConnection, StreamCall, is_cancelled
from txnstore.store import Compacted, Event, EventKind, KeyValue

_WATCH: Final = "/etcdserverpb.Watch/Watch"
_DELETE: Final = 1


def record_of(found: pb.KeyValue, prefix_length: int) -> KeyValue:
    key = found.key[prefix_length:] if prefix_length else found.key
    return KeyValue(key, found.value, found.version, found.create_revision, found.mod_revision, found.lease)


class EtcdWatchStream:
    """`txnstore.access.backend.WatchStream`. No fragments, no progress notifications; replies of any size."""

    def __init__(self, connection: EtcdConnection, endpoint: Endpoint, call: StreamCall, prefix_length: int) -> None:
        self._connection = connection
        self._token = connection.token
        self._endpoint = endpoint
        self._call = call
        self._prefix_length = prefix_length
        self._left = False
        self._opening: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, connection: EtcdConnection, create: pb.WatchCreateRequest, prefix_length: int
    ) -> EtcdWatchStream:
        """Raises `Unanswered`, `Refused`."""
        # Require a leader: an etcd cut off from its cluster then ends the stream instead of falling silent.
        endpoint, call = connection.stream(_WATCH, extra={"hasleader": "true"})
        stream = cls(connection, endpoint, call, prefix_length)
        endpoint.left[stream.leave] = None
        try:
            await stream._create(create)
            return stream
        except BaseException:
            await stream.close()
            raise

    async def _create(self, create: pb.WatchCreateRequest) -> None:
        request = pb.WatchRequest(create_request=create).SerializeToString()
        self._opening = asyncio.ensure_future(self._call.write(request))
        try:
            await self._opening
        except grpc.aio.AioRpcError as error:
            await self._connection.stream_failed(self._endpoint, error.code(), error.details() or "")
        except asyncio.InvalidStateError:  # it ended before the write
            code, details = await self._call.code(), await self._call.details()
            await self._connection.stream_failed(self._endpoint, code, details or "")
        except asyncio.CancelledError:
            if self._left and not is_cancelled():
                raise self._gone() from None
            raise

    def leave(self) -> None:
        """▲ Another member replaced its member: one that no longer applies keeps a watch open and sends nothing."""
        self._left = True
        self._call.cancel()
        if self._opening is not None:
            self._opening.cancel()  # ▲ a write that waits for the connection never hears that its call has ended

    def _gone(self) -> Unanswered:
        return Unanswered(f"{self._endpoint.address} was left for another member")

    async def receive(self) -> tuple[Event, ...]:
        while True:
            if self._left:
                raise self._gone()
            try:
                reply = await self._call.read()
            except grpc.aio.AioRpcError as error:
                if self._left:
                    continue
                await self._connection.stream_failed(self._endpoint, error.code(), error.details() or "")
            except asyncio.CancelledError:
                if self._left and not is_cancelled():
                    continue
                raise
            if self._left:
                continue
            if not isinstance(reply, bytes):
                await self._connection.stream_failed(
                    self._endpoint, grpc.StatusCode.UNAVAILABLE, "the watch stream ended"
                )
            response = pb.WatchResponse.FromString(reply)
            if response.canceled:
                await self._canceled(response)
            # ▲ No events: a "created" or a progress answer. Its revision runs ahead of events still to come, so it is
            # ignored (DESIGN §4).
            if response.events:
                return self._events(response)

    async def close(self) -> None:
        self._endpoint.left.pop(self.leave, None)
        self._call.cancel()

    async def _canceled(self, response: pb.WatchResponse) -> None:
        if response.compact_revision:
            raise Compacted(f"the watch's start has been compacted away: the oldest is {response.compact_revision}")
        if "permission denied" in response.cancel_reason and await self._connection.knows(self._token):
            raise Refused(Reason.DENIED, response.cancel_reason)
        if "auth" in response.cancel_reason:
            await self._connection.stream_failed(
                self._endpoint, grpc.StatusCode.UNAUTHENTICATED, response.cancel_reason
            )
        raise Unanswered(f"etcd ended the watch: {response.cancel_reason or 'no reason given'}")

    def _events(self, response: pb.WatchResponse) -> tuple[Event, ...]:
        skip = self._prefix_length
        return tuple(
            [
                Event(EventKind.DELETE if event.type == _DELETE else EventKind.PUT, record_of(event.kv, skip))
                for event in response.events
            ]
        )
