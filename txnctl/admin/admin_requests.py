"""The one handler of `admin_request`: routes an operator's question, by its `what`, to the role that answers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from segments.broker.broker_service import AdminAnswer
from txnwire.errors import InvalidArgument
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.calls import Handler, Peer


class AdminRequests:
    """A `txnwire.transport.calls.Service` over the `admin` mappings of the roles of this process."""

    def __init__(self) -> None:
        self._answers: dict[str, AdminAnswer] = {}

    def add(self, answers: Mapping[str, AdminAnswer]) -> None:
        self._answers |= answers

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return {"admin_request": self._answer}

    def disconnected(self, peer: Peer) -> None:
        """Nothing is kept per connection."""

    async def _answer(self, _: Peer, command: pb.Command) -> pb.Command:
        request = command.admin_request
        answer = self._answers.get(request.what)
        if answer is None:
            here = ", ".join(sorted(self._answers)) or "none (it has no role that answers any)"
            raise InvalidArgument(f"this server does not answer {request.what!r}; it answers: {here}")
        try:
            args = msgspec.json.decode(request.args_json or "{}", type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise InvalidArgument(f"{request.what}: its arguments are not one JSON object: {error}") from error
        reply = await answer(args)
        return pb.Command(admin_reply=pb.AdminReply(reply_json=msgspec.json.encode({"v": 1, **reply}).decode()))
