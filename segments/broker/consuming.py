"""Answers the commands of consumers and readers on the wire: attaching, permits, acks, nacks, seeks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial

from segments.broker.broker import Broker
from segments.layout.assignment import consumer_id
from segments.owner.segment import Segment
from segments.subscription.dispatch import Delivery, Isolation
from segments.subscription.queue_subscription import AttachedConsumer, QueueSubscription
from segments.subscription.starts import Start
from segments.subscription.subscriptions import Acker, Subscription
from txnwire.errors import ConnectionLost, InvalidArgument, NotAllowed, OutcomeUnknown, Timeout, TxnError, to_wire
from txnwire.ids import Position, TxnId
from txnwire.names import SegmentName, validate_name
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.serving import Handler, Peer
from watchers import acks

_OK = pb.Command(ok=pb.Ok())
CLOSED_KEPT = 64
"""The most closed consumers per connection whose errors are kept."""


class _ConsumerSink:
    """Implements `dispatch.DeliverySink` over one connection. `tells_passed`: False for older clients."""

    def __init__(self, peer: Peer, consumer_id: int, shown_revision: Callable[[], int], *, tells_passed: bool) -> None:
        self._peer = peer
        self._consumer_id = consumer_id
        self._shown_revision = shown_revision
        self._tells_passed = tells_passed
        self.error: TxnError | None = None

    @property
    def closed(self) -> bool:
        return self._peer.closed

    @property
    def pending_bytes(self) -> int:
        return self._peer.pending_bytes

    async def drain(self, below_bytes: int) -> None:
        await self._peer.drain(below_bytes)

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        entries = [
            pb.DeliveredEntry(
                ledger_id=one.position.ledger_id,
                entry_id=one.position.entry_id,
                entry=one.data,
                skip=one.skip,
                redelivery_count=one.redelivery_count,
            )
            for one in deliveries
        ]
        # ▲ Without the revision, a reader opened elsewhere afterwards might not know this message's transaction yet.
        revision = self._shown_revision()
        deliver = pb.Deliver(consumer_id=self._consumer_id, entries=entries, revision=revision)
        self._peer.push(pb.Command(deliver=deliver))

    def passed(self, through: Position) -> None:
        if self._tells_passed:
            deliver = pb.Deliver(consumer_id=self._consumer_id, revision=self._shown_revision())
            deliver.passed.ledger_id, deliver.passed.entry_id = through
            self._peer.push(pb.Command(deliver=deliver))

    def sharing(self, told: int) -> None:
        self._peer.push(pb.Command(deliver=pb.Deliver(consumer_id=self._consumer_id, sharing=told)))

    def rewind(self) -> None:
        self._peer.push(pb.Command(rewind=pb.Rewind(consumer_id=self._consumer_id)))

    def end_of_segment(self, *, sealed: bool) -> None:
        self._peer.push(pb.Command(end_of_segment=pb.EndOfSegment(consumer_id=self._consumer_id, sealed=sealed)))

    def consumer_closed(self, error: TxnError) -> None:
        self.error = error
        closed = pb.ConsumerClosed(consumer_id=self._consumer_id, error=to_wire(error))
        self._peer.push(pb.Command(consumer_closed=closed))


class _Consuming:
    """Holds one consumer of one connection. `subscription` and `acker` are None for a reader."""

    def __init__(
        self,
        sink: _ConsumerSink,
        *,
        flow: Callable[[pb.Flow], None],
        close: Callable[[], None],
        leave: Callable[[], None] | None = None,
        subscription: Subscription | None = None,
        acker: Acker | None = None,
    ) -> None:
        """`close`: called if its connection is lost; `leave`: called if the client closes it."""
        self.sink = sink
        self.flow = flow
        self.close = close
        self.leave = leave or close
        self.subscription = subscription
        self.acker = acker


class _Attaching:
    """A consumer that is being attached. `closed`: its peer has closed it already."""

    closed = False


class ConsumingService:
    """The part of `BrokerService` for consumers. Pushes: deliver, rewind, end_of_segment, consumer_closed.

    `flow`, `nack` and `close_consumer` may be pushes (request id 0) or requests (answered with Ok)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._connections: dict[Peer, dict[int, _Consuming]] = {}
        """The consumers that each peer has open here, by the ids it chose."""
        self._attaching: dict[Peer, dict[int, _Attaching]] = {}
        """The consumers being attached, by peer and id."""
        self.handlers: Mapping[str, Handler] = {
            "subscribe": self._subscribe,
            "flow": self._flow,
            "ack": self._ack,
            "nack": self._nack,
            "seek": self._seek,
            "close_consumer": self._close_consumer,
        }

    def disconnected(self, peer: Peer) -> None:
        for consuming in self._connections.pop(peer, {}).values():
            consuming.close()
        self._attaching.pop(peer, None)

    # ---- attaching --------------------------------------------------------------------------------------------------

    def _subscribe(self, peer: Peer, command: pb.Command) -> Coroutine[object, object, pb.Command]:
        """▲ Register the consumer before it is attached: a peer that leaves may close it before then, and only once.
        ▲ One at a time under an id: of two, the first would keep its messages, with nobody to close it."""
        consumer_id = command.subscribe.consumer_id
        earlier = self._connections.get(peer, {}).get(consumer_id)
        others = self._attaching.setdefault(peer, {})
        under_way = others.get(consumer_id)
        if (earlier is not None and earlier.sink.error is None) or (under_way is not None and not under_way.closed):
            raise InvalidArgument(f"consumer id {consumer_id} is open already on this connection: choose another one")
        attaching = others[consumer_id] = _Attaching()
        return self._subscribed(peer, command.subscribe, attaching)

    async def _subscribed(self, peer: Peer, request: pb.Subscribe, attaching: _Attaching) -> pb.Command:
        try:
            consuming, segment = await self._attached(peer, request)
        finally:
            others = self._attaching.get(peer, {})
            if others.get(request.consumer_id) is attaching:
                del others[request.consumer_id]
        if attaching.closed:
            consuming.leave()
            raise ConnectionLost(f"consumer id {request.consumer_id} was closed before it was attached")
        consumers = self._connections.setdefault(peer, {})
        _forget_closed(consumers)
        consumers[request.consumer_id] = consuming
        seeks = 0 if consuming.subscription is None else consuming.subscription.received_under
        return pb.Command(subscribe_ok=pb.SubscribeOk(ownership_epoch=segment.epoch, seeks=seeks))

    async def _attached(self, peer: Peer, request: pb.Subscribe) -> tuple[_Consuming, Segment]:
        path = SegmentName.from_path(request.segment).path
        isolation = _isolation(request)
        self._broker.check_store(request.store)
        segment = await self._broker.segment(path)
        sink = _ConsumerSink(
            peer, request.consumer_id, lambda: segment.shown_revision, tells_passed=request.tells_passed
        )
        if not request.subscription:
            consuming = await _attach_reader(segment, sink, request, isolation)
        elif request.type == pb.SUBSCRIPTION_TYPE_STREAM:
            consuming = await _attach_to_stream(segment, sink, request, isolation)
        elif request.type == pb.SUBSCRIPTION_TYPE_QUEUE:
            consuming = await _attach_to_queue(segment, sink, request, isolation)
        else:
            raise InvalidArgument(f"subscription type {request.type} is unknown: expected stream or queue")
        return consuming, segment

    def _consuming(self, peer: Peer, consumer_id: int) -> _Consuming:
        consuming = self._connections.get(peer, {}).get(consumer_id)
        if consuming is None:
            raise InvalidArgument(f"consumer id {consumer_id} is not open on this connection: subscribe first")
        if consuming.sink.error is not None:
            raise consuming.sink.error
        return consuming

    def _flow(self, peer: Peer, command: pb.Command) -> pb.Command | None:
        flow = command.flow
        consuming = self._connections.get(peer, {}).get(flow.consumer_id)
        if consuming is None or consuming.sink.error is not None:
            return None if not command.request_id else _OK  # closed while this was in flight
        consuming.flow(flow)
        return _OK

    def _close_consumer(self, peer: Peer, command: pb.Command) -> pb.Command:
        closed_id = command.close_consumer.consumer_id
        consuming = self._connections.get(peer, {}).pop(closed_id, None)
        if consuming is not None:
            consuming.leave()
        if (attaching := self._attaching.get(peer, {}).get(closed_id)) is not None:
            attaching.closed = True
        return _OK

    # ---- acks -------------------------------------------------------------------------------------------------------

    def _ack(self, peer: Peer, command: pb.Command) -> pb.Command | None:
        ack = command.ack
        consuming = self._consuming(peer, ack.consumer_id)
        subscription, acker = consuming.subscription, consuming.acker
        if subscription is None or acker is None:
            raise NotAllowed("a reader keeps its own position: it has nothing to ack")
        positions = acks.from_wire(ack.positions)
        if not ack.txnid_least_bits:
            subscription.ack(positions, acker, cumulative=ack.cumulative)
            return _OK
        request_id = command.request_id

        def done(error: TxnError | None) -> None:
            if error is None:
                peer.reply(request_id, _OK)
            else:
                peer.fail(request_id, error)

        txn_id = TxnId.from_bits(ack.txnid_most_bits, ack.txnid_least_bits)
        subscription.ack_in(txn_id, ack.writer, positions, acker, cumulative=ack.cumulative, reply=done)
        return None

    def _nack(self, peer: Peer, command: pb.Command) -> pb.Command | None:
        nack = command.nack
        consuming = self._connections.get(peer, {}).get(nack.consumer_id)
        if consuming is None or consuming.sink.error is not None:
            return None if not command.request_id else _OK  # gone: all its messages are redelivered already
        subscription, consumer = consuming.subscription, consuming.acker
        if not isinstance(subscription, QueueSubscription) or not isinstance(consumer, AttachedConsumer):
            raise NotAllowed("only messages of a queue subscription can be nacked: a stream delivers in order")
        positions = acks.from_wire(nack.positions)
        subscription.nack(consumer, positions, delay_ms=nack.delay_ms, counted=not nack.unbegun)
        return _OK

    # ---- seek -------------------------------------------------------------------------------------------------------

    async def _seek(self, _: Peer, command: pb.Command) -> pb.Command:
        request = command.seek
        segment = await self._broker.segment(SegmentName.from_path(request.segment).path)
        name = validate_name(request.subscription, part="subscription name")
        try:
            await segment.subscriptions.seek(name, Start.from_wire(request.start))
        except OutcomeUnknown as error:
            raise Timeout(f"seeking {name} on {segment.path}: not confirmed by the store yet, repeat it") from error
        return _OK


