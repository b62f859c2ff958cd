"""Registers a client's producers at the controller, once per topic.

A registration marks a topic as in use before the first send. It is renewed after a change of controller or a lost
connection, and ends with the topic's last producer, or with the connection. Only an opening waits for it, for a moment.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from txnclient.connection.deadlines import Backoff, Deadline
from txnclient.connection.links import Link
from txnclient.connection.session import TRANSIENT, Session
from txnclient.connection.topic_layout import TopicLayout
from txnwire.errors import ConnectionLost, TopicNotFound, TxnError, again
from txnwire.proto import txn_pb2 as pb

REGISTER_TIMEOUT_S: Final = 5.0
OPENING_S: Final = 0.5
"""How long an opening waits for its registration, which goes on in the background."""
AT_ONCE: Final = 100
"""Concurrent registrations after a change of controller."""

_log = logging.getLogger("txnclient")


class ProducerRegistration:
    """Registration of one topic, in one life of it."""

    def __init__(self, layout: TopicLayout) -> None:
        self.layout = layout
        """The layout when the first producer was opened."""
        self.producers = 0
        self.due = True
        """Whether it must still be sent to the controller."""
        self.tried = asyncio.Event()
        """Set after the first attempt, successful or not: an opening goes on."""
        self.life = layout.life
        """The life that the controller reports; if it differs from the layout's, there is a new topic of the name."""
        self.refused: TxnError | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.layout.topic, self.layout.life


class Registrations:
    """Keeps one client's registrations."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: dict[tuple[str, int], ProducerRegistration] = {}
        self._link: Link | None = None
        self._address: str | None = None
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def enter(self, topic: str, deadline: Deadline) -> ProducerRegistration:
        """Count one more producer of the current topic, and wait a moment for its registration. Raises `TopicNotFound`,
        `Timeout`."""
        while True:
            layout = await self._session.directory.layout(topic, deadline)
            registration = self._entered(layout)
            try:
                # ▲ `wait_for` (3.11) takes no cancel in the turn in which its call ends: the opening would go on.
                async with asyncio.timeout(min(OPENING_S, deadline.remaining())):
                    await registration.tried.wait()
            except TimeoutError:
                registration.tried.set()  # the next opening need not wait as well
            except BaseException:
                self.leave(registration)
                raise
            if registration.refused is None and not layout.is_another(registration.life):
                return registration
            self.leave(registration)
            if registration.refused is not None:
                raise again(registration.refused)
            # ▲ The layout known here belongs to a deleted topic: a producer of it could send nothing.
            await self._wait_life(topic, registration.life, deadline)

    def _entered(self, layout: TopicLayout) -> ProducerRegistration:
        registration = self._known.get((layout.topic, layout.life))
        if registration is None:
            registration = self._known[layout.topic, layout.life] = ProducerRegistration(layout)
            self._news.set()
        registration.layout = layout
        registration.producers += 1
        if self._task is None:
            self._task = self._session.tasks.keep(self._run, name="registering producers")
        return registration

    async def _wait_life(self, topic: str, life: int, deadline: Deadline) -> None:
        while (known := self._session.directory.known_layout(topic)) is None or known.life < life:
            if self._session.closed:
                raise ConnectionLost(f"looking up {topic}: this client was closed meanwhile")
            if deadline.passed:
                raise deadline.expired(f"looking up {topic}")
            await self._session.directory.wait_change(min(deadline.remaining(), 1.0))

    def leave(self, registration: ProducerRegistration) -> None:
        """A counted producer has closed."""
        registration.producers -= 1
        if not registration.producers and self._known.get(registration.key) is registration:
            del self._known[registration.key]
            self._say_over(registration)

    def _say_over(self, registration: ProducerRegistration) -> None:
        topic, life = registration.key
        if self._link is not None:
            over = pb.RegisterProducer(topic=topic, over=True, life=life)
            self._link.push_if_open(pb.Command(register_producer=over))

    # ---- telling the controller -------------------------------------------------------------------------------------

    async def _run(self) -> None:
        backoff = Backoff(self._session.random)
        while True:
            try:
                await self._catch_up()
            except TRANSIENT as error:
                _log.debug("registering producers: %s", error)
                for registration in self._known.values():
                    registration.tried.set()
                await self._session.directory.wait_change(backoff.next_s())
            else:
                backoff.reset()
                await self._wait()

    async def _wait(self) -> None:
        """Wait for another controller, the end of the connection, or a new topic."""
        unlisten = self._session.directory.listen(self._news.set)
        forget = None if self._link is None else self._link.when_lost(self._news.set)
        try:
            while not self._known or (not self._due() and self._is_there()):
                self._news.clear()
                await self._news.wait()
        finally:
            unlisten()
            if forget is not None:
                forget()

    def _due(self) -> list[ProducerRegistration]:
        return [registration for registration in self._known.values() if registration.due]

    def _is_there(self) -> bool:
        """Whether the last controller still leads, as far as known, and its link is open."""
        link = self._link
        return (
            link is not None
            and not link.closed
            and self._session.directory.controller_address
            in (
                self._address,
                None,
            )
        )

    async def _catch_up(self) -> None:
        """Send all due registrations to the current controller. Raises transient errors."""
        if not self._known:
            return  # the last producer has closed meanwhile: no connection is needed
        if not self._is_there():
            await self._turn_to_controller()
        link = self._link
        while link is not None and (due := self._due()[:AT_ONCE]):
            answers = await asyncio.gather(*(self._register(link, one) for one in due), return_exceptions=True)
            for error in answers:
                if error is not None:
                    raise error

    async def _turn_to_controller(self) -> None:
        address = self._session.directory.controller_address
        link = await self._session.directory.controller_link(Deadline(self._session.clock, REGISTER_TIMEOUT_S))
        if link is not self._link:
            # ▲ A former controller that leads again would still count producers closed meanwhile.
            for registration in self._known.values():
                self._say_over(registration)
                registration.due = True
        self._link, self._address = link, address

    async def _register(self, link: Link, registration: ProducerRegistration) -> None:
        topic, life = registration.key
        request = pb.RegisterProducer(topic=topic, life=life)
        try:
            reply = await link.call(pb.Command(register_producer=request), timeout_s=REGISTER_TIMEOUT_S)
            registration.life = reply.register_producer_ok.life
        except TRANSIENT:
            raise
        except TopicNotFound as error:
            registration.refused = error
        except TxnError as error:  # an older controller, which counts only producers that have sent
            _log.debug("registering a producer of %s: %s", topic, error)
        registration.due = False
        registration.tried.set()
        gone = registration.refused is not None or registration.layout.is_another(registration.life)
        if gone and self._known.get(registration.key) is registration:
            # Its producers learn of it from the layout; a producer opened next belongs to a new registration.
            del self._known[registration.key]
