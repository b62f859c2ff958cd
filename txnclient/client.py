"""`connect` and `Client`: one session with a cluster, and everything that is opened in it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any

from txnclient.connection import any_server, topic_changes
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
from txnclient.consuming.feeds.dead_letters import Services
from txnclient.consuming.places import seeking
from txnclient.consuming.places.starts import StartArgument, topics_of
from txnclient.openers import Openers
from txnclient.producing.producer import Producer
from txnclient.reading.cuts import SharedCuts, check_at_least, take_cut
from txnclient.reading.snapshot import Snapshot
from txnclient.transactions.coordinators import Coordinators
from txnclient.transactions.transaction import Transaction, transaction_impl
from txnclient.transactions.transaction_impl import ABORT_ON_CLOSE_S, TransactionImpl
from txnwire.clock import SystemClock, SystemRandom
from txnwire.errors import InvalidArgument, TxnError
from txnwire.ids import TxnId
from txnwire.names import TopicName, validate_client_name, validate_transaction_key
from txnwire.ports import Clock, Random, Transport
from txnwire.proto import txn_pb2 as pb
from txnwire.transport.grpc_transport import GrpcTransport

ABORTED_AT_ONCE = 500
"""Concurrent aborts of a closing client: it may have very many transactions, and must not block the event loop."""


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
    has none of its own. `transport`, `clock` and `random` are ports for the simulation.

    With a `transaction_key` (free text without `&`) this client becomes the key's only holder. It fences the previous
    holder: the service aborts that client's open transaction at once, and its later calls in transactions fail with
    `ExpiredTransaction`. A client with a key has one transaction open at a time, and no named ones.
    Raises `InvalidArgument`, `Timeout` if no server answers in time, `Unauthorized`, `ExpiredTransaction` if a newer
    client has taken the key meanwhile.
    """
    if tls is not None:
        raise InvalidArgument("tls is not offered by this version: connect without it")
    if token is not None:
        raise InvalidArgument("a token is not asked for by this version, and would protect nothing: connect without it")
    if transaction_key is not None:
        validate_transaction_key(transaction_key)
    if not isinstance(timeout, int | float) or not timeout > 0:
        raise InvalidArgument(f"timeout is a positive number of seconds, not {timeout!r}")
    addresses, name = parse_url(url), validate_client_name(client_name)

    async def open_client() -> Client:
        the_clock = clock or SystemClock()
        client = Client(
            addresses,
            transport=transport or GrpcTransport(the_clock),
            clock=the_clock,
            random=random or SystemRandom(),
            timeout=timeout,
            token="",
            client_name=name,
            transaction_key=transaction_key,
        )
        return await client._open()

    return Opening(open_client)


