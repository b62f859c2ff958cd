"""Answers the controller's commands on the wire. Any other process answers `NotOwner`, naming the elected one."""

from __future__ import annotations

from collections.abc import Mapping

from segments.controller.controller import Controller
from segments.layout.layout_transitions import LayoutChanged
from txnwire.errors import InvalidArgument
from txnwire.names import SegmentName, TopicName, validate_name
from txnwire.proto import txn_pb2 as pb
from txnwire.snapshot import written_in_steps
from txnwire.transport.calls import Handler, Peer
from txnwire.turns import taking_turns


class ControllerService:
    """Handles commands that change topics, layouts and subscriptions, and `TakeSnapshot`."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._handlers: dict[str, Handler] = {
            "create_topic": self._create_topic,
            "update_topic": self._update_topic,
            "delete_topic": self._delete_topic,
            "delete_subscription": self._delete_subscription,
            "join_subscription": self._join_subscription,
            "leave_subscription": self._leave_subscription,
            "register_producer": self._register_producer,
            "take_snapshot": self._take_snapshot,
            "split_segment": self._split_segment,
            "merge_segments": self._merge_segments,
        }

    @property
    def handlers(self) -> Mapping[str, Handler]:
        return self._handlers

    def disconnected(self, peer: Peer) -> None:
        self._controller.disconnected(peer)

    async def _create_topic(self, peer: Peer, command: pb.Command) -> pb.Command:
        request = command.create_topic
        await self._controller.create_topic(TopicName.parse(request.topic), request.segments, request.policies_json)
        return pb.Command(ok=pb.Ok())

    async def _update_topic(self, peer: Peer, command: pb.Command) -> pb.Command:
        request = command.update_topic
        topic = TopicName.parse(request.topic)
        if request.ask:
            return pb.Command(life=pb.Life(life=await self._controller.topic_life(topic)))
        await self._controller.update_topic(topic, request.policies_json, life=request.life)
        return pb.Command(ok=pb.Ok())

    async def _delete_topic(self, peer: Peer, command: pb.Command) -> pb.Command:
        request = command.delete_topic
        topic = TopicName.parse(request.topic)
        if request.ask:
            return pb.Command(life=pb.Life(life=await self._controller.topic_life(topic)))
        await self._controller.delete_topic(topic, force=request.force, life=request.life)
        return pb.Command(ok=pb.Ok())

    async def _delete_subscription(self, peer: Peer, command: pb.Command) -> pb.Command:
        request = command.delete_subscription
        topic, name = TopicName.parse(request.topic), validate_name(request.subscription, part="subscription")
        if request.ask:
            return pb.Command(life=pb.Life(life=await self._controller.subscription_life(topic, name)))
        await self._controller.delete_subscription(topic, name, force=request.force, life=request.life)
        return pb.Command(ok=pb.Ok())

    async def _split_segment(self, peer: Peer, command: pb.Command) -> pb.Command:
        request = command.split_segment
        return _layout_changed(
            await self._controller.split_segment(SegmentName.from_path(request.segment), request.at or None)
        )

    async def _merge_segments(self, peer: Peer, command: pb.Command) -> pb.Command:
        request = command.merge_segments
        first, second = (SegmentName.from_path(path) for path in (request.segment_a, request.segment_b))
        return _layout_changed(await self._controller.merge_segments(first, second))

    async def _join_subscription(self, peer: Peer, command: pb.Command) -> pb.Command:
        return pb.Command(assignment=await self._controller.join(command.join_subscription, peer))

    async def _leave_subscription(self, peer: Peer, command: pb.Command) -> pb.Command:
        await self._controller.leave(command.leave_subscription, peer)
        return pb.Command(ok=pb.Ok())

    async def _register_producer(self, peer: Peer, command: pb.Command) -> pb.Command:
        life = await self._controller.register_producer(command.register_producer, peer)
        return pb.Command(register_producer_ok=pb.RegisterProducerOk(life=life))

    async def _take_snapshot(self, peer: Peer, command: pb.Command) -> pb.Command:
        topics = list(dict.fromkeys(TopicName.parse(topic) for topic in command.take_snapshot.topics))
        if not topics:
            raise InvalidArgument("a snapshot names at least one topic")
        # No need to check `min_revision`: the cut reads its revision from the store after this request was sent.
        snapshot = await self._controller.take_snapshot(topics, at_least=command.take_snapshot.at_least)
        text = await taking_turns(written_in_steps(snapshot))
        return pb.Command(take_snapshot_ok=pb.TakeSnapshotOk(snapshot_json=text))


def _layout_changed(changed: LayoutChanged) -> pb.Command:
    return pb.Command(
        layout_changed=pb.LayoutChanged(epoch=changed.epoch, parents=changed.parents, children=changed.children)
    )