def _forget_closed(consumers: dict[int, _Consuming]) -> None:
    """Keep only the last closed consumers: later commands for them are answered with their errors."""
    closed = [closed_id for closed_id, one in consumers.items() if one.sink.error is not None]
    for closed_id in closed[:-CLOSED_KEPT]:
        consumers.pop(closed_id).close()


async def _attach_reader(
    segment: Segment, sink: _ConsumerSink, request: pb.Subscribe, isolation: Isolation
) -> _Consuming:
    end = Position(request.end.ledger_id, request.end.entry_id) if request.HasField("end") else None
    consumer = await segment.attach_reader(
        sink,
        start=Start.from_wire(request.start),
        end=end,
        min_revision=request.min_revision,
        isolation=isolation,
        of_snapshot=bool(request.store),
        whole=_WHOLE.get(request.trimmed),
        permits_are_kib=request.permits_are_kib,
    )
    dispatcher = segment.dispatcher

    def flow(granted: pb.Flow) -> None:
        dispatcher.add_permits(consumer, granted.permits, granted.min_revision)

    return _Consuming(sink, flow=flow, close=partial(dispatcher.detach, consumer))


async def _attach_to_stream(
    segment: Segment, sink: _ConsumerSink, request: pb.Subscribe, isolation: Isolation
) -> _Consuming:
    subscription, consumer = await segment.subscriptions.attach(
        sink,
        subscription=validate_name(request.subscription, part="subscription name"),
        holder=_holder(request),
        assignment_epoch=request.assignment_epoch,
        min_revision=request.min_revision,
        isolation=isolation,
        after_abort=request.after_abort,
    )

    def flow(granted: pb.Flow) -> None:
        segment.dispatcher.add_permits(consumer, granted.permits, granted.min_revision)

    return _Consuming(
        sink,
        flow=flow,
        close=partial(subscription.detach, consumer),
        subscription=subscription,
        acker=consumer,
    )


