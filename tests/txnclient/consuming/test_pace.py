"""How many messages of a queue a consumer keeps ahead, and what it can give back of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.txnclient.consuming.test_queue_inbox import entry
from txnclient.consuming.inbox import QueueInbox
from txnclient.consuming.pace import QueuePace

MOST = 1000


class Application:
    """Takes one message after another and works on each for `job_s`."""

    def __init__(self, most: int = MOST) -> None:
        self.pace = QueuePace(most)
        self.busy_s = 0.0
        self.gave_back = 0

    def work(self, messages: int, job_s: float, *, at_once: int = 1) -> None:
        for _ in range(messages):
            self.gave_back += self.pace.asked(self.busy_s, at_once)
            self.pace.taken(1)
            self.busy_s += job_s


@pytest.mark.parametrize("job_s", [0.05, 0.1, 1.0, 60.0])
def test_for_long_jobs_one_message_is_kept_ahead(job_s: float) -> None:
    application = Application()
    for _ in range(50):
        application.work(1, job_s)
        assert application.pace.window == 1


@pytest.mark.parametrize(
    ("job_s", "least", "most"), [(0.01, 2, 8), (0.001, 16, 80), (0.0001, 160, 800), (0.0, MOST, MOST)]
)
def test_the_window_is_what_is_worked_off_within_two_to_eight_hundredths_of_a_second(
    job_s: float, least: int, most: int
) -> None:
    application = Application()
    application.work(10_000, job_s)
    assert least <= application.pace.window <= most
    assert not application.gave_back


def test_a_pause_now_and_then_changes_nothing() -> None:
    application = Application()
    application.work(5000, 0.0001)
    window = application.pace.window
    for _ in range(5):
        application.work(1, 0.3)
        application.work(2000, 0.0001)
    assert application.pace.window >= window
    assert not application.gave_back


def test_when_jobs_become_long_what_waits_is_given_back_after_the_second() -> None:
    application = Application()
    application.work(5000, 0.0001)
    assert application.pace.window > 100
    application.work(2, 0.5)
    assert not application.gave_back
    application.work(2, 0.5)
    assert application.gave_back
    assert application.pace.window == 1


def test_who_asks_for_many_at_once_gets_them_but_no_more_than_its_bound() -> None:
    application = Application(300)
    application.work(3, 10.0, at_once=200)
    assert application.pace.window == 200
    application.work(3, 10.0, at_once=500)
    assert application.pace.window == 300


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("deliver"), st.integers(1, 5)),
            st.tuples(st.just("take"), st.integers(1, 4)),
            st.tuples(st.just("give back"), st.integers(0, 4)),
        ),
        max_size=40,
    )
)
def test_every_message_is_taken_or_given_back_once_and_its_permit_is_granted_again(
    steps: list[tuple[str, int]],
) -> None:
    inbox = QueueInbox(8)
    granted = inbox.attached()
    delivered: list[tuple[int, int]] = []
    ended: list[tuple[int, int]] = []
    for step, number in steps:
        if step == "deliver":
            if number > granted:
                continue
            entry_id = len(delivered)
            received = entry(entry_id, number)
            received.holder = inbox
            inbox.arrived(received, b"")
            granted -= number
            delivered += [(entry_id, index) for index in range(number)]
        elif step == "take":
            ended += [(one.entry.position.entry_id, one.index) for one in inbox.take(number)]
        else:
            bits, counts = inbox.take_back(keep=number)
            assert inbox.buffered <= max(number, 0) or not bits
            assert bits.keys() == counts.keys()
            for position, given_bits in bits.items():
                ended += [(position.entry_id, at) for at in range(counts[position]) if given_bits >> at & 1]
        granted += inbox.permits_due()
        assert len(set(ended)) == len(ended), "taken and given back, or twice"
    inbox.paused = True
    assert inbox.permits_due() == 0
    inbox.paused = False
    while taken := inbox.take(100):
        ended += [(one.entry.position.entry_id, one.index) for one in taken]
    granted += inbox.permits_due()
    assert sorted(ended) == sorted(delivered)
    assert granted + inbox.buffered > 4, "half a window at least is always granted"


def test_an_inbox_that_is_paused_is_attached_again_without_permits() -> None:
    inbox = QueueInbox(8)
    inbox.paused = True
    assert inbox.attached() == 0
    inbox.paused = False
    assert inbox.permits_due() == 8
