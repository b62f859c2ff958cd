"""The client processes of a run: which there are, what they know, and what is read when they have ended."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial

from simulation.clients.plan import TOPICS, Plan
from simulation.seeking.seek_model import SeekLog
from simulation.seeking.seek_sending import TOPIC as SOUGHT_TOPIC
from simulation.seeking.seek_sending import SenderLife
from simulation.seeking.seek_work import SeekDrain, SeekLife
from simulation.workloads.acking_work import TOPIC as ACKING_TOPIC
from simulation.workloads.acking_work import AckingDrain, AckingLife, AckingLog
from simulation.workloads.dead_work import DeadDrain, DeadLife, DeadLog
from simulation.workloads.hanging_work import TOPIC as HANGING_TOPIC
from simulation.workloads.hanging_work import HangingDrain, HangingLife, HangingLog
from simulation.workloads.keyed_work import KeyedLife, KeyedLog
from simulation.workloads.large_work import TOPIC as LARGE_TOPIC
from simulation.workloads.large_work import LargeDrain, LargeLife, LargeLog
from simulation.workloads.layout_work import LayoutLife
from simulation.workloads.numbered_work import TOPIC as NUMBERED_TOPIC
from simulation.workloads.numbered_work import NumberedDrain, NumberedLog, SourceLife, source
from simulation.workloads.obedient_work import ObedientDrain, ObedientLife, ObedientLog
from simulation.workloads.operator_work import OperatorLife
from simulation.workloads.passing_work import TOPIC as PASSING_TOPIC
from simulation.workloads.passing_work import PassingDrain, PassingLife, PassingLog
from simulation.workloads.queue_work import QueueDrain, QueueLife, QueueLog
from simulation.workloads.staying_work import StayingLife, StayingLog
from simulation.workloads.stream_work import StreamDrain, StreamLife, StreamLog
from simulation.workloads.workload import ClientLife, Drain
from simulation.world.world import Ports, World

PASSING = "client-passing"
QUEUE_WORKERS = ("client-jobs-1", "client-jobs-2")
KEYED = ("client-keyed-1", "client-keyed-2")
SEEKER = "client-seeker"
SENDER = "client-sender"
"""Sends to the topic of the seek workload."""
ACKER = "client-acker"
OPERATOR = "client-operator"
LAYOUTS = "client-layouts"
LARGE = "client-large"
GIVING_UP = "client-giving-up"
STREAM = "client-stream"
STAYING = "client-staying"
OBEDIENT = ("client-obedient-1", "client-obedient-2")
HANGING = "client-hanging"
NUMBERED = ("client-numbered-1", "client-numbered-2")
NUMBERED_ITEMS = 1000
EXTRA_SHARE = 0.5
"""Share of runs with large values; the same for dead letters, and for a stream from cut to cut."""
LAYOUT_PACES_S = (None, 8.0, 3.0, 0.8)
"""Paces of layout changes, one of them for each run; None: there are none."""

DrainStep = tuple[str, Awaitable[None], Callable[[], Iterable[str]]]
"""What is read, the reading, and what the workload's judge finds after it."""