async def _attach_to_queue(
    segment: Segment, sink: _ConsumerSink, request: pb.Subscribe, isolation: Isolation
) -> _Consuming:
    subscription, consumer = await segment.subscriptions.attach_to_queue(
        sink,
        subscription=validate_name(request.subscription, part="subscription name"),
        holder=_holder(request),
        min_revision=request.min_revision,
        isolation=isolation,
        may_share=request.shares,
    )

    def flow(granted: pb.Flow) -> None:
        if granted.revoke:
            subscription.void_permits(consumer)
        subscription.add_permits(consumer, granted.permits, granted.min_revision, granted.sharing)

    return _Consuming(
        sink,
        flow=flow,
        close=partial(subscription.detach, consumer),
        leave=partial(subscription.detach, consumer, counted=False),
        subscription=subscription,
        acker=consumer,
    )


def _holder(request: pb.Subscribe) -> str:
    return consumer_id(validate_name(request.consumer, part="consumer name"), request.incarnation)


_WHOLE: Mapping[int, bool] = {pb.TRIMMED_DATA_REFUSE: True, pb.TRIMMED_DATA_SKIP: False}

_ISOLATIONS: Mapping[int, Isolation] = {
    pb.ISOLATION_READ_COMMITTED: Isolation.READ_COMMITTED,
    pb.ISOLATION_READ_UNCOMMITTED: Isolation.READ_UNCOMMITTED,
    pb.ISOLATION_SNAPSHOT: Isolation.SNAPSHOT,
}


def _isolation(request: pb.Subscribe) -> Isolation:
    found = _ISOLATIONS.get(request.isolation)
    if found is None:
        raise InvalidArgument(f"isolation {request.isolation} is unknown: expected read_committed or read_uncommitted")
    if found is Isolation.SNAPSHOT and (request.subscription or not request.HasField("end")):
        raise InvalidArgument("isolation snapshot is for readers that name the end they read to")
    return found
