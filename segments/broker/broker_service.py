"""Answers a broker's commands on the wire: producing, consuming, acks, positions, statistics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

import msgspec

from segments.broker.broker import Broker
from segments.broker.consuming import ConsumingService
from segments.log.sends.sending import IncomingEntry
from segments.log.tail_cache import large_value_key
from segments.owner.names import take_name
from segments.owner.producers import ProducerSession
from segments.owner.scanning import PAGE_ENTRIES, scan
from segments.owner.segment import Segment
from segments.owner.segment_cuts import READER_PATIENCE_S
from segments.subscription.starts import before_timestamp
from txnwire.bounds import MAX_ID, MAX_TIME_MS
from txnwire.entry import parse_metadata, verify
from txnwire.errors import ConnectionLost, InvalidArgument, MessageTooLarge, TxnError, to_wire
from txnwire.ids import Position, TxnId
from txnwire.names import SegmentName, validate_name
from txnwire.numbers import Numbers, numbers_of, steps_of
from txnwire.proto import txn_pb2 as pb
from txnwire.protocol import MAX_BLOCK_BYTES, MAX_CHUNKED_BYTES, MAX_DELAY_MS, MAX_ENTRY_BYTES
from txnwire.transport.serving import Handler, Peer
from txnwire.turns import in_turns

CLOCKS_APART_MS: Final = 86_400_000
"""The most by which the wall clocks of a producer and a broker may differ."""

AdminAnswer = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]

_OK = pb.Command(ok=pb.Ok())

RATES_OVER_S: Final = 0.5
"""How long an owner counts incoming messages to answer a question about rates."""


class _SendReply:
    """Answers one `send`. Implements `sending.SendReply`."""

    __slots__ = ("_peer", "_producer_id", "_request_id")

    def __init__(self, peer: Peer, request_id: int, producer_id: int) -> None:
        self._peer = peer
        self._request_id = request_id
        self._producer_id = producer_id

    def stored(self, position: Position | None, *, duplicate: bool) -> None:
        ledger_id, entry_id = position if position is not None else (0, -1)
        reply = pb.SendOk(producer_id=self._producer_id, ledger_id=ledger_id, entry_id=entry_id, duplicate=duplicate)
        self._peer.reply(self._request_id, pb.Command(send_ok=reply))

    def failed(self, error: TxnError) -> None:
        self._peer.fail(self._request_id, error)


class _Producing:
    __slots__ = ("incarnation", "name", "name_epoch", "session")

    def __init__(self, name: str, incarnation: int, session: ProducerSession, name_epoch: int) -> None:
        self.name = name
        self.incarnation = incarnation
        self.session = session
        self.name_epoch = name_epoch


class _Opening:
    """A producer that is being opened. `closed`: its peer has closed it already."""

    closed = False


class _Connection:
    """Holds the producers that one peer has open here, by the ids it chose."""

    def __init__(self) -> None:
        self.producers: dict[int, _Producing] = {}
        self.opening: dict[int, _Opening] = {}


class BrokerService:
    """A broker's `txnwire.transport.serving.Service`. Pushes: deliver, rewind, end_of_segment, consumer_closed,
    producer_closed.

    `flow`, `close_producer` and `close_consumer` may be pushes (request id 0) or requests (answered with Ok).
    `admin` answers `admin_request`s by their `what`: "segment.stats" {"segment"?: path} → {"segments": {path: …}},
    "subscription.stats" {"segment": path, "subscription"?: name} → {"subscriptions": {name: …}}, "broker.stats" {},
    "segment.users" {"segment": path, "subscription"?: name} → {"producers": n, "consumers": n}, "subscription.drop"
    {"segment": path, "subscription": name} (one with a deletion mark), "segment.forgotten" {"segment": path} →
    {"forgotten": whether it holds nothing that prevents pruning}, "subscription.lag" {"segment": path, "subscription"?:
    name} → {"lags": {name: {"messages", "oldest_ms"}}}, null for what is not known, "subscription.position"
    {"segment": path, "subscription": name} → {"position": [ledger id, entry id, index]} of the first unacked message.
    Values are the frozen statistics; positions and transaction ids are arrays of two numbers.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._connections: dict[Peer, _Connection] = {}
        self._consuming = ConsumingService(broker)
        self.handlers: Mapping[str, Handler] = {
            **self._consuming.handlers,
            "open_producer": self._open_producer,
            "take_name": self._take_name,
            "send": self._send,
            "close_producer": self._close_producer,
            "segment_positions": self._segment_positions,
            "segment_cut": self._segment_cut,
            "scan_entries": self._scan_entries,
            "seal_segment": self._seal_segment,
        }
        self.admin: Mapping[str, AdminAnswer] = {
            "segment.stats": self._segment_stats,
            "subscription.stats": self._subscription_stats,
            "subscription.lag": self._subscription_lag,
            "subscription.position": self._subscription_position,
            "segment.users": self._segment_users,
            "subscription.drop": self._drop_subscription,
            "segment.forgotten": self._segment_forgotten,
            "broker.stats": self._broker_stats,
        }

    def disconnected(self, peer: Peer) -> None:
        self._consuming.disconnected(peer)
        connection = self._connections.pop(peer, None)
        if connection is not None:
            for producing in connection.producers.values():
                producing.session.close()

    def _connection(self, peer: Peer) -> _Connection:
        connection = self._connections.get(peer)
        if connection is None:
            connection = self._connections[peer] = _Connection()
        return connection

    # ---- producing --------------------------------------------------------------------------------------------------

    def _open_producer(self, peer: Peer, command: pb.Command) -> Coroutine[object, object, pb.Command]:
        """▲ Known before it is open: its peer may close it until then, and only once."""
        opening = _Opening()
        self._connection(peer).opening[command.open_producer.producer_id] = opening
        return self._opened(peer, command.open_producer, opening)

    async def _opened(self, peer: Peer, request: pb.OpenProducer, opening: _Opening) -> pb.Command:
        try:
            return await self._open(peer, request, opening)
        finally:
            others = self._connections[peer].opening if peer in self._connections else {}
            if others.get(request.producer_id) is opening:
                del others[request.producer_id]

    async def _open(self, peer: Peer, request: pb.OpenProducer, opening: _Opening) -> pb.Command:
        path = SegmentName.from_path(request.segment).path
        name = validate_name(request.name, part="producer name")
        segment = await self._broker.segment(path)
        if opening.closed:
            raise ConnectionLost(f"producer id {request.producer_id} was closed before it was open")
        producers = self._connection(peer).producers
        earlier = producers.get(request.producer_id)
        if earlier is not None and earlier.session.error is None:
            raise InvalidArgument(f"producer id {request.producer_id} is open already on this connection")

        def closed(error: TxnError, last_sequence_id: int) -> None:
            push = pb.ProducerClosed(
                producer_id=request.producer_id, error=to_wire(error), last_sequence_id=last_sequence_id
            )
            peer.push(pb.Command(producer_closed=push))

        if segment.ledgers.sealed:
            last = segment.last_sequence_id(name, request.incarnation)
            answer = pb.OpenProducerOk(last_sequence_id=last, ownership_epoch=segment.epoch, sealed=True)
            return pb.Command(open_producer_ok=answer)
        session, last = segment.open_producer(name, request.incarnation, closed, request.name_epoch)
        producers[request.producer_id] = _Producing(name, request.incarnation, session, request.name_epoch)
        answer = pb.OpenProducerOk(
            last_sequence_id=last, ownership_epoch=segment.epoch, numbered=request.name_epoch > 0
        )
        return pb.Command(open_producer_ok=answer)

    async def _take_name(self, _: Peer, command: pb.Command) -> pb.Command:
        request = command.take_name
        name = validate_name(request.name, part="producer name")
        segment = await self._broker.segment(SegmentName.from_path(request.segment).path)
        if not request.name_epoch:
            raise InvalidArgument(f"the name of producer {name} is taken under epoch 0: expected 1 or more")
        taken = await take_name(segment, name, request.name_epoch, request.incarnation)
        answer = pb.TakeNameOk(
            taken=taken.taken,
            name_epoch=taken.epoch,
            sealed=taken.sealed,
            all_below=taken.known.all_below,
            id_steps=steps_of(taken.known.ids),
        )
        return pb.Command(take_name_ok=answer)

    def _send(self, peer: Peer, command: pb.Command) -> None:
        send = command.send
        connection = self._connections.get(peer)
        producing = None if connection is None else connection.producers.get(send.producer_id)
        if producing is None:
            raise InvalidArgument(f"producer id {send.producer_id} is not open on this connection: open it first")
        entry = _checked_entry(send, producing)
        if entry.deliver_at_ms:
            _check_delivery(entry.deliver_at_ms, self._broker.wall_ms())
        producing.session.send(entry, _SendReply(peer, command.request_id, send.producer_id))

    def _close_producer(self, peer: Peer, command: pb.Command) -> pb.Command:
        connection, closed_id = self._connection(peer), command.close_producer.producer_id
        producing = connection.producers.pop(closed_id, None)
        if producing is not None:
            producing.session.close()
        if (opening := connection.opening.get(closed_id)) is not None:
            opening.closed = True
        return _OK

    # ---- positions, statistics --------------------------------------------------------------------------------------

    async def _segment_positions(self, _: Peer, command: pb.Command) -> pb.Command:
        request = command.segment_positions
        segment = await self._broker.segment(SegmentName.from_path(request.segment).path)
        if request.min_revision:
            await segment.wait_followed(request.min_revision, patience_s=READER_PATIENCE_S)
        before_time: pb.Position | None = None
        if request.timestamp_ms:
            try:
                before_time = _position(await before_timestamp(request.timestamp_ms, segment.ledgers))
            except InvalidArgument:
                segment.check()  # ▲ a later owner may have deleted the files of trimmed ledgers
                raise
        segment.check()
        resolved = segment.cuts.begin() if request.for_cut else segment.buffer.max_read_position
        return pb.Command(
            segment_positions_ok=pb.SegmentPositionsOk(
                max_read_position=_position(resolved),
                last_confirmed=_position(segment.buffer.last_confirmed),
                ownership_epoch=segment.epoch,
                sealed=segment.ledgers.sealed,
                before_timestamp=before_time,
            )
        )

    async def _segment_cut(self, _: Peer, command: pb.Command) -> pb.Command:
        request = command.segment_cut
        segment = await self._broker.segment(SegmentName.from_path(request.segment).path)
        cut = await segment.cuts.answer(
            request.revision, Position(request.resolved.ledger_id, request.resolved.entry_id)
        )
        answer = pb.SegmentCutOk(ownership_epoch=segment.epoch, end=_position(cut.end))
        async for undecided in in_turns(cut.undecided):
            answer.undecided.extend(
                pb.TxnIdBits(txnid_most_bits=txn_id.most_bits, txnid_least_bits=txn_id.least_bits)
                for txn_id in undecided
            )
        async for aborted in in_turns(cut.aborted):
            answer.aborted.extend(_aborted_writer(txn_id, writer) for txn_id, writer in aborted)
        return pb.Command(segment_cut_ok=answer)

    async def _scan_entries(self, _: Peer, command: pb.Command) -> pb.Command:
        request = command.scan_entries
        segment = await self._broker.segment(SegmentName.from_path(request.segment).path)
        if request.min_revision:
            await segment.wait_followed(request.min_revision)
        page = await scan(
            segment,
            Position(request.after.ledger_id, request.after.entry_id),
            Position(request.end.ledger_id, request.end.entry_id),
            max_entries=min(request.max_entries or PAGE_ENTRIES, PAGE_ENTRIES),
            skip_trimmed=request.trimmed == pb.TRIMMED_DATA_SKIP,
            read_bytes=segment.dispatcher.shares.read_bytes,
        )
        answer = pb.ScanEntriesOk(through=_position(page.through), ended=page.ended)
        if request.columns:
            answer.columns.CopyFrom(page.heads.columns())
        else:
            answer.heads.extend(page.heads.one_by_one())
        return pb.Command(scan_entries_ok=answer)

    async def _seal_segment(self, _: Peer, command: pb.Command) -> pb.Command:
        request = command.seal_segment
        segment = await self._broker.segment(SegmentName.from_path(request.segment).path)
        seal = await segment.sealing.seal(request.change_id)
        return pb.Command(
            seal_segment_ok=pb.SealSegmentOk(
                end=_position(seal.end), ledger_revision=seal.ledger_revision, ownership_epoch=seal.epoch
            )
        )

    async def _segment_stats(self, args: Mapping[str, Any]) -> dict[str, Any]:
        path = args.get("segment")
        segments = [await self._broker.segment(str(path))] if path else list(self._broker.segments.values())
        recent = await _rates(segments) if args.get("rates") else {}
        return {
            "segments": {
                one.path: msgspec.to_builtins(one.statistics())
                | ({"recent": recent[one.path]} if one.path in recent else {})
                for one in segments
            }
        }

    async def _subscription_stats(self, args: Mapping[str, Any]) -> dict[str, Any]:
        segment = await self._broker.segment(str(args.get("segment", "")))
        name = args.get("subscription")
        found = {one.name: one for one in segment.statistics().subscriptions if name is None or one.name == name}
        return {"segment": segment.path, "subscriptions": msgspec.to_builtins(found)}

    async def _subscription_lag(self, args: Mapping[str, Any]) -> dict[str, Any]:
        segment = await self._broker.segment(str(args.get("segment", "")))
        name = args.get("subscription")
        found = await segment.subscriptions.lags.told(None if name is None else str(name), self._broker.lag_budget())
        return {"segment": segment.path, "lags": {one: lag._asdict() for one, lag in found.items()}}

    async def _subscription_position(self, args: Mapping[str, Any]) -> dict[str, Any]:
        segment = await self._broker.segment(str(args.get("segment", "")))
        position, index = await segment.subscriptions.lags.standing(str(args.get("subscription", "")))
        return {"segment": segment.path, "position": [*position, index]}

    async def _segment_users(self, args: Mapping[str, Any]) -> dict[str, Any]:
        segment = await self._broker.segment(str(args.get("segment", "")))
        producers, consumers = segment.users(args.get("subscription"))
        return {"producers": producers, "consumers": consumers}

    async def _segment_forgotten(self, args: Mapping[str, Any]) -> dict[str, Any]:
        segment = await self._broker.segment(str(args.get("segment", "")))
        return {"forgotten": await segment.forgotten()}

    async def _drop_subscription(self, args: Mapping[str, Any]) -> dict[str, Any]:
        segment = await self._broker.segment(str(args.get("segment", "")))
        await segment.subscriptions.drop(validate_name(str(args.get("subscription", "")), part="subscription"))
        return {}

    async def _broker_stats(self, _: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = msgspec.to_builtins(self._broker.statistics())
        return answer


async def _rates(segments: Sequence[Segment]) -> dict[str, dict[str, float]]:
    """Measure the incoming rates per second now, by segment: when load has just begun, or right after a split, the
    published minute (`/load`) does not show it yet."""
    loop = asyncio.get_running_loop()
    measured = [one for one in segments if one.takes_writes]
    if not measured:
        return {}
    began, before = loop.time(), [one.taken_in for one in measured]
    await asyncio.sleep(RATES_OVER_S)
    passed_s = loop.time() - began
    return {
        one.path: {
            "messages_per_s": round((one.taken_in.messages - then.messages) / passed_s, 1),
            "bytes_per_s": round((one.taken_in.bytes - then.bytes) / passed_s, 1),
        }
        for one, then in zip(measured, before, strict=True)
    }


def _aborted_writer(txn_id: TxnId, writer: int | None) -> pb.AbortedWriter:
    return pb.AbortedWriter(
        txnid_most_bits=txn_id.most_bits,
        txnid_least_bits=txn_id.least_bits,
        writer=writer or 0,
        whole=writer is None,
    )


def _position(position: Position) -> pb.Position:
    return pb.Position(ledger_id=position.ledger_id, entry_id=position.entry_id)


def _check_numbers(metadata: pb.EntryMetadata) -> None:
    """▲ Every reader computes with the stored numbers: a number beyond its bound would make all readers fail as long as
    the entry exists."""
    if metadata.publish_time_ms > MAX_TIME_MS:
        raise InvalidArgument(f"an entry published at {metadata.publish_time_ms} ms: expected at most {MAX_TIME_MS}")
    if metadata.block_bytes > MAX_BLOCK_BYTES:
        raise InvalidArgument(f"a block of {metadata.block_bytes} bytes: expected at most {MAX_BLOCK_BYTES}")
    if metadata.chunk_count and not (
        metadata.chunk_count <= max(metadata.chunk_total, 1)
        and metadata.chunk_total <= MAX_CHUNKED_BYTES
        and 0 <= metadata.chunk_id <= metadata.sequence_id
    ):
        raise InvalidArgument(
            f"a piece of a value of {metadata.chunk_total} bytes in {metadata.chunk_count} pieces, the first at "
            f"{metadata.chunk_id}: expected at most {MAX_CHUNKED_BYTES} bytes, and a byte a piece at least"
        )


def _check_delivery(deliver_at_ms: int, now_ms: int) -> None:
    """▲ Judge by the broker's clock: a producer's clock that is years ahead would hold up a queue for years."""
    if deliver_at_ms > now_ms + MAX_DELAY_MS + CLOCKS_APART_MS:
        raise InvalidArgument(
            f"to be delivered at {deliver_at_ms} ms, where the broker's clock says {now_ms}: expected at most "
            f"{MAX_DELAY_MS} ms later; are the clocks right?"
        )


def _checked_entry(send: pb.Send, producing: _Producing) -> IncomingEntry:
    """▲ The entry must say the same as its send: an entry whose header names another transaction than its op record
    would belong to that other transaction after recovery."""
    data = send.entry
    if len(data) > MAX_ENTRY_BYTES:
        raise MessageTooLarge(f"an entry of {len(data)} bytes: at most {MAX_ENTRY_BYTES} are allowed")
    verify(data, error=InvalidArgument)
    metadata = parse_metadata(data, error=InvalidArgument)
    if (
        metadata.sequence_id != send.sequence_id
        or metadata.count != send.count
        or metadata.txnid_least_bits != send.txnid_least_bits
        or metadata.txnid_most_bits != send.txnid_most_bits
        or metadata.writer != send.writer
        or metadata.incarnation != producing.incarnation
        or metadata.producer != producing.name
        or send.count < 1
        or send.sequence_id < 0
    ):
        raise InvalidArgument(
            f"the entry at sequence id {send.sequence_id} does not match its send: producer, incarnation, sequence id, "
            "count, transaction and writer must be the same in both"
        )
    _check_numbers(metadata)
    numbers = _checked_ids(metadata, producing)
    if metadata.chunk_count and not (
        send.txnid_least_bits and send.count == 1 and metadata.chunk_index < metadata.chunk_count
    ):
        raise InvalidArgument(
            "a piece of a large value must be the only message of its entry and belong to a transaction"
        )
    txn_id = TxnId.from_bits(send.txnid_most_bits, send.txnid_least_bits) if send.txnid_least_bits else None
    previous, large_value = send.previous_sequence_id, large_value_key(metadata)
    return IncomingEntry(
        producing.name,
        send.sequence_id,
        send.count,
        previous,
        txn_id,
        send.writer,
        data,
        metadata.publish_time_ms,
        large_value,
        numbers,
        metadata.deliver_at_ms,
    )


def _checked_ids(metadata: pb.EntryMetadata, producing: _Producing) -> Numbers | None:
    """The ids of a numbered producer's messages. ▲ An entry without them would never count as stored."""
    if metadata.name_epoch != producing.name_epoch:
        raise InvalidArgument(
            f"an entry under name epoch {metadata.name_epoch} of producer {producing.name}, which is open under "
            f"{producing.name_epoch}: both must be the same"
        )
    numbers = numbers_of(metadata)
    if numbers is None:
        return None
    if metadata.txnid_least_bits:
        raise InvalidArgument("a numbered producer sends outside transactions: its ids would count if it aborts")
    ids = numbers.ids
    if len(ids) != metadata.count or not 0 <= numbers.all_below <= min(ids) or max(ids) > MAX_ID:
        raise InvalidArgument(
            f"{len(ids)} ids of {metadata.count} messages, all below {numbers.all_below} stored: expected one a "
            f"message, from there to {MAX_ID}"
        )
    return numbers
