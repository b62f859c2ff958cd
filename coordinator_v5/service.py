"""The coordinator's commands on the wire: PIP-31's transaction commands, answered by a `Coordinator`.

Begin and end are hot: no task per request, and one reply command is reused.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from functools import partial

from coordinator_v5.coordinator import Coordinator
from coordinator_v5.naming.names import Begun
from coordinator_v5.sessions import ANNOUNCED_AT_ONCE
from txnstore.records import COMMITTED
from txnstore.writes.name_transitions import Keep
from txnstore.writes.transitions import RecordedDecision
from txnstore.writes.writer_lists import MAX_WRITERS, pack
from txnwire.errors import InvalidArgument, TxnError
from txnwire.ids import MAX_TCID, TxnId
from txnwire.names import validate_note
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.calls import Handler, Peer
from txnwire.turns import in_turns


class CoordinatorService:
    """A `txnwire.transport.calls.Service` for the role `coordinator`."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._new_txn_reply = pb.Command()
        self._end_txn_reply = pb.Command()
        self.handlers: Mapping[str, Handler] = {
            "new_txn": self._new_txn,
            "end_txn": self._end_txn,
            "add_partition_to_txn": self._add,
            "add_subscription_to_txn": self._add,
            "announce_session": self._announce_session,
            "tc_client_connect": self._tc_client_connect,
        }

    def disconnected(self, peer: Peer) -> None:
        self._coordinator.disconnected(peer)

    def _new_txn(self, peer: Peer, command: pb.Command) -> Coroutine[object, object, pb.Command] | None:
        request = command.new_txn
        if request.tc_id > MAX_TCID:
            raise InvalidArgument(f"coordinator id {request.tc_id} is above {MAX_TCID}")
        if request.transaction_key:
            return self._begin_keyed(request, peer)
        if request.name:
            return self._begin_named(request, peer.owner)
        self._coordinator.begin_nowait(
            request.tc_id,
            partial(self._begun, peer, command.request_id),
            timeout_ms=request.timeout_ms,
            attempt=request.attempt,
            owner=peer.owner,
            connection=peer,
        )
        return None

    async def _begin_named(self, request: pb.NewTxn, owner: str) -> pb.Command:
        begun = await self._coordinator.begin_named(
            request.tc_id,
            name=request.name,
            timeout_ms=request.timeout_ms,
            attempt=request.attempt,
            owner=owner,
            keep=Keep(request.keep_ms, request.keep_newest),
            known_only=request.known_only,
        )
        ok = pb.NewTxnOk(
            txnid_most_bits=begun.txn_id.most_bits,
            txnid_least_bits=begun.txn_id.least_bits,
            state=pb.TXN_STATE_OPEN,
            deadline_ms=begun.deadline_ms,
            joined=begun.joined,
        )
        if begun.decision is not None:
            ok.state = _state(begun.decision)
            ok.revision = begun.decision.revision
            _fill_kept(ok, begun.decision)
        return pb.Command(new_txn_ok=ok)

    async def _begin_keyed(self, request: pb.NewTxn, peer: Peer) -> pb.Command:
        if request.name:
            raise InvalidArgument(
                "a transaction has a name or a transaction key, not both, because a key cannot fence a name: leave "
                "one out"
            )
        begun = await self._coordinator.begin_keyed(
            request.tc_id,
            key=request.transaction_key,
            epoch=request.key_epoch,
            number=request.key_begin,
            timeout_ms=request.timeout_ms,
            attempt=request.attempt,
            connection=peer,
        )
        ok = pb.NewTxnOk(
            txnid_most_bits=begun.txn_id.most_bits,
            txnid_least_bits=begun.txn_id.least_bits,
            state=pb.TXN_STATE_OPEN if begun.decision is None else _state(begun.decision),
            deadline_ms=begun.deadline_ms,
            joined=begun.joined,
        )
        return pb.Command(new_txn_ok=ok)

    def _begun(self, peer: Peer, request_id: int, answer: Begun | TxnError) -> None:
        if isinstance(answer, TxnError):
            peer.fail(request_id, answer)
            return
        ok = self._new_txn_reply.new_txn_ok
        ok.txnid_most_bits = answer.txn_id.most_bits
        ok.txnid_least_bits = answer.txn_id.least_bits
        ok.state = pb.TXN_STATE_OPEN
        ok.deadline_ms = answer.deadline_ms
        peer.reply(request_id, self._new_txn_reply)

    def _end_txn(self, peer: Peer, command: pb.Command) -> Coroutine[object, object, pb.Command] | None:
        request = command.end_txn
        txn_id = TxnId.from_bits(request.txnid_most_bits, request.txnid_least_bits)
        if request.action not in (pb.TXN_ACTION_COMMIT, pb.TXN_ACTION_ABORT):
            raise InvalidArgument(f"end of {txn_id}: action {request.action} is unknown to this version")
        commit = request.action == pb.TXN_ACTION_COMMIT
        # An absent list counts all writers, an empty one none.
        writers = _listed(request.writers.writers) if request.HasField("writers") else None
        note = _noted(request)
        reply = partial(self._ended, peer, command.request_id)
        if self._coordinator.end_nowait(
            txn_id, reply, commit=commit, writers=writers, note=note, forced=request.forced
        ):
            return None
        return self._end_by_store(request, txn_id, writers)

    async def _end_by_store(self, request: pb.EndTxn, txn_id: TxnId, writers: list[str] | None) -> pb.Command:
        decision = await self._coordinator.end(
            txn_id,
            commit=request.action == pb.TXN_ACTION_COMMIT,
            writers=writers,
            note=_noted(request),
            forced=request.forced,
            name=request.name,
        )
        reply = pb.Command()
        _fill(reply, decision)
        return reply

    def _ended(self, peer: Peer, request_id: int, answer: RecordedDecision | TxnError) -> None:
        if isinstance(answer, TxnError):
            peer.fail(request_id, answer)
            return
        _fill(self._end_txn_reply, answer)
        peer.reply(request_id, self._end_txn_reply)

    def _add(self, peer: Peer, command: pb.Command) -> pb.Command:
        """No-ops (PIP-471): participants write their own op records; only the id is checked."""
        body = command.add_partition_to_txn if command.HasField("add_partition_to_txn") else None
        request = body or command.add_subscription_to_txn
        TxnId.from_bits(request.txnid_most_bits, request.txnid_least_bits)
        return pb.Command(ok=pb.Ok())

    async def _announce_session(self, peer: Peer, command: pb.Command) -> pb.Command:
        ids: list[TxnId] = []
        async for part in in_turns(command.announce_session.open, ANNOUNCED_AT_ONCE):
            ids += (TxnId.from_bits(one.txnid_most_bits, one.txnid_least_bits) for one in part)
        await self._coordinator.announce(peer, ids)
        return pb.Command(ok=pb.Ok())

    async def _tc_client_connect(self, peer: Peer, command: pb.Command) -> pb.Command:
        request = command.tc_client_connect
        epoch = await self._coordinator.connect_key(
            request.tc_id,
            key=request.transaction_key,
            epoch=request.epoch,
            attempt=request.attempt,
            connection=peer,
        )
        return pb.Command(tc_client_connect_ok=pb.TcClientConnectOk(epoch=epoch))


