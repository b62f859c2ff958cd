"""Room in a producer's buffer: who gets it, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txnclient.producing.room import BufferRoom


def _granted(room: BufferRoom[str], sizes: dict[str, int]) -> list[str]:
    given_room = []
    while (who := room.next()) is not None:
        room.take(sizes[who])
        given_room.append(who)
    return given_room


def test_c3_nobody_passes_one_who_waits_though_it_would_fit() -> None:
    room: BufferRoom[str] = BufferRoom(100)
    room.take(80)
    sizes = {"large": 50, "small": 10}
    for who, size in sizes.items():
        room.ask(who, size)
    assert not room.has(10)
    assert _granted(room, sizes) == []
    room.give_back(40)
    assert _granted(room, sizes) == ["large", "small"]
    assert room.taken == 100


def test_c3_who_is_behind_one_that_leaves_gets_its_turn() -> None:
    room: BufferRoom[str] = BufferRoom(100)
    room.take(80)
    room.ask("large", 50)
    room.ask("small", 10)
    assert room.leave("large")
    assert not room.leave("large")
    assert _granted(room, {"small": 10}) == ["small"]
    assert len(room) == 0
    assert room.has(10)


def test_what_is_larger_than_the_buffer_is_let_in_alone() -> None:
    room: BufferRoom[str] = BufferRoom(100)
    assert room.has(1000)
    room.take(1)
    assert not room.has(1000)
    room.ask("giant", 1000)
    assert room.next() is None
    room.give_back(1)
    assert _granted(room, {"giant": 1000}) == ["giant"]
    assert not room.has(1)


@given(st.lists(st.one_of(st.integers(1, 150), st.sampled_from(["store", "leave"])), max_size=60), st.integers(0, 9))
def test_c3_room_is_given_in_the_order_of_asking_and_never_over_the_bound(steps: list[int | str], which: int) -> None:
    room: BufferRoom[int] = BufferRoom(100)
    sizes: dict[int, int] = {}
    taken: list[int] = []
    waiting: list[int] = []
    for number, step in enumerate(steps):
        if step == "store" and taken:
            room.give_back(sizes[taken.pop(0)])
        elif step == "leave" and waiting:
            assert room.leave(waiting.pop(which % len(waiting)))
        elif isinstance(step, int):
            sizes[number] = step
            waiting.append(number)
            if room.has(step):
                assert waiting == [number], "only where nobody has asked before"
                waiting.clear()
                room.take(step)
                taken.append(number)
            else:
                room.ask(number, step)
        while (who := room.next()) is not None:
            assert who == waiting.pop(0)
            room.take(sizes[who])
            taken.append(who)
        assert room.waiting == waiting
        assert room.taken == sum(sizes[one] for one in taken)
        assert room.taken <= 100 or len(taken) == 1
        assert not waiting or taken, "somebody always gets on"
