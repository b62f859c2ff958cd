"""`connect` and `Client`: one session with a cluster, and everything that is opened in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any

from txnclient.connection import topic_changes
from txnclient.connection.address import parse_url
from txnclient.connection.deadlines import Deadline
from txnclient.connection.directory import ClientDirectory
from txnclient.connection.links import Link, Links
from txnclient.connection.opening import Closable, Opening, closed_behind
from txnclient.connection.registrations import Registrations
from txnclient.connection.session import Session
from txnclient.connection.tasks import OwnedTasks
from txnclient.connection.topic_changes import UNCHANGED, Unchanged, policies_json
from txnclient.connection.topic_layout import TopicLayout
from txnclient.consuming import seeking
from txnclient.consuming.dead_letters import Services
from txnclient.consuming.starts import StartArgument, topics_of
from txnclient.openers import Openers
from txnclient.producing.producer import Producer
from txnclient.reading.cuts import SharedCuts, check_at_least, take_cut
from txnclient.reading.snapshot import Snapshot
from txnclient.transactions.coordinators import Coordinators
from txnclient.transactions.transaction import Transaction
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import ConnectionLost, ExpiredTransaction, InvalidArgument, InvalidTxnState, TxnError
from txnwire.grpc_transport import GrpcTransport
from txnwire.ids import TxnId
from txnwire.names import TopicName, validate_transaction_key
from txnwire.ports import Clock, Random, Transport
from txnwire.proto import txn_pb2 as pb

ABORT_ON_CLOSE_S = 2.0
"""How long closing a client, or leaving `transaction()` by an exception, waits for transactions to be aborted; what is
not by then is aborted by the service, after the grace."""

ABORTED_AT_ONCE = 500
"""Transactions of a client that closes: there may be hundreds of thousands, and the event loop is the application's."""

CALL_TIMEOUT_S = 10.0
"""Of one request to one server; the call goes on elsewhere until its own time is up."""


def connect(
    url: str,
    *,
    token: str | None = None,
    tls: object | None = None,
    transaction_key: str | None = None,
    timeout: float = 30.0,
    client_name: str = "txnclient",
    transport: Transport | None = None,
    clock: Clock | None = None,
    random: Random | None = None,
) -> Opening[Client]:
    """Open a client: `async with connect(url) as client`, or `client = await connect(url)`.

    `url` is `txn://host:port[,host:port...]`, any servers of the cluster; `timeout` in seconds bounds every call that
    is given none of its own. `transport`, `clock` and `random` are ports for the simulation.

    With a `transaction_key` (free text without `&`) this client becomes its only holder: one that connected with it
    before is fenced, its open transaction aborted at once, and whatever it does in transactions from then on fails with
    `ExpiredTransaction`. Such a client has one transaction open at a time, and no named ones.
    Raises `InvalidArgument`, `Timeout` if no server answers in time, `Unauthorized`.
    """
    if tls is not None:
        raise InvalidArgument("tls is not offered by this version: connect without it")
    if transaction_key is not None:
        validate_transaction_key(transaction_key)
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise InvalidArgument(f"timeout is a positive number of seconds, not {timeout!r}")
    addresses = parse_url(url)

    async def open_client() -> Client:
        the_clock = clock or SystemClock()
        client = Client(
            addresses,
            transport=transport or GrpcTransport(the_clock),
            clock=the_clock,
            random=random or SystemRandom(),
            timeout=timeout,
            token=token or "",
            client_name=client_name,
            transaction_key=transaction_key,
        )
        return await client._open()

    return Opening(open_client)