class ClientProcesses:
    """`shape` draws which kinds there are. The logs are those of all lives of a workload's processes."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self._plan = plan
        self._seed = seed
        self.queue = QueueLog()
        self.passing = PassingLog()
        self.sought = SeekLog()
        self.acking = AckingLog()
        self.large = LargeLog()
        self.dead = DeadLog()
        self.stream = StreamLog(TOPICS)
        self.staying = StayingLog()
        self.held = KeyedLog()
        self.obedient = ObedientLog()
        chance = random.Random(f"{seed}/numbered")  # apart, like all that follows: what a seed draws otherwise stays
        self._numbering = NUMBERED[: chance.choice((0, 0, 1, 2))]
        self.numbered = NumberedLog(source(chance, NUMBERED_ITEMS), hasty=plan.careless > 0)
        self.hanging = HangingLog()
        self._hangs = random.Random(f"{seed}/hanging").random() < EXTRA_SHARE
        self._names: list[str] = []
        self.finished = False
        """Whether everything of the history was read."""

    def add(self, world: World, shape: random.Random) -> None:
        for name in ("client-1", "client-2"):
            world.add(name, lambda ports: ClientLife(ports, self._plan).live())
        for name in QUEUE_WORKERS:
            world.add(name, lambda ports: QueueLife(ports, self._plan, self.queue).live())
        world.add(PASSING, lambda ports: PassingLife(ports, self._plan, self.passing).live())
        world.add(SEEKER, lambda ports: SeekLife(ports, self._plan, self.sought).live())
        world.add(SENDER, lambda ports: SenderLife(ports, self._plan, self.sought).live())
        world.add(ACKER, lambda ports: AckingLife(ports, self._plan, self.acking).live())
        for name in KEYED:
            world.add(name, lambda ports: KeyedLife(ports, self._plan, self.held).live())
        world.add(OPERATOR, lambda ports: OperatorLife(ports, self._plan).live())
        if shape.random() < EXTRA_SHARE:
            world.add(LARGE, lambda ports: LargeLife(ports, self._plan, self.large).live())
        if shape.random() < EXTRA_SHARE:
            world.add(GIVING_UP, lambda ports: DeadLife(ports, self._plan, self.dead).live())
        if (pace_s := shape.choice(LAYOUT_PACES_S)) is not None:
            changed = [*TOPICS, *TOPICS, PASSING_TOPIC, SOUGHT_TOPIC, SOUGHT_TOPIC, ACKING_TOPIC]
            changed += [NUMBERED_TOPIC] * 2 * self.numbers + [HANGING_TOPIC] * self._hangs
            world.add(LAYOUTS, lambda ports: LayoutLife(ports, self._plan, changed, pace_s).live())
        if shape.random() < EXTRA_SHARE:
            if LARGE in world.processes:
                self.stream.topics = (*TOPICS, LARGE_TOPIC)
            world.add(STREAM, lambda ports: StreamLife(ports, self._plan, self.stream).live())
        if shape.random() < EXTRA_SHARE:
            world.add(STAYING, lambda ports: StayingLife(ports, self._plan, self.staying).live())
        if random.Random(f"{self._seed}/obedient").random() < EXTRA_SHARE:  # apart: what a seed draws otherwise stays
            for name in OBEDIENT:
                world.add(name, lambda ports: ObedientLife(ports, self._plan, self.obedient).live())
        for name in self._numbering:
            world.add(name, lambda ports: SourceLife(ports, self._plan, self.numbered).live())
        if self._hangs:
            world.add(HANGING, lambda ports: HangingLife(ports, self._plan, self.hanging).live())
        self._names = list(world.processes)

    @property
    def numbers(self) -> bool:
        """Whether there are numbered producers."""
        return bool(self._numbering)

    def at_rest(self) -> Iterator[str]:
        """What is wrong once everything has healed, while the processes still run."""
        yield from self.staying.findings()
        yield from self.obedient.stranded()

    def drains(self, ports: Ports) -> Iterator[DrainStep]:
        """The readings at the end, to be done one after the other."""
        plan = self._plan
        drain = Drain(ports, plan)
        yield "reading everything", drain.run(), lambda: ()
        self.finished = drain.finished
        yield "queue", QueueDrain(ports, plan, self.queue).run(), self.queue.findings
        yield "passing topic", PassingDrain(ports, plan, self.passing).run(), self.passing.findings
        yield "sought subscription", SeekDrain(ports, plan, self.sought).run(), self.sought.findings
        yield "acks of every kind", AckingDrain(ports, plan, self.acking).run(), self.acking.findings
        if LARGE in self._names:
            yield "large values", LargeDrain(ports, plan, self.large).run(), self.large.findings
        if GIVING_UP in self._names:
            yield "dead letters", DeadDrain(ports, plan, self.dead).run(), self.dead.findings
        if STREAM in self._names:
            together = partial(self.stream.findings, self._sent_together())
            yield "stream from cut to cut", StreamDrain(ports, plan, self.stream).run(), together
        if OBEDIENT[0] in self._names:
            yield "copies", ObedientDrain(ports, plan, self.obedient).run(), self.obedient.findings
        if self._hangs:
            yield "hanging workers", HangingDrain(ports, plan, self.hanging).run(), self.hanging.findings
        if self.numbers:
            yield "numbered items", NumberedDrain(ports, plan, self.numbered).run(), self.numbered.findings

    def _sent_together(self) -> Iterator[list[str]]:
        """Values, grouped by the transaction, or the writer's part of one, that sent them."""
        for draft in self._plan.recorder.drafts:
            yield [value for _, value in draft.sends]
        large: dict[str, list[str]] = {}
        for send in self.large.sends:
            large.setdefault(send.txn_id, []).append(send.value)
        yield from large.values()

    def reached(self) -> dict[str, int]:
        """How often each of their rare branches was reached."""
        held, sought, obedient, numbered = self.held, self.sought, self.obedient, self.numbered
        return {
            "fenced": held.fenced,
            "connects with one key that race": held.raced + held.refused,
            "sought": sought.seeks,
            "sought, and it is known where at last": int(sought.ended and sought.is_certain),
            "sought elsewhere": sought.refused,
            "acked behind a seek": sought.late,
            "sought topic made again": sought.life,
            "sought subscription made again": sought.lives,
            "copied in a transaction": obedient.committed,
            "flag obeyed: the same call again": obedient.again,
            "flag obeyed: aborted and begun again": obedient.aborted,
            "flag obeyed: a new client": obedient.restarted,
            "numbered producer opened behind an earlier life": max(0, numbered.lives - 1),
            "numbered producer opened behind sends without an answer": numbered.behind_another,
            "numbered item sent again that was told as stored": numbered.again,
            "numbered producer fenced": numbered.fenced,
            "message held beyond its ack timeout": self.hanging.hung,
            "message taken over from a worker that hangs": self.hanging.taken_over,
            "ack refused that came too late": self.hanging.late,
            "queue consumer paused": self.hanging.paused,
            "message of a queue delivered at its time": self.hanging.later,
            "call ended by a timeout of its own": self.hanging.timed,
            "segment paused": self.staying.paused,
            "segment resumed": self.staying.resumed,
            "subscription left by unsubscribe": self.staying.unsubscribed,
            "message that came again behind an unsubscribe": self.staying.again,
            "message of a topic made later than the consumer of its pattern": self.staying.by_pattern,
            "lag told": self._plan.lags.told,
            "lag not known": self._plan.lags.asked - self._plan.lags.told,
            "lag of 0 behind a drain": self._plan.lags.drained_to_0,
        }
