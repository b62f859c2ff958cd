"""The bridge from any thread into one event loop, the base of the synchronous face.

All synchronous clients of a process share one loop in one thread, which starts for the first and stops after the last:
gRPC's asynchronous stack does not work well with several loops. A calling thread waits for the loop's answer, so it may
run an event loop of its own, as a notebook does.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import math
import os
import queue
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from txnclient.connection.opening import Closable, Opening
from txnclient.connection.session import forked_from
from txnclient.producing.untold import Looked
from txnclient.reading.unfinished import UnfinishedSync
from txnclient.transactions.transaction_impl import TransactionImpl
from txnclient.transactions.whole import cancelled_in
from txnwire.errors import ConnectionLost, InvalidArgument, InvalidTxnState, Timeout, TxnError, for_good

_log = logging.getLogger("txnclient")

T = TypeVar("T")
C = TypeVar("C", bound=Closable)
I_co = TypeVar("I_co", covariant=True)

EXIT_TIMEOUT_S = 5.0
"""How long the end of the interpreter waits for unclosed clients."""


CANCEL_TIMEOUT_S = 10.0
"""How long an interrupt waits for the interrupted work."""

SIGNALS_S = 0.5
"""How long a wait may go on before Python looks for signals again.

▲ C1: Python runs a handler in the main thread, between two instructions. A signal that comes after the last of them and
before the thread sleeps, or that the kernel gives to another thread, does not end the sleep: Ctrl-C would be noticed
only when the call ends by itself.
"""


class RunInCaller(Protocol):
    """Runs a function in the thread that called the bridge and is waiting for it."""

    def __call__(self, function: Callable[[], T]) -> Awaitable[T]: ...


class Teller(Protocol):
    """A producer: it raises unreported failures."""

    def told_by(self, stored: asyncio.Future[Any], looked: Looked) -> None: ...


class Sent(Future[T]):
    """The result of a send, for any thread."""

    def __init__(self, soon: Callable[[Callable[[], object]], None], txn: TransactionImpl | None) -> None:
        """`soon`: runs a function in the loop. `txn`: the transaction of the send."""
        super().__init__()
        self.looked = Looked()
        self.inner: asyncio.Future[T] | None = None
        self._soon = soon
        self._txn = txn
        self._pid = os.getpid()

    def result(self, timeout: float | None = None) -> T:
        self.exception(timeout)
        return super().result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self.done() and os.getpid() != self._pid:  # ▲ C6: no answer reaches a forked child
            raise for_good(InvalidArgument(forked_from(self._pid)))
        if timeout != 0 and not self.done():
            self._expect_elsewhere()
        _wait(self, timeout)
        error = super().exception(0)
        self.looked.yes = True
        return error

    def _expect_elsewhere(self) -> None:
        """▲ C6: raises `InvalidArgument` in the loop's thread, where callbacks of sent messages run: it would wait for
        itself for ever, and every other caller with it."""
        if self.inner is not None and asyncio.events._get_running_loop() is self.inner.get_loop():
            raise for_good(InvalidArgument("a message was waited for by the event loop's own thread, which sends it"))

    def cancel(self) -> bool:
        cancelled = super().cancel()
        if cancelled and self.inner is not None:
            self._soon(self.inner.cancel)
        return cancelled

    def ended(self, inner: asyncio.Future[T]) -> None:
        """The send has ended; called in the loop."""
        if inner.cancelled():
            super().cancel()
        if not self.set_running_or_notify_cancel():
            # ▲ C1: also if it was answered before the loop saw the cancel: the caller relies on its cancel.
            if self._txn is not None:
                self._txn.failed(cancelled_in(self._txn, "a send"))
            return
        error = inner.exception()
        if error is not None:
            self.set_exception(error)
        else:
            self.set_result(inner.result())

    def abandoned(self) -> None:
        """The loop has ended without it."""
        if self.set_running_or_notify_cancel():
            self.set_exception(ConnectionLost("this client was closed meanwhile"))


class Bridge:
    """The loop and its thread. `open_client` opens each client on it, `close_client` closes it."""

    _lock = threading.RLock()
    """▲ Reentrant: a signal handler or a destructor that uses the face may run in the middle of a call."""
    _running: Bridge | None = None

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._clients: dict[Closable, None] = {}
        self._opening = 0
        self._stopped = False
        self._sent: WeakSet[Sent[Any]] = WeakSet()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="txnclient.sync", daemon=True)
        # A daemon: the interpreter waits for other threads before `_at_exit` could close the clients.
        self._thread.start()

    @classmethod
    def open_client(cls, opening: Callable[[], Opening[C]]) -> tuple[Bridge, C]:
        """Open a client on the process' bridge, and start that if needed."""
        with cls._lock:
            bridge = cls._running
            if bridge is None or bridge._pid != os.getpid():
                bridge = cls._running = Bridge()
            bridge._opening += 1
        try:
            client = bridge.wait(opened(opening))
            with cls._lock:
                bridge._clients[client] = None
            return bridge, client
        finally:
            with cls._lock:
                bridge._opening -= 1
            bridge._stop_if_unused()

    def close_client(self, client: Closable) -> None:
        """Close it; after the last one the thread ends. Idempotent."""
        with self._lock:
            if client not in self._clients:
                return
        # ▲ C6: before the end of the loop is prepared: a client that is not closed would go on without it.
        self._expect_serving()
        try:
            self.wait(client.close())
        finally:
            with self._lock:
                self._clients.pop(client, None)
            self._stop_if_unused()

    # ---- calling ----------------------------------------------------------------------------------------------------

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it in the loop and wait for its end. Ctrl-C ends the wait and cancels it."""
        return self._result(self._submit(work))

    def call(self, function: Callable[[], T]) -> T:
        """Run a plain function in the loop's thread, where everything of a client belongs."""

        async def run() -> T:
            return function()

        return self.wait(run())

    def read(self, attribute: Callable[[], T]) -> T:
        """As `call`, for a value that is there at once. ▲ After the last client has closed, the calling thread reads
        it, since no loop changes it then: a program may ask for a transaction's result after it has closed all."""
        if self._stopped or threading.current_thread() is self._thread:
            return attribute()
        return self.call(attribute)

    def close(self, thing: Closable) -> None:
        """Close an object that a client has opened. No-op if the last client has closed, which closes everything."""
        if not self._stopped:
            self.wait(thing.close())

    def behind(self, error: BaseException, work: Coroutine[Any, Any, object]) -> None:
        """As `wait`, for work that follows from `error`, which the caller raises. ▲ After the last client has closed,
        and in a forked child, the work fails: that failure must not hide `error`."""
        try:
            self.wait(work)
        except TxnError as failure:
            error.add_note(f"and its transaction was not aborted here: {type(failure).__name__}: {failure}")

    def settle(self, txn: TransactionImpl) -> None:
        """Settle it in the background, while there is one: the close of the last client has aborted it, or tried to."""
        with suppress(InvalidArgument, ConnectionLost):
            self.call(txn.settle_later)

    def sent(self, producer: Teller, start: Callable[[], asyncio.Future[T]], txn: TransactionImpl | None) -> Future[T]:
        """Start a send in the loop, which raises a refusal at once; returns the result for any thread. A failure counts
        as told when the caller retrieves it, not when the bridge passes it on."""
        sent: Sent[T] = Sent(self._soon, txn)

        def begin() -> asyncio.Future[T]:
            started = start()
            producer.told_by(started, sent.looked)
            started.add_done_callback(sent.ended)
            self._sent.add(sent)
            return started

        sent.inner = self.call(begin)
        return sent

    def iterate(self, start: Callable[[], AsyncGenerator[T, None]]) -> Generator[T, None, None]:
        """The items of an asynchronous generator, which starts at once and is closed with this one."""
        items = self.call(start)
        reading: asyncio.Task[Any] | None = None

        async def following() -> tuple[T] | None:
            nonlocal reading
            reading = asyncio.current_task()
            async for item in items:
                return (item,)
            return None

        async def closed() -> None:
            if reading is not None:
                await asyncio.wait([reading])  # ▲ cancelled by an interrupt; a running generator cannot be closed
            await items.aclose()

        def generate() -> Generator[T, None, None]:
            try:
                while (item := self.wait(following())) is not None:
                    yield item[0]
            finally:
                self._close_items(closed)

        return UnfinishedSync(generate())

    def _close_items(self, closed: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if threading.current_thread() is self._thread:  # dropped there, by the garbage collector
            self._loop.create_task(closed())
        elif not self._stopped and self._pid == os.getpid():
            self.wait(closed())

    def serve(self, work: Callable[[RunInCaller], Coroutine[Any, Any, T]]) -> T:
        """As `wait`, for work that runs functions in this thread meanwhile, such as a user's handler: these may use the
        synchronous face, and an interrupt reaches them."""
        requests: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

        def run_in_caller(function: Callable[[], Any]) -> Awaitable[Any]:
            answer = self._loop.create_future()
            requests.put(lambda: self._answer(answer, function))
            return answer

        ended = threading.Event()

        async def run() -> T:
            try:
                return await work(run_in_caller)
            finally:
                ended.set()

        done = self._submit(run())
        done.add_done_callback(lambda _: requests.put(None))
        try:
            while (request := _next(requests)) is not None:
                request()
        except BaseException:
            done.cancel()
            # ▲ Its cleanup ends before the caller goes on: otherwise a consumer would hand out messages that lie behind
            # those to be redelivered.
            ended.wait(CANCEL_TIMEOUT_S)
            raise
        return self._result(done)

    def _answer(self, answer: asyncio.Future[Any], function: Callable[[], Any]) -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - an error of the user; raised at its await
            problem = _raisable(error)
            self._soon(lambda: None if answer.done() else answer.set_exception(problem))
        else:
            self._soon(lambda: None if answer.done() else answer.set_result(result))

    def _soon(self, function: Callable[[], object]) -> None:
        with self._lock:
            if not self._stopped:
                self._loop.call_soon_threadsafe(function)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        with self._lock:
            try:
                self._expect_serving()
            except InvalidArgument:
                work.close()
                raise
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _expect_serving(self) -> None:
        """Raises `InvalidArgument` if the caller cannot wait for the loop."""
        if self._pid != os.getpid():
            refused = forked_from(self._pid)
        elif threading.current_thread() is self._thread:
            refused = "the synchronous face was called by its own event loop, which would wait for itself for ever"
        elif self._stopped:
            refused = "this client is closed"
        else:
            return
        raise for_good(InvalidArgument(refused))

    def _result(self, future: Future[T]) -> T:
        try:
            _wait(future)
            return future.result()
        except CancelledError:
            raise ConnectionLost("this client was closed meanwhile") from None
        except BaseException:
            future.cancel()  # of no effect unless this is an interrupt of the wait itself
            raise

    # ---- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._stopped:
                self._run_loop()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=EXIT_TIMEOUT_S))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            for sent in [one for one in self._sent if not one.done()]:
                sent.abandoned()
            self._loop.close()

    def _run_loop(self) -> None:
        """▲ C6: what a serializer or a callback of a sent message raises may be meant to end the program, and must not
        end the loop: all callers, in every thread, would wait for ever."""
        try:
            self._loop.run_forever()
        except (SystemExit, KeyboardInterrupt) as error:
            _log.error("%s was raised in the thread of the event loop, where it ends nothing", type(error).__name__)

    def _stop_if_unused(self) -> None:
        with self._lock:
            if self._stopped or self._clients or self._opening:
                return
            self._stop()
        if threading.current_thread() is not self._thread:
            self._thread.join(EXIT_TIMEOUT_S)

    def _stop(self) -> None:
        self._stopped = True
        if Bridge._running is self:
            Bridge._running = None
        self._loop.call_soon_threadsafe(self._loop.stop)

    @classmethod
    def _forked(cls) -> None:
        """Reset in a forked child, where neither the thread nor the lock's holder exists."""
        cls._lock = threading.RLock()
        cls._running = None

    @classmethod
    def _at_exit(cls) -> None:
        with cls._lock:
            bridge = cls._running
        if bridge is None or bridge._pid != os.getpid():
            return

        async def close_all() -> None:
            clients = list(bridge._clients)
            for failure in await asyncio.gather(*(client.close() for client in clients), return_exceptions=True):
                if failure is not None:
                    raise failure

        try:
            closing = bridge._submit(close_all())
            _wait(closing, EXIT_TIMEOUT_S)  # ▲ C6: here, not in the loop, which a callback may block for ever
            if closing.cancel():
                raise Timeout(f"clients that nobody closed took longer than {EXIT_TIMEOUT_S:g} s: close them in time")
            bridge._result(closing)
        finally:
            with cls._lock:
                bridge._clients.clear()
            bridge._stop_if_unused()