class Client(Openers):
    """Made by `connect`. Belongs to the event loop it was opened in; any number of tasks may use it."""

    def __init__(
        self,
        addresses: list[str],
        *,
        transport: Transport,
        clock: Clock,
        random: Random,
        timeout: float,
        token: str,
        client_name: str,
        transaction_key: str | None = None,
    ) -> None:
        self.session_id = random.getrandbits(128).to_bytes(16, "little")
        tasks = OwnedTasks()
        links = Links(
            transport=transport,
            clock=clock,
            random=random,
            hello=pb.Hello(client_name=client_name, session_id=self.session_id, token=token),
            tasks=tasks,
            on_opened=self._link_opened,
        )
        self._directory = ClientDirectory(links, addresses, clock=clock, random=random, tasks=tasks)
        self._session = Session(
            clock=clock, random=random, timeout_s=timeout, tasks=tasks, links=links, directory=self._directory
        )
        self._registrations = Registrations(self._session)
        self._coordinators = Coordinators(self._session, transaction_key=transaction_key)
        self._cuts = SharedCuts(self._session)
        self._addresses = addresses
        self._opened: dict[Closable, None] = {}
        self._closed = False
        self._all_closed = asyncio.Event()
        """All that it had is closed."""

    def _services(self) -> Services:
        return self

    def _moving(self) -> Services:
        return self if self._coordinators.key is None else _Apart(self)

    async def _begin_apart(self, timeout_s: float) -> Transaction:
        """One that is not its key's: for what goes on beside the application's own transaction."""
        await self._expect_open()
        return await self._coordinators.begin(timeout_s, self._session.deadline(), apart=True)

    def __repr__(self) -> str:
        return f"Client(txn://{','.join(self._addresses)}{', closed' * self._closed})"

    def _link_opened(self, link: Link) -> None:
        self._coordinators.link_opened(link)

    async def _open(self) -> Client:
        try:
            deadline = self._session.deadline()
            await self._directory.start(deadline)
            if self._coordinators.key is not None:
                await self._coordinators.key.take(deadline)
            self._coordinators.start()
        except BaseException:
            await self.close()
            raise
        return self

    # ---- topics -----------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        *,
        segments: int = 1,
        retention_ms: int | None = None,
        retention_bytes: int | None = None,
        trim_undrained: bool | None = None,
        autoscale: str | dict[str, Any] | None = None,
    ) -> TopicLayout:
        """Create a topic of so many segments; ok if it exists with the same shape. Raises `TopicExists` if with
        another.

        Without a retention everything is kept. `retention_ms`: what is older may go; `retention_bytes`: of the whole
        topic, whatever is beyond may go, oldest first. Whole ledgers go, never what an open transaction holds, nor what
        a subscription has not drained, unless `trim_undrained`.
        `autoscale`: segments are split and merged with the load; `"off"`, or a dict of thresholds, of which those that
        are not named have their defaults (docs/client.md); None: the defaults.
        """
        await self._expect_open()
        topic = str(TopicName.parse(topic))
        if not isinstance(segments, int) or segments < 1:
            raise InvalidArgument(f"a topic has at least one segment, not {segments!r}")
        policies = {
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
            "trim_undrained": trim_undrained,
            "autoscale": autoscale,
        }
        request = pb.CreateTopic(
            topic=topic,
            segments=segments,
            policies_json=json.dumps({name: value for name, value in policies.items() if value is not None}),
        )
        deadline = self._session.deadline()

        async def create() -> None:
            link = await self._directory.controller_link(deadline)
            await link.call(pb.Command(create_topic=request), timeout_s=min(CALL_TIMEOUT_S, deadline.remaining()))

        await self._session.repeat(f"creating {topic}", deadline, create)
        return await self._directory.wait_layout(topic, deadline)

    async def update_topic(
        self,
        topic: str,
        *,
        retention_ms: int | Unchanged | None = UNCHANGED,
        retention_bytes: int | Unchanged | None = UNCHANGED,
        trim_undrained: bool | Unchanged | None = UNCHANGED,
        autoscale: str | dict[str, Any] | Unchanged | None = UNCHANGED,
    ) -> None:
        """Change the policies that are named; None takes one away, so that nothing is trimmed by it any more.

        What they mean: `create_topic`. Repeating it is harmless. Raises `InvalidArgument` naming the policy,
        `TopicNotFound`, `Timeout`.
        """
        await self._expect_open()
        policies = policies_json(
            retention_ms=retention_ms,
            retention_bytes=retention_bytes,
            trim_undrained=trim_undrained,
            autoscale=autoscale,
        )
        await topic_changes.update_topic(self._session, topic, policies)

    async def split(self, segment: str, *, at: int | None = None) -> TopicLayout:
        """Seal an active segment (`segment://…`, as `describe_topic` names them) and let two children take its range,
        the upper one from hash `at` on (default: the middle). Returns the layout, as this client knows it by then.

        Producers go on in the children by themselves, transactions are neither asked nor waited for nor aborted.
        Repeating it is harmless. Raises `TopicNotFound`, `InvalidArgument` for what the layout does not allow (a
        segment that is sealed already, say), `NotAllowed` while another change of the segment is under way, `Timeout`.
        """
        await self._expect_open()
        return await topic_changes.split(self._session, segment, at)

    async def merge(self, segment_a: str, segment_b: str) -> TopicLayout:
        """Seal two active segments whose ranges are adjacent and let one child take both; otherwise as `split`."""
        await self._expect_open()
        return await topic_changes.merge(self._session, segment_a, segment_b)

    async def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """Delete a topic with all its messages and subscriptions; returns once no record and no file of it is left.

        Refused with `NotAllowed` while producers or consumers are connected, unless `force`: they are then told
        `TopicNotFound`. Transactions that wrote or acked there go on, and end as if that part had never been. Once
        accepted it goes on by itself, whatever this client does; a topic created again under the name is another.
        Raises `TopicNotFound`, `NotAllowed`, `Timeout` (it may still be under way: repeat it to wait for its end).
        """
        await self._expect_open()
        await topic_changes.delete_topic(self._session, topic, force=force)

    async def delete_subscription(self, topic: str, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription with what it has consumed; returns once no record of it is left.

        Refused with `NotAllowed` while consumers are connected, unless `force`: they are then told
        `SubscriptionNotFound`. Acks pending in open transactions go with it; the transactions go on. Raises
        `TopicNotFound`, `SubscriptionNotFound`, `NotAllowed`, `Timeout` (repeat it to wait for its end).
        """
        await self._expect_open()
        await topic_changes.delete_subscription(self._session, topic, subscription, force=force)

    async def seek_subscription(
        self,
        topics: str | Sequence[str],
        subscription: str,
        start: StartArgument,
        *,
        timeout: float | None = None,
    ) -> None:
        """Have a subscription go on from `start`, with or without consumers; as `Consumer.seek`, which see.

        Raises `TopicNotFound`, `SubscriptionNotFound`, `Timeout`.
        """
        await self._expect_open()
        await seeking.seek(self._session, topics, subscription, start, self._session.deadline(timeout))

    async def describe_topic(self, topic: str) -> TopicLayout:
        """The topic's segments as last heard of. Raises `TopicNotFound`."""
        await self._expect_open()
        return await self._directory.layout(str(TopicName.parse(topic)), self._session.deadline())

    async def list_topics(self, prefix: str = "") -> list[str]:
        """Names of topics (`topic://...`); `prefix` is `""`, `"tenant/"` or `"tenant/namespace/"`."""
        reply = await self._call_any(pb.Command(list_topics=pb.ListTopics(prefix=prefix)), "listing topics")
        return list(reply.names.names)

    async def snapshot(self, topics: str | Sequence[str], *, at_least: int = 0) -> Snapshot:
        """Where all segments of these topics stand at one moment: whatever had been committed, whole, and nothing else.

        It holds every transaction known to be committed before this call, this client's among them. To be read with
        `reader(topics, end=snapshot)`, as often as wanted. `at_least`: a revision of the metadata store, such as
        another client's `txn.result.revision`; the snapshot is not from before it.
        Raises `TopicNotFound`, `InvalidArgument`, and `Timeout` or `NotOwner` where a segment had no owner for so long,
        or the store does not come to `at_least`.
        """
        await self._expect_open()
        check_at_least(at_least)
        return await take_cut(self._session, topics_of(topics), at_least, self._session.deadline())

    # ---- transactions -----------------------------------------------------------------------------------------------

    @property
    def transaction_key(self) -> str | None:
        """As it was given to `connect`."""
        return None if self._coordinators.key is None else self._coordinators.key.key

    @property
    def key_epoch(self) -> int | None:
        """Which holder of its transaction key this client is, counted from 0: a newer one has a higher epoch, and has
        fenced this one. None without a key."""
        return None if self._coordinators.key is None else self._coordinators.key.epoch

    async def begin(
        self,
        *,
        timeout: float = 60.0,
        name: str | None = None,
        keep: timedelta | None = None,
        keep_newest: bool = False,
        attempt: bytes | None = None,
        writer_id: int | None = None,
    ) -> Transaction:
        """Begin a transaction; one that is open for longer than `timeout` seconds is aborted by the service.

        With a `name` everybody who begins that name joins the same transaction, each as a writer of its own (`.joined`
        tells who was not the first, whose `timeout` counts). It belongs to no client: it ends when somebody commits or
        aborts it, or at its deadline. Once it has committed, `.state`, `.writers`, `.note` and `commit()` tell how;
        after an abort the name starts afresh. Names are free text of up to 512 bytes, e.g. "job-7/42".

        How it ended is known for `keep` after its end, a minute to 100 years; by default for 30 days. With
        `keep_newest` it is known for ever while it is the newest commit of its prefix (up to the last "/"): for jobs
        that number their steps, `job-7/42`, and find the last one they did, however late. Both are as the begin that
        made it asked for; whoever begins a name that is known no more does its work again.

        Two arguments for programs of many processes, of a named transaction alone. `attempt`, 1 to 32 bytes: all that
        begin the name with the same one count as one begin, so `.joined` tells of other programs only. `writer_id`: as
        which writer; the caller must never give one out twice. Ids that follow each other make large commits small.

        A client with a transaction key has one at a time: `InvalidTxnState` while another is open, `ExpiredTransaction`
        once a newer client holds the key. Raises `StoreFull`, `Timeout` or what else made it impossible within the
        client's timeout.
        """
        await self._expect_open()
        if name is not None:
            return await self._coordinators.begin_named(
                name,
                timeout,
                self._session.deadline(),
                keep=keep,
                keep_newest=keep_newest,
                attempt=attempt,
                writer_id=writer_id,
            )
        if attempt is not None or writer_id is not None or keep is not None or keep_newest:
            raise InvalidArgument(
                "`keep`, `keep_newest`, `attempt` and `writer_id` belong to named transactions: give a name, too"
            )
        return await self._coordinators.begin(timeout, self._session.deadline())

    async def attach(self, txn_id: TxnId | str, *, name: str) -> Transaction:
        """The named transaction of which somebody has told id and name, to end exactly that one.

        Whoever collects the results of others commits what *they* have joined: beginning the name once more could begin
        a fresh one, had theirs been aborted meanwhile. Raises `Timeout` where no coordinator can be reached."""
        await self._expect_open()
        return await self._coordinators.attach(_txn_id(txn_id), name, self._session.deadline())

    @asynccontextmanager
    async def transaction(self, *, timeout: float = 60.0, name: str | None = None) -> AsyncIterator[Transaction]:
        """`async with client.transaction() as txn`: commit on success, abort on an exception, which is raised again.

        Not for a named one, which leaving the block would end for everybody in it: that raises `InvalidArgument`."""
        if name is not None:
            raise InvalidArgument(
                f"the transaction {name!r} is everybody's who joins it, and leaving a block would end it for all: use "
                "begin(name=…), and commit(writers=…) in one place"
            )
        txn = await self.begin(timeout=timeout)
        try:
            try:
                yield txn
            except BaseException as error:
                await self._abort_because(txn, error)
                raise
            # Ended by hand inside the block: that counts. An abort of something half committed is for its caller to see
            if not txn.aborting:
                await txn.commit()
        finally:
            txn.settle_later()  # whatever is not decided: nobody else will ask

    async def _abort_because(self, txn: Transaction, error: BaseException) -> None:
        """Abort, for a moment only; what cannot be aborted now is a note on `error`, and is aborted in the
        background."""
        try:
            await txn.abort(timeout=min(ABORT_ON_CLOSE_S, self._session.timeout_s))
        except ExpiredTransaction as expired:
            if type(error) is not ExpiredTransaction:
                error.add_note(f"and transaction {txn.id} was fenced: {expired}")
        except InvalidTxnState:
            error.add_note(f"transaction {txn.id} had committed before")
        except TxnError as failure:
            error.add_note(f"and aborting transaction {txn.id} failed: {type(failure).__name__}: {failure}")

    # ---- administration ---------------------------------------------------------------------------------------------

    async def transaction_info(self, txn_id: TxnId | str) -> dict[str, Any]:
        """Header, operations and outcome of a transaction. Raises `TxnNotFound` for an id that was never given out."""
        return await self.admin("transactions.describe", txn=str(_txn_id(txn_id)))

    async def outcomes(self, txn_ids: Iterable[TxnId | str]) -> dict[TxnId, str]:
        """`"OPEN"`, `"COMMITTED"`, `"ABORTED"` or `"UNKNOWN"` by id."""
        ids = [_txn_id(txn_id) for txn_id in txn_ids]
        answer = await self.admin("transactions.outcomes", txns=[str(txn_id) for txn_id in ids])
        return {txn_id: answer["outcomes"][str(txn_id)] for txn_id in ids}

    async def admin(self, what: str, **args: Any) -> dict[str, Any]:
        """One administrator's question, e.g. `admin("transactions.list", state="OPEN")`, to a server that answers
        it."""
        request = pb.AdminRequest(what=what, args_json=json.dumps({"v": 1, **args}))
        reply = await self._call_any(pb.Command(admin_request=request), what, role="admin")
        answer: dict[str, Any] = json.loads(reply.admin_reply.reply_json)
        return answer

    async def _call_any(self, command: pb.Command, what: str, *, role: str | None = None) -> pb.Command:
        """Ask the servers in turn, those known to have `role` first, until one answers."""
        await self._expect_open()
        deadline = self._session.deadline()
        tries = 0

        async def attempt() -> pb.Command:
            nonlocal tries
            link = await self._any_link(role, tries, deadline)
            tries += 1
            return await link.call(command, timeout_s=min(CALL_TIMEOUT_S, deadline.remaining()))

        return await self._session.repeat(what, deadline, attempt)

    async def _any_link(self, role: str | None, tries: int, deadline: Deadline) -> Link:
        addresses = self._directory.addresses()
        if role is None:
            return await self._session.links.get(addresses[tries % len(addresses)], deadline)
        failed: TxnError = ConnectionLost("no server is known")
        for address in addresses:
            try:
                link = await self._session.links.get(address, deadline)
            except ConnectionLost as error:
                failed = error
                continue
            if role in link.caller.hello_ok.roles:
                return link
            failed = ConnectionLost(
                f"none of the servers {', '.join(addresses)} that can be reached has the role {role}"
            )
        raise failed

    # ---- closing ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close what was opened in it, abort its open transactions, end its connections. Bounded, idempotent. Raises
        the first failure of a send that nobody has been told of; everything is closed all the same."""
        if self._closed:
            if self._session.is_here:
                await self._all_closed.wait()  # whoever closes again may end the loop behind it
            return
        self._session.expect_here()
        self._closed = True
        try:
            closed = await asyncio.gather(*(thing.close() for thing in list(self._opened)), return_exceptions=True)
            await asyncio.gather(self._abort_open(), self._coordinators.settling.finish(ABORT_ON_CLOSE_S))
        finally:
            # ▲ C5: in a task of its own: whoever cancels this a second time would leave connections behind.
            await asyncio.shield(self._session.loop.create_task(self._end(), name="closing a client"))
        for failure in closed:
            if failure is not None:
                raise failure

    async def _end(self) -> None:
        try:
            self._session.close()
            await self._coordinators.settling.close()
            await self._session.tasks.close()
            await self._session.links.close()
        finally:
            self._all_closed.set()

    async def _abort_open(self) -> None:
        """Abort what is open, so many at once; what its time is not enough for is left to the service."""
        deadline = Deadline(self._session.clock, ABORT_ON_CLOSE_S)
        still_open = self._coordinators.open_transactions
        left = iter(still_open)

        async def abort_some() -> None:
            for txn in left:
                if deadline.passed:
                    return
                await self._abort_quietly(txn, deadline)

        await asyncio.gather(*(abort_some() for _ in range(min(ABORTED_AT_ONCE, len(still_open)))))

    async def _abort_quietly(self, txn: Transaction, deadline: Deadline) -> None:
        # One whose commit is under way is left to that commit: it is not ours to turn round.
        if txn.state == "OPEN":
            try:
                await txn.abort(timeout=deadline.remaining())
            except TxnError:
                return  # the service aborts it after the grace

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await closed_behind(self.close, error)


class _Apart:
    """A client with a transaction key, as the moving of dead letters takes it: that is right whoever holds the key, and
    must not keep the application from beginning its one transaction."""

    transaction_key = None

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create_topic(self, topic: str, *, segments: int = 1) -> TopicLayout:
        return await self._client.create_topic(topic, segments=segments)

    def producer(self, topic: str) -> Opening[Producer[bytes]]:
        return self._client.producer(topic)

    async def begin(self, *, timeout: float = 60.0) -> Transaction:
        return await self._client._begin_apart(timeout)


def _txn_id(txn_id: TxnId | str) -> TxnId:
    return txn_id if isinstance(txn_id, TxnId) else TxnId.parse(txn_id)
