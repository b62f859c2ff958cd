"""Calls to an etcd cluster: several endpoints with fail-over, TLS, user and password, and the meaning of each error.

No call is ever repeated here (▲ DESIGN §4), with one harmless exception: a call refused for an expired token was not
applied and is sent again with a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Final, NoReturn

import grpc
import structlog

from txnstore.access.backend import Reason, Refused, Unanswered
from txnstore.access.lineage import StoreUnfit
from txnstore.etcd import rpc_pb2 as pb
from txnstore.etcd.releases import check_release
from txnstore.etcd.settings import EtcdSettings
from txnstore.etcd.unreachable import why_unreachable
from txnstore.store import Compacted
from txnwire.errors import InvalidArgument, StoreUnavailable
from txnwire.ports import Clock
from txnwire.transport.grpc_transport import TlsFiles, open_channel

_POLL_S: Final = 0.02
PIECE_TIMEOUT_S: Final = 120.0
"""For each message of a download; the first one waits for a defragmentation that has begun just before."""
_WHY_TIMEOUT_S: Final = 1.0
_FILES_EVERY_S: Final = 1.0
GRACE_S: Final = 5.0
"""For the calls of a channel that is replaced: longer than a keep-alive takes."""
_NOT_CONNECTED: Final = "not connected"
_RANGE: Final = "/etcdserverpb.KV/Range"
_STATUS: Final = "/etcdserverpb.Maintenance/Status"
_AUTHENTICATE: Final = "/etcdserverpb.Auth/Authenticate"

log = structlog.get_logger(__name__)

StreamCall = grpc.aio.StreamStreamCall[bytes, bytes]
_UnaryMethod = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


class TokenExpired(Exception):
    """The call was refused, and not applied, because etcd does not know its token (any more)."""


class Endpoint:
    """One etcd member's client address. `admitted`: its release and cluster were checked since it last failed; `known`:
    they were checked once; `inadmissible`: what the last check found wrong, `why`: what was last found to keep it from
    being used. `left`: callbacks for when another endpoint replaces this one."""

    def __init__(self, address: str, tls: TlsFiles | None) -> None:
        """Raises `InvalidArgument` for a file that cannot be read."""
        self.address = address
        self._tls = tls
        self._contents = None if tls is None else tls.contents()
        self.channel = open_channel(address, tls=tls)
        self.admitted = False
        self.known = False
        self.inadmissible: InvalidArgument | None = None
        self.why = _NOT_CONNECTED
        self.failed_at = float("-inf")
        self.left: dict[Callable[[], None], None] = {}
        self._methods: dict[str, _UnaryMethod] = {}

    def ready(self) -> bool:
        return self.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY

    async def reopen_if_renewed(self, grace_s: float) -> bool:
        """Whether its channel was replaced: it cannot connect, and its TLS files have changed since it was opened.

        ▲ gRPC keeps what it has read, so a process would be cut off for ever by certificates that were renewed on disk.
        Calls that still run get `grace_s`. Raises `InvalidArgument` for a file that cannot be read."""
        if self._tls is None or self.channel.get_state() is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            return False
        contents = self._tls.contents()
        if contents == self._contents:
            return False
        former, self.channel = self.channel, open_channel(self.address, tls=self._tls)
        self._contents = contents  # not newer than what the channel has: a change in between is found next time
        self._methods.clear()
        self.leave()
        await former.close(grace_s)
        return True

    def leave(self) -> None:
        for call in list(self.left):
            call()

    def unary(self, path: str) -> _UnaryMethod:
        method = self._methods.get(path)
        if method is None:
            method = self._methods[path] = self.channel.unary_unary(path)
        return method


class EtcdConnection:
    """Sends to one endpoint as long as it serves, then to the ready one whose last failure is oldest."""

    def __init__(self, settings: EtcdSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        tls = TlsFiles(ca=settings.ca, certificate=settings.certificate, key=settings.key)
        self._endpoints = [Endpoint(address, tls if secure else None) for address, secure in settings.addresses()]
        self._files_looked_at = float("-inf")
        self._current = self._endpoints[0]
        self._cluster_id: int | None = None
        self._unfit: asyncio.Future[StoreUnfit] = asyncio.get_running_loop().create_future()
        self.check_store: Callable[[Endpoint], Awaitable[None]] | None = None
        """▲ Called before an endpoint is used, each time it was lost or failed: checks that the store behind it is
        still the same. Raises `StoreUnfit`, which is for good."""
        self._admission = asyncio.Lock()
        self._token: str | None = None
        self._authenticating = asyncio.Lock()

    @property
    def endpoints(self) -> list[Endpoint]:
        return self._endpoints

    @property
    def current(self) -> Endpoint:
        """The endpoint that requests go to."""
        return self._current

    async def open(self) -> None:
        """Raises `StoreUnavailable`, `Refused` if the user may not, `InvalidArgument` for a release that must not
        serve, `StoreUnfit`."""
        timeout_s = self._settings.connect_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while not await self._pick():
                    for endpoint in self._endpoints:
                        if endpoint.inadmissible is not None:
                            raise endpoint.inadmissible
                    await self._reopen_renewed()
                    await asyncio.sleep(_POLL_S)
                if self._settings.user is not None:
                    await self._authenticate_first()
                    self._current.admitted = False  # its store could not be checked before
                    await self.wait_ready()
        except TimeoutError:
            await asyncio.gather(*[self._ask_why(one) for one in self._endpoints if not one.ready()])
            tried = ", ".join(endpoint.address for endpoint in self._endpoints)
            raise StoreUnavailable(f"no etcd serves at {tried} within {timeout_s} s: {self.why_not_ready()}") from None

    async def _ask_why(self, endpoint: Endpoint) -> None:
        """gRPC gives the reason why an endpoint is not connected to its calls alone."""
        try:
            await endpoint.unary(_STATUS)(b"", timeout=_WHY_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                endpoint.why = why_unreachable(error.details() or "")

    async def wait_ready(self) -> None:
        """Return once an endpoint is connected and admitted. Raises `StoreUnfit`.

        Only one waiter asks for the admission: a slow etcd has enough to do."""
        while not (self._current.admitted and self._current.ready()):
            async with self._admission:
                if self._current.admitted and self._current.ready():
                    return
                if self._unfit.done():
                    raise self._unfit.result()
                if await self._pick():
                    return
                await self._reopen_renewed()
                await asyncio.sleep(_POLL_S)

    def why_not_ready(self) -> str:
        return "; ".join(f"{endpoint.address}: {endpoint.why}" for endpoint in self._endpoints)

    def renewers(self) -> list[Endpoint]:
        """Endpoints that can renew a lease now, the current one first. Raises `StoreUnfit`.

        ▲ Without waiting for admission: it reads, and so waits while a member defragments, or does not apply, though it
        still renews. A lease that waited for it would be lost while etcd has it. Endpoints of this store alone."""
        if self._unfit.done():
            raise self._unfit.result()
        ready = [endpoint for endpoint in self._endpoints if endpoint.known and endpoint.ready()]
        return sorted(ready, key=lambda endpoint: (endpoint is not self._current, endpoint.failed_at))

    async def _pick(self) -> bool:
        """Make the ready endpoint whose last failure is oldest the current one; False if there is none."""
        candidates = [endpoint for endpoint in self._endpoints if endpoint.ready()]
        if not candidates:
            return False
        chosen = min(candidates, key=lambda endpoint: endpoint.failed_at)
        if not await self._admit(chosen):
            return False
        previous, self._current = self._current, chosen
        if previous is not chosen:
            previous.leave()
        return True

    async def _reopen_renewed(self) -> None:
        """Reads the TLS files again, now and then, as long as no endpoint serves."""
        now = self._clock.monotonic()
        if now < self._files_looked_at + _FILES_EVERY_S:
            return
        self._files_looked_at = now
        for endpoint in self._endpoints:
            try:
                if await endpoint.reopen_if_renewed(GRACE_S):
                    log.info("etcd endpoint reopened: its TLS files were renewed", endpoint=endpoint.address)
            except InvalidArgument as error:
                log.warning("TLS files of etcd not read again", endpoint=endpoint.address, error=str(error))

    async def unary(
        self, path: str, request: bytes, *, timeout_s: float | None = None, endpoint: Endpoint | None = None
    ) -> bytes:
        """One call, to the current endpoint unless one is named. Raises `Unanswered`, `Refused`, `Compacted`."""
        try:
            return await self._call(endpoint or self._current, path, request, timeout_s)
        except TokenExpired:
            await self._authenticate(self._token)
        try:
            return await self._call(endpoint or self._current, path, request, timeout_s)
        except TokenExpired as error:
            raise Refused(Reason.DENIED, str(error)) from error

    async def _call(
        self,
        endpoint: Endpoint,
        path: str,
        request: bytes,
        timeout_s: float | None = None,
        *,
        anonymous: bool = False,
    ) -> bytes:
        """As `unary`; also raises `TokenExpired`. `anonymous`: without the token, which etcd may refuse even if it
        needs none."""
        timeout_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        metadata = None if anonymous else self._metadata()
        channel = endpoint.channel
        try:
            reply: bytes = await endpoint.unary(path)(request, timeout=timeout_s, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            meaning = meaning_of(error.code(), error.details() or "")
            if isinstance(meaning, Unanswered):
                self.distrust(endpoint, str(meaning))
            raise meaning from error
        except asyncio.CancelledError:
            if endpoint.channel is channel or is_cancelled():
                raise
            raise Unanswered(f"{endpoint.address} was reopened") from None
        return reply

    def stream(
        self,
        path: str,
        *,
        extra: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        endpoint: Endpoint | None = None,
    ) -> tuple[Endpoint, StreamCall]:
        """A bidirectional call to the current endpoint unless one is named; the caller passes its failure to
        `stream_failed`.
        """
        endpoint = endpoint or self._current
        metadata = (*(self._metadata() or ()), *(extra or {}).items())
        return endpoint, endpoint.channel.stream_stream(path)(metadata=metadata, timeout=timeout_s)

    async def download(self, path: str, request: bytes, endpoint: Endpoint) -> AsyncIterator[bytes]:
        """The messages of a call with one request and many answers. Raises `Unanswered`, `Refused`."""
        method: grpc.aio.UnaryStreamMultiCallable[bytes, bytes] = endpoint.channel.unary_stream(path)
        call = method(request, metadata=self._metadata())
        messages = aiter(call)
        try:
            while True:
                # ▲ On each message, not on the whole, which has no bound: a member whose disk hangs still answers
                # pings, and the caller would hang with it, and hold its locks for ever.
                async with asyncio.timeout(PIECE_TIMEOUT_S):
                    message = await anext(messages, None)
                if message is None:
                    return
                yield message
        except grpc.aio.AioRpcError as error:
            await self.stream_failed(endpoint, error.code(), error.details() or "")
        except TimeoutError:
            late = f"no further part within {PIECE_TIMEOUT_S:g} s"
            await self.stream_failed(endpoint, grpc.StatusCode.DEADLINE_EXCEEDED, late)
        finally:
            call.cancel()

    async def stream_failed(self, endpoint: Endpoint, code: grpc.StatusCode, text: str) -> NoReturn:
        """Raise the error for the end of a stream: `Unanswered`, `Refused`, `Compacted`. Replaces a lost token."""
        meaning = meaning_of(code, text)
        if isinstance(meaning, TokenExpired):
            await self._authenticate(self._token)
            raise Unanswered(text)
        if isinstance(meaning, Unanswered):
            self.distrust(endpoint, text)
        raise meaning

    @property
    def token(self) -> str | None:
        """The token of calls made now; None without a user."""
        return self._token

    async def knows(self, token: str | None) -> bool:
        """Whether etcd still accepts `token`; if not, gets a new one. Raises `Unanswered`.

        An etcd 3.5 answers "permission denied" for a watch that was merely opened with a token it has forgotten."""
        if token is not None and token == self._token:
            probe = pb.RangeRequest(key=self._settings.prefix.encode() + b"/probe", keys_only=True)
            try:
                await self.unary(_RANGE, probe.SerializeToString())
            except Refused:
                return self._token == token  # refused by name, so the token is known
        return self._token == token

    def look_again(self) -> None:
        """Have the store behind each endpoint checked before it is used again."""
        for endpoint in self._endpoints:
            endpoint.admitted = False

    def is_of_this_cluster(self, cluster_id: int) -> bool:
        """Whether an answer came from the cluster that was admitted."""
        return cluster_id == self._cluster_id

    def distrust(self, endpoint: Endpoint, why: str) -> None:
        """Prefer others for now; check it again before its next use."""
        endpoint.why = why
        endpoint.admitted = False
        endpoint.failed_at = self._clock.monotonic()

    async def close(self) -> None:
        for endpoint in self._endpoints:
            await endpoint.channel.close()

    def _metadata(self) -> tuple[tuple[str, str], ...] | None:
        return None if self._token is None else (("token", self._token),)

    async def _admit(self, endpoint: Endpoint) -> bool:
        """Whether the endpoint may be used: a release that keeps acknowledged writes, a member of the same cluster."""
        try:
            status = await self._status(endpoint)
        except (Unanswered, Refused, TokenExpired) as error:
            self.distrust(endpoint, str(error))
            return False
        try:
            self._check(endpoint, status)
        except InvalidArgument as error:
            self._refuse(endpoint, error)
            return False
        endpoint.inadmissible = None
        if not status.leader:
            self.distrust(endpoint, "it has no leader")
            return False
        if not await self._is_same_store(endpoint):
            return False
        self._cluster_id = status.header.cluster_id
        endpoint.admitted = endpoint.known = True
        endpoint.why = _NOT_CONNECTED
        return True

    def _refuse(self, endpoint: Endpoint, error: InvalidArgument) -> None:
        """Raises `StoreUnfit` once none is left of the cluster that was admitted."""
        if str(error) != str(endpoint.inadmissible):
            log.error("etcd endpoint must not be used", endpoint=endpoint.address, error=str(error))
        endpoint.inadmissible = error
        self.distrust(endpoint, str(error))
        if self._cluster_id is not None and all(one.inadmissible for one in self._endpoints):
            # ▲ Nothing but a restart helps. A process that waited on would hang, ready by all it says, for ever.
            raise self.condemn(StoreUnfit(str(error))) from None

    async def _is_same_store(self, endpoint: Endpoint) -> bool:
        if self.check_store is None or (self._settings.user is not None and self._token is None):
            return True  # no request is allowed without a token; `open` checks later
        try:
            await self.check_store(endpoint)
        except (Unanswered, TokenExpired) as error:
            self.distrust(endpoint, str(error))
            return False
        except Refused as refusal:
            if refusal.reason is Reason.DENIED:
                return True  # a user without the right to read it gets that error from its first request
            self.distrust(endpoint, str(refusal))
            return False
        except StoreUnfit as error:
            raise self.condemn(error) from None
        return True

    def condemn(self, error: StoreUnfit) -> StoreUnfit:
        """Send nothing any more; returns `error` for the caller to raise."""
        for endpoint in self._endpoints:
            self.distrust(endpoint, str(error))
        if not self._unfit.done():
            log.error("etcd is unfit", error=str(error))
            self._unfit.set_result(error)
        return error

    async def wait_unfit(self) -> StoreUnfit:
        return await asyncio.shield(self._unfit)

    def _check(self, endpoint: Endpoint, status: pb.StatusResponse) -> None:
        check_release(status.version, development=self._settings.development, endpoint=endpoint.address)
        if self._cluster_id is not None and self._cluster_id != status.header.cluster_id:
            raise InvalidArgument(
                f"etcd at {endpoint.address} belongs to cluster {status.header.cluster_id:x}, this store was connected "
                f"to {self._cluster_id:x}: the endpoints must be one cluster, a restored backup takes a restart"
            )

    async def _authenticate_first(self) -> None:
        while self._token is None:
            try:
                await self._authenticate(None)
            except Unanswered:
                await asyncio.sleep(_POLL_S)
                await self.wait_ready()

    async def _status(self, endpoint: Endpoint) -> pb.StatusResponse:
        """Asks without a token, which etcd may have forgotten; with one if etcd requires it."""
        try:
            reply = await self._call(endpoint, _STATUS, b"", anonymous=True)
        except (Refused, TokenExpired):
            await self._authenticate(self._token, endpoint)
            reply = await self._call(endpoint, _STATUS, b"")
        return pb.StatusResponse.FromString(reply)

    async def _authenticate(self, known_token: str | None, endpoint: Endpoint | None = None) -> None:
        """Get a new token unless another task just has. Raises `Unanswered`, and `Refused` if the user may not."""
        async with self._authenticating:
            if self._token != known_token:
                return
            user, password = self._settings.user, self._settings.password
            if user is None:
                raise Refused(Reason.DENIED, "etcd asks for a user and none is configured")
            request = pb.AuthenticateRequest(name=user, password=password or "").SerializeToString()
            try:
                reply = await self._call(endpoint or self._current, _AUTHENTICATE, request, anonymous=True)
            except (Refused, TokenExpired) as refusal:
                if isinstance(refusal, Refused) and refusal.reason is Reason.BUSY:
                    # ▲ It is not about the user: reported as a refusal it would end every watch for good.
                    raise Unanswered(f"no token for etcd user {user!r} yet: {refusal}") from refusal
                raise Refused(Reason.DENIED, f"etcd user {user!r}: {refusal}") from refusal
            self._token = pb.AuthenticateResponse.FromString(reply).token


def is_cancelled() -> bool:
    """Whether the task itself is cancelled, not a call that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


