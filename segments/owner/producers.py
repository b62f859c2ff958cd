"""The producers connected to a segment: one session for each, on one connection."""

from __future__ import annotations

from collections.abc import Callable

from segments.log.sends.dedup import NOTHING_STORED, Dedup
from segments.log.sends.numbered import NumberedNames, fenced
from segments.log.sends.pipeline import Pipeline
from segments.log.sends.sending import IncomingEntry, ProducerLine, SendReply
from txnwire.errors import NotAllowed, NotOwner, ProducerFenced, TxnError
from txnwire.ports import Clock

OnClosed = Callable[[TxnError, int], None]
"""Called with the error that ended the session and, after a seal, the producer's last sequence id stored here."""


class ProducerSession:
    """Passes on one producer's sends. Calls `on_closed` once when the session ends, unless the client closes it."""

    def __init__(
        self, producers: ConnectedProducers, name: str, token: int, line: ProducerLine, on_closed: OnClosed
    ) -> None:
        self._producers = producers
        self._name = name
        self._token = token
        self.line = line
        self._on_closed: OnClosed | None = on_closed
        self.error: TxnError | None = None

    def send(self, entry: IncomingEntry, reply: SendReply) -> None:
        """See `Pipeline.send`. Raises the error that ended the session."""
        if self.error is not None:
            raise self.error
        if entry.numbers is not None:
            self._producers.names.expect_room(self._name, entry.numbers)
        self._producers.pipeline.send(self.line, self._token, entry, reply)

    def end(self, error: TxnError, last_sequence_id: int = NOTHING_STORED) -> None:
        """End the session from the segment's side: fenced, the segment is gone, or it is sealed. After a seal
        `last_sequence_id` is this producer's last one stored here, for good."""
        on_closed, self._on_closed, self.error = self._on_closed, None, error
        if on_closed is not None:
            on_closed(error, last_sequence_id)

    def close(self) -> None:
        """End the session from the client's side. Sends in flight continue."""
        if self._on_closed is not None:
            self._on_closed = None
            self.error = NotOwner(f"producer {self._name} was closed: open it again")
            self._producers.closed(self._token, self.line)


Opened = tuple[ProducerSession, int]
"""A session, and the last stored sequence id of its producer."""


class ConnectedProducers:
    """Holds the sessions of a segment's producers. ▲ One live connection per producer name: a second one fences the
    first (L10)."""

    def __init__(self, pipeline: Pipeline, dedup: Dedup[SendReply], clock: Clock) -> None:
        self.pipeline = pipeline
        self._dedup = dedup
        self._clock = clock
        self._sessions: dict[int, ProducerSession] = {}

    @property
    def names(self) -> NumberedNames:
        """The names of numbered producers."""
        return self._dedup.numbered

    def __len__(self) -> int:
        return len(self._sessions)

    def take_name(self, name: str, epoch: int, incarnation: int) -> bool:
        """▲ Fence earlier lives of a numbered producer: their connection here, and each later one. False if a later
        life has the name."""
        now_s = self._clock.monotonic()
        if not self.names.take(name, epoch, incarnation, now_s):
            return False
        token = self._dedup.disconnect_others(name, incarnation, now_s)
        if token is not None and (earlier := self._sessions.pop(token, None)) is not None:
            earlier.end(fenced(name))
            self.pipeline.retire(earlier.line)
        return True

    def open(self, name: str, incarnation: int, on_closed: OnClosed, name_epoch: int = 0) -> Opened:
        """The new session, and the last stored sequence id of this incarnation, -1 for none. `name_epoch`: of a
        numbered producer, which must have taken its name."""
        if name_epoch:
            self.names.expect(name, name_epoch, incarnation)
        elif name in self.names:
            # ▲ It would fence the numbered one, and its messages would have no ids.
            raise NotAllowed(
                f"producer {name} numbers its messages: open it with sequence_id=…, or choose another name"
            )
        connected = self._dedup.connect(name, incarnation, self._clock.monotonic())
        if connected.fenced is not None and (fenced := self._sessions.pop(connected.fenced, None)) is not None:
            # ▲ Only another incarnation is another producer. The same one may open twice, in any order: a delayed
            # opening that it gave up on must not fence it for good.
            if fenced.line.key == (name, incarnation):
                fenced.end(NotOwner(f"producer {name} was opened a second time: open it again"))
            else:
                fenced.end(ProducerFenced(f"a newer producer named {name} has connected"))
            self.pipeline.retire(fenced.line)
        line = self.pipeline.line(name, incarnation)
        session = ProducerSession(self, name, connected.token, line, on_closed)
        self._sessions[connected.token] = session
        return session, connected.last_sequence_id

    def closed(self, token: int, line: ProducerLine) -> None:
        """Called by `ProducerSession.close`."""
        self._sessions.pop(token, None)
        self._dedup.disconnect(token, self._clock.monotonic())
        self.pipeline.retire(line)

    def sealed(self, error: TxnError) -> None:
        """The seal is stored: end each session with its last stored sequence id, then fail the sends held back."""
        sessions, self._sessions = self._sessions, {}
        for token, session in sessions.items():
            last = self._dedup.last_sequence_id(*session.line.key)
            self._dedup.disconnect(token, self._clock.monotonic())
            self.pipeline.retire(session.line)
            session.end(error, last)
        self.pipeline.refuse_held(error)

    def stop(self, error: TxnError) -> None:
        """The segment is over here."""
        for session in list(self._sessions.values()):
            session.end(error)
        self._sessions.clear()