def _fill(reply: pb.Command, decision: RecordedDecision) -> None:
    ok = reply.end_txn_ok
    ok.revision = decision.revision
    ok.state = _state(decision)
    ok.ClearField("writers")
    _fill_kept(ok, decision)


def _state(decision: RecordedDecision) -> pb.TxnState:
    return pb.TXN_STATE_COMMITTED if decision.state == COMMITTED else pb.TXN_STATE_ABORTED


def _fill_kept(ok: pb.EndTxnOk | pb.NewTxnOk, decision: RecordedDecision) -> None:
    ok.note = decision.note or ""
    if decision.writers is not None:
        ok.writers.writers.extend(int(writer, 16) for writer in decision.writers)
        ok.writers.SetInParent()


def _noted(request: pb.EndTxn) -> str | None:
    """Raises `InvalidArgument`."""
    if not request.note:
        return None
    if not request.name or request.action != pb.TXN_ACTION_COMMIT:
        raise InvalidArgument(
            "a note belongs to the commit of a named transaction, where a later begin finds it: commit without"
        )
    return validate_note(request.note)


def _listed(writers: Sequence[int]) -> list[str]:
    """Sorted and unique, so that equal lists compare equal in any order."""
    if len(writers) > MAX_WRITERS:
        raise InvalidArgument(f"a commit lists {len(writers)} writers: a commit takes at most {MAX_WRITERS}")
    listed = [f"{writer:016x}" for writer in sorted(dict.fromkeys(writers))]
    pack(listed)  # ▲ a list that its record cannot hold is refused here, and the transaction stays as it is
    return listed
