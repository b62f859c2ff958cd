"""Calls from one server role to another, over the clients' wire: finds the owner of a segment and asks it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from segments.controller.cut import Resolved, Tail
from segments.layout.directory import Directory
from segments.layout.layout_transitions import Seal
from txnwire.errors import NotOwner
from txnwire.ids import EARLIEST, Position, TxnId
from txnwire.ports import Clock, Random, Transport
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import PROTOCOL_VERSION
from txnwire.tasks import cancel_all, errand
from txnwire.transport.calls import Caller
from txnwire.turns import in_turns

CALL_TIMEOUT_S = 5.0


class RoleCalls:
    """Keeps one connection per address; the next call reopens a lost one."""

    def __init__(self, directory: Directory, transport: Transport, clock: Clock, random: Random, *, name: str) -> None:
        self._directory = directory
        self._transport = transport
        self._clock = clock
        self._name = name
        self._session_id = random.getrandbits(128).to_bytes(16, "big")
        self._callers: dict[str, Caller] = {}
        self._opening: dict[str, asyncio.Task[Caller]] = {}

    async def read_position(self, segment: str, min_revision: int, timestamp_ms: int = 0) -> Position:
        """Asks the segment's owner for `max_read_position`; the owner answers once it has followed decisions to
        `min_revision`. With a time, the position where that starts. Raises `NotOwner` if there is no owner."""
        asked = pb.SegmentPositions(segment=segment, min_revision=min_revision, timestamp_ms=timestamp_ms)
        answer = (await self._call(self._owner_of(segment), pb.Command(segment_positions=asked))).segment_positions_ok
        if not timestamp_ms:
            return _position(answer.max_read_position)
        # ▲ An older owner cannot find a time: a start at the beginning misses nothing.
        return _position(answer.before_timestamp) if answer.HasField("before_timestamp") else EARLIEST

    async def resolved(self, segment: str) -> Resolved:
        """The first question of a cut. Raises `NotOwner`, and the owner's error."""
        command = pb.Command(segment_positions=pb.SegmentPositions(segment=segment, for_cut=True))
        answer = (await self._call(self._owner_of(segment), command)).segment_positions_ok
        return Resolved(answer.ownership_epoch, _position(answer.max_read_position))

    async def tail(self, segment: str, revision: int, resolved: Position) -> Tail:
        """The second question of a cut at `revision`. Raises `NotOwner`, and the owner's error."""
        at = pb.Position(ledger_id=resolved.ledger_id, entry_id=resolved.entry_id)
        command = pb.Command(segment_cut=pb.SegmentCut(segment=segment, revision=revision, resolved=at))
        answer = (await self._call(self._owner_of(segment), command)).segment_cut_ok
        undecided: list[TxnId] = []
        aborted: list[tuple[TxnId, int | None]] = []
        async for open_ones in in_turns(answer.undecided):
            undecided += map(_txn_id, open_ones)
        async for lost in in_turns(answer.aborted):
            aborted += ((_txn_id(one), None if one.whole else one.writer) for one in lost)
        return Tail(answer.ownership_epoch, _position(answer.end), tuple(undecided), tuple(aborted))

    async def users(self, segment: str, subscription: str | None) -> tuple[int, int]:
        """How many producers, and consumers and readers, are connected to a segment; with a subscription only its
        consumers. Raises `NotOwner`."""
        answer = await self.ask_owner(segment, "segment.users", subscription=subscription)
        return int(answer["producers"]), int(answer["consumers"])

    async def drop_subscription(self, segment: str, subscription: str) -> None:
        """Has the owner stop and erase a deleted subscription. Raises `NotOwner`, and the owner's error."""
        await self.ask_owner(segment, "subscription.drop", subscription=subscription)

    async def seal(self, segment: str, change_id: str) -> Seal:
        """Has the owner seal a segment for a layout change. Raises `NotOwner`, and the owner's error."""
        command = pb.Command(seal_segment=pb.SealSegment(segment=segment, change_id=change_id))
        answer = (await self._call(self._owner_of(segment), command)).seal_segment_ok
        return Seal(_position(answer.end), answer.ledger_revision, answer.ownership_epoch)

    async def forgotten(self, segment: str) -> bool:
        """Whether a sealed segment may be pruned. Raises `NotOwner`, and the owner's error."""
        return bool((await self.ask_owner(segment, "segment.forgotten"))["forgotten"])

    async def ask_owner(self, segment: str, what: str, **args: Any) -> dict[str, Any]:
        """Asks the owner of `segment` (its path) an admin question. Raises `NotOwner`, and the owner's error."""
        return await self.ask(self._owner_of(segment), what, segment=segment, **args)

    async def ask(self, address: str, what: str, **args: Any) -> dict[str, Any]:
        """Asks the process at `address` an admin question."""
        request = pb.AdminRequest(what=what, args_json=msgspec.json.encode({"v": 1, **args}).decode())
        reply = await self._call(address, pb.Command(admin_request=request))
        answer: dict[str, Any] = msgspec.json.decode(reply.admin_reply.reply_json)
        return answer

    async def close(self) -> None:
        await cancel_all(list(self._opening.values()))
        callers, self._callers = self._callers, {}
        for caller in callers.values():
            await caller.close()

    def _owner_of(self, segment: str) -> str:
        owner = self._directory.owner(segment)
        if owner is None:
            raise NotOwner(f"segment://{segment} has no owner at the moment; try again in a few seconds")
        return owner.address

    async def _call(self, address: str, command: pb.Command) -> pb.Command:
        caller = self._callers.get(address)
        if caller is None or caller.closed:
            caller = await self._opened(address)
        return await caller.call(command, timeout_s=CALL_TIMEOUT_S)

    async def _opened(self, address: str) -> Caller:
        """▲ All callers that wait for an address share one attempt: with one attempt after the other, an unreachable
        broker that owns many segments would delay the questions to all other brokers for minutes."""
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = errand(self._open(address), name="connecting", of=address)
            opening.add_done_callback(lambda _: self._opening.pop(address))
        return await asyncio.shield(opening)

    async def _open(self, address: str) -> Caller:
        hello = pb.Hello(protocol_version=PROTOCOL_VERSION, client_name=self._name, session_id=self._session_id)
        caller = self._callers[address] = await Caller.open(
            self._transport, address, hello, clock=self._clock, on_push=lambda _: None, timeout_s=CALL_TIMEOUT_S
        )
        return caller


def _position(position: pb.Position) -> Position:
    return Position(position.ledger_id, position.entry_id)


def _txn_id(bits: pb.TxnIdBits | pb.AbortedWriter) -> TxnId:
    return TxnId.from_bits(bits.txnid_most_bits, bits.txnid_least_bits)