# Texts are etcd's (`api/v3rpc/rpctypes/error.go`), the same from 3.4 to 3.6.
_TOKEN_TEXTS: Final = ("invalid auth token", "revision of auth store is old", "revision in header is old")


def meaning_of(code: grpc.StatusCode, text: str) -> Exception:
    """The meaning of etcd's answer for the request. Everything that does not surely mean "not applied" is `Unanswered`:
    etcd itself sends UNAVAILABLE, DEADLINE_EXCEEDED and the like when a proposal is lost or late."""
    if code is grpc.StatusCode.UNAUTHENTICATED or any(part in text for part in _TOKEN_TEXTS):
        return TokenExpired(text)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        if "database space exceeded" in text:
            return Refused(Reason.FULL, text)
        return Refused(Reason.BUSY if "too many requests" in text else Reason.MALFORMED, text)
    if code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in text:
        return Compacted(text)
    if code is grpc.StatusCode.NOT_FOUND and "lease" in text:
        return Refused(Reason.LEASE_GONE, text)
    if code is grpc.StatusCode.INVALID_ARGUMENT and "user name is empty" in text:
        return Refused(Reason.DENIED, "etcd asks for a user and none is configured")
    if code is grpc.StatusCode.UNKNOWN and "permission denied" in text:  # so says 3.4 of its maintenance calls
        return Refused(Reason.DENIED, text)
    if code in _DEFINITE:
        return Refused(_DEFINITE[code], text)
    return Unanswered(f"{code.name}: {text}")


_DEFINITE: Final = {
    grpc.StatusCode.PERMISSION_DENIED: Reason.DENIED,
    grpc.StatusCode.INVALID_ARGUMENT: Reason.MALFORMED,
    grpc.StatusCode.OUT_OF_RANGE: Reason.MALFORMED,
    grpc.StatusCode.FAILED_PRECONDITION: Reason.MALFORMED,
    grpc.StatusCode.UNIMPLEMENTED: Reason.MALFORMED,
}