atexit.register(Bridge._at_exit)
os.register_at_fork(after_in_child=Bridge._forked)


class Face(Generic[I_co]):
    """A synchronous object that wraps an asynchronous one and calls it over the bridge."""

    def __init__(self, bridge: Bridge, inner: I_co) -> None:
        self._bridge = bridge
        self._inner = inner

    def __repr__(self) -> str:
        return f"<sync {self._inner!r}>"


def closed_behind(close: Callable[[], None], error: BaseException | None) -> None:
    """As `txnclient.connection.opening.closed_behind`."""
    try:
        close()
    except TxnError as failure:
        if error is None:
            raise
        error.add_note(f"and closing failed: {type(failure).__name__}: {failure}")


def expect_not_abandoned(txn: TransactionImpl) -> None:
    """Raises `InvalidTxnState` at the end of a block if the close of the client has aborted its transaction. ▲ A commit
    would raise the same, but it cannot be called after the last client has closed."""
    if txn.abandoned:
        raise InvalidTxnState(
            f"transaction {txn.id} cannot commit: it is {txn.state.value}, because its client was closed"
        )


def _wait(future: Future[Any], timeout: float | None = None) -> None:
    """Wait until it is done or `timeout` seconds are over; see `SIGNALS_S`.

    ▲ C1: suppresses nothing. A signal handler of the caller may raise `TimeoutError` too, as its own limit on the call:
    without it the call would go on.

    Sleeps on a plain lock. A future or an event takes a lock of its own around each sleep; a signal handler that calls
    the face just then would wait for the loop, which needs that lock to go on."""
    if future.done() or (timeout is not None and timeout <= 0):
        return
    ended = threading.Lock()
    ended.acquire()
    future.add_done_callback(lambda _: ended.release())
    ends = math.inf if timeout is None else time.monotonic() + timeout
    while not future.done() and (left := ends - time.monotonic()) > 0:
        ended.acquire(timeout=min(left, SIGNALS_S))


def _next(requests: queue.SimpleQueue[T]) -> T:
    """The next item, once there is one; see `SIGNALS_S`."""
    while True:
        with suppress(queue.Empty):
            return requests.get(timeout=SIGNALS_S)


def _raisable(error: Exception) -> Exception:
    """Wrap a `StopIteration`, as generators do: no future accepts one, so its waiter would wait for ever."""
    if not isinstance(error, StopIteration):
        return error
    raised = RuntimeError("the function raised StopIteration")
    raised.__cause__ = error
    return raised


async def opened(opening: Callable[[], Opening[C]]) -> C:
    """Await the opening in the loop, because the opened object belongs to it."""
    return await opening()