class Client(Openers):
    """A session with a cluster, made by `connect`. Belongs to the event loop that opened it; any number of tasks may
    use it."""

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
        session_id = random.getrandbits(128).to_bytes(16, "little")
        tasks = OwnedTasks()
        links = Links(
            transport=transport,
            clock=clock,
            random=random,
            hello=pb.Hello(client_name=client_name, session_id=session_id, token=token),
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
        """Set when everything opened in the client is closed."""

    def _services(self) -> Services:
        return self

    def _moving(self) -> Services:
        return self if self._coordinators.key is None else _Apart(self)

    async def _begin_apart(self, timeout_s: float) -> Transaction:
        """Begin a transaction outside the client's key, to run beside the application's own."""
        await self._expect_open()
        return Transaction(await self._coordinators.begin(timeout_s, self._session.deadline(), apart=True))

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
        """Create a topic of `segments` segments; ok if it exists with the same shape. Raises `TopicExists` if it has
        another.

        Without a retention everything is kept. `retention_ms` lets older messages go; `retention_bytes` limits the
        whole topic, oldest messages go first. Retention deletes whole ledgers, but none that an open transaction holds,
        and none that a subscription has not drained unless `trim_undrained`.
        `autoscale` splits and merges segments with the load: `"off"`, or a dict of thresholds, where those not named
        keep their defaults (docs/client.md); None: the defaults.
        """
        await self._expect_open()
        policies: dict[str, object] = {
            "retention_ms": retention_ms,
            "retention_bytes": retention_bytes,
            "trim_undrained": trim_undrained,
            "autoscale": autoscale,
        }
        given = {name: value for name, value in policies.items() if value is not None}
        return await topic_changes.create_topic(self._session, topic, segments, given)

    async def update_topic(
        self,
        topic: str,
        *,
        retention_ms: int | Unchanged | None = UNCHANGED,
        retention_bytes: int | Unchanged | None = UNCHANGED,
        trim_undrained: bool | Unchanged | None = UNCHANGED,
        autoscale: str | dict[str, Any] | Unchanged | None = UNCHANGED,
    ) -> None:
        """Change the policies that are named; None removes one, so it no longer trims anything.

        `create_topic` explains them. Repeating it is harmless. Raises `InvalidArgument` naming the policy,
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
        the upper one from hash `at` on (default: the middle). Returns the layout that this client then knows.

        Producers move to the children without a call; the split neither waits for transactions nor aborts them.
        Repeating it is harmless. Raises `TopicNotFound`, `NameNotFound`, `InvalidArgument` if the layout does not allow
        it (e.g. the segment is sealed already), `NotAllowed` while another change of the segment is under way,
        `Timeout`.
        """
        await self._expect_open()
        return await topic_changes.split(self._session, segment, at)

    async def merge(self, segment_a: str, segment_b: str) -> TopicLayout:
        """Seal two active segments whose ranges are adjacent and let one child take both; otherwise as `split`. Raises
        what `split` does."""
        await self._expect_open()
        return await topic_changes.merge(self._session, segment_a, segment_b)

    async def delete_topic(self, topic: str, *, force: bool = False) -> None:
        """Delete a topic with all its messages and subscriptions; returns once no record and no file of it is left.

        Refused with `NotAllowed` while producers or consumers are connected, unless `force`: they then receive
        `TopicNotFound`. Transactions that wrote or acked there go on, and end as if they had not. Once accepted, the
        service completes it without this client. A topic created again under the name is a new one, which no late or
        repeated request of this call deletes. Raises `TopicNotFound`, `NotAllowed`, `DataCorrupt` (it names what keeps
        the deletion waiting), `Timeout` (it may still be under way: repeat it to wait for its end).
        """
        await self._expect_open()
        await topic_changes.delete_topic(self._session, topic, force=force)

    async def delete_subscription(self, topic: str, subscription: str, *, force: bool = False) -> None:
        """Delete a subscription with its cursors; returns once no record of it is left.

        Refused with `NotAllowed` while consumers are connected, unless `force`: they then receive
        `SubscriptionNotFound`. Its pending acks in open transactions are dropped; the transactions go on. Raises
        `TopicNotFound`, `SubscriptionNotFound`, `NotAllowed`, `DataCorrupt` (it names what keeps the deletion waiting),
        `Timeout` (repeat it to wait for its end).
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
        """Move a subscription to `start`, with or without consumers; see `Consumer.seek`.

        Raises `TopicNotFound`, `SubscriptionNotFound`, `Timeout`.
        """
        await self._expect_open()
        await seeking.seek(self._session, topics, subscription, start, self._session.deadline(timeout))

    async def describe_topic(self, topic: str) -> TopicLayout:
        """The topic's segments as this client last heard of them. Raises `TopicNotFound`."""
        await self._expect_open()
        return await self._directory.layout(str(TopicName.parse(topic)), self._session.deadline())

    async def list_topics(self, prefix: str = "") -> list[str]:
        """Names of topics (`topic://...`); `prefix` is `""`, `"tenant/"` or `"tenant/namespace/"`."""
        reply = await self._call_any(pb.Command(list_topics=pb.ListTopics(prefix=prefix)), "listing topics")
        return list(reply.names.names)

    async def snapshot(self, topics: str | Sequence[str], *, at_least: int = 0) -> Snapshot:
        """Take a snapshot of these topics at one moment: all committed transactions, whole, and nothing else.

        It holds every transaction known to be committed before this call, including this client's. Read it with
        `reader(topics, end=snapshot)`, as often as wanted. `at_least`: a revision of the metadata store, such as
        another client's `txn.result.revision`; the snapshot is not older.
        Raises `TopicNotFound`, `InvalidArgument`, and `Timeout` or `NotOwner` if a segment had no owner for that time,
        or if the store does not reach `at_least`.
        """
        await self._expect_open()
        check_at_least(at_least)
        return await take_cut(self._session, topics_of(topics), at_least, self._session.deadline())

    # ---- transactions -----------------------------------------------------------------------------------------------

    @property
    def transaction_key(self) -> str | None:
        """The key given to `connect`."""
        return None if self._coordinators.key is None else self._coordinators.key.key

    @property
    def key_epoch(self) -> int | None:
        """The epoch of this client as holder of its transaction key, from 0: a holder with a higher epoch has fenced
        it. None without a key."""
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
        """Begin a transaction; the service aborts one that is open for longer than `timeout` seconds.

        With a `name`, every client that begins that name joins the same transaction, each as a writer of its own. The
        first begin sets the `timeout`; `.joined` is true for later ones. It belongs to no client: it ends when any
        client commits or aborts it, or at its deadline. Once it has committed, `.state`, `.writers`, `.note` and
        `commit()` give its result; after an abort the name starts afresh. Names are free text of up to 512 bytes, e.g.
        "job-7/42".

        The service keeps the outcome for `keep` after the end, a minute to 100 years; by default as the service is set
        for the name's namespace (the part before its first "/"), 7 days if nothing is set. With
        `keep_newest` it keeps the newest commit of a prefix (up to the last "/") for ever: a job that numbers its
        steps, `job-7/42`, finds its last one at any later time. The begin that created the transaction sets both; a
        begin of a name whose outcome is no longer kept does the work again.

        Two arguments serve programs of many processes, for named transactions only. `attempt`, 1 to 32 bytes: begins of
        the name with the same attempt count as one, so `.joined` tells of other programs only. `writer_id`: the writer
        to join as; the caller must never give one out twice. Consecutive ids make large commits small.

        Raises `StoreFull`, `TooManyNames` (the namespace of a new name is full), `OutcomeUnknown` (the name's records
        were deleted by hand), `Timeout` or the error that prevented it within the client's timeout. A client with a
        transaction key has one at a time: `InvalidTxnState` while another is open, `ExpiredTransaction` once a newer
        client holds the key.
        """
        await self._expect_open()
        if name is not None:
            named = await self._coordinators.begin_named(
                name,
                timeout,
                self._session.deadline(),
                keep=keep,
                keep_newest=keep_newest,
                attempt=attempt,
                writer_id=writer_id,
            )
            return Transaction(named)
        if attempt is not None or writer_id is not None or keep is not None or keep_newest:
            raise InvalidArgument(
                "`keep`, `keep_newest`, `attempt` and `writer_id` belong to named transactions: give a name, too"
            )
        return Transaction(await self._coordinators.begin(timeout, self._session.deadline()))

    async def attach(self, txn_id: TxnId | str, *, name: str) -> Transaction:
        """Attach to the named transaction with this id and name, to end exactly that one.

        A program that collects the results of others commits what *they* have joined: a begin of the name could create
        a new transaction if theirs was aborted meanwhile. Raises `Timeout` if no coordinator can be reached."""
        await self._expect_open()
        return Transaction(await self._coordinators.attach(_txn_id(txn_id), name, self._session.deadline()))

    @asynccontextmanager
    async def transaction(self, *, timeout: float = 60.0, name: str | None = None) -> AsyncIterator[Transaction]:
        """`async with client.transaction() as txn`: commit on success, abort on an exception, which is raised again.

        Raises what `begin` and `commit` do. A `name` is refused with `InvalidArgument`: leaving the block would end the
        named transaction for all its writers."""
        if name is not None:
            raise InvalidArgument(
                f"the transaction {name!r} belongs to all clients that join it, and the end of a block would end it "
                "for all: use begin(name=…), and commit(writers=…) in one place"
            )
        txn = await self.begin(timeout=timeout)
        impl = transaction_impl(txn)
        try:
            try:
                yield txn
            except BaseException as error:
                await impl.abort_because(error)
                raise
            # If the block ended the transaction, that stands. ▲ If the client's close has, the commit says so.
            if not impl.aborting or impl.abandoned:
                await txn.commit()
        finally:
            impl.settle_later()  # if undecided: no other call settles it

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
        """Send an administrator's request, e.g. `admin("transactions.list", state="OPEN")`, to a server that answers
        it."""
        request = pb.AdminRequest(what=what, args_json=json.dumps({"v": 1, **args}))
        reply = await self._call_any(pb.Command(admin_request=request), what, role="admin")
        answer: dict[str, Any] = json.loads(reply.admin_reply.reply_json)
        return answer

    async def _call_any(self, command: pb.Command, what: str, *, role: str | None = None) -> pb.Command:
        await self._expect_open()
        return await any_server.call(self._session, command, what, role=role)

    # ---- closing ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close everything opened in it, abort its open transactions, end its connections. Bounded, idempotent. Raises
        the first failure of a send that no caller has received, after it has closed everything."""
        if self._closed:
            if self._session.is_here:
                await self._all_closed.wait()  # the second caller may end the loop afterwards
            return
        self._session.expect_here()
        self._closed = True
        try:
            closed = await asyncio.gather(*(thing.close() for thing in list(self._opened)), return_exceptions=True)
            await asyncio.gather(self._abort_open(), self._coordinators.settling.finish(ABORT_ON_CLOSE_S))
        finally:
            # ▲ C5: a task of its own: a second cancellation would otherwise leave connections open.
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
        """Abort open transactions, `ABORTED_AT_ONCE` at a time; the service aborts those left when the time is up."""
        deadline = Deadline(self._session.clock, ABORT_ON_CLOSE_S)
        still_open = self._coordinators.open_transactions
        left = iter(still_open)

        async def abort_some() -> None:
            for txn in left:
                if deadline.passed:
                    return
                await self._abort_quietly(txn, deadline)

        await asyncio.gather(*(abort_some() for _ in range(min(ABORTED_AT_ONCE, len(still_open)))))

    async def _abort_quietly(self, txn: TransactionImpl, deadline: Deadline) -> None:
        # A transaction that is committing is left alone: its commit decides.
        if txn.state == "OPEN":
            txn.abandoned = True
            with suppress(TxnError):  # the service aborts it after the grace
                await txn.abort(timeout=deadline.remaining())

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await closed_behind(self.close, error)


class _Apart:
    """A client with a transaction key, for moving dead letters: moves use transactions outside the key, so they work
    when another client holds the key, and do not block the application's one transaction."""

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
