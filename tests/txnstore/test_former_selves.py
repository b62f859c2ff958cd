"""Whose lease a process may end: a table."""

from __future__ import annotations

from txnstore.former_selves import REMEMBERED, FormerSelves


def test_what_holds_the_name_at_the_first_look_is_a_predecessor_s() -> None:
    selves = FormerSelves()
    selves.found([7, 8])
    selves.found([9])
    assert [selves.may_end(lease) for lease in (7, 8, 9)] == [True, True, False]


def test_what_holds_it_after_a_first_look_at_nothing_is_a_namesake_s() -> None:
    selves = FormerSelves()
    selves.found([])
    selves.found([9])
    assert not selves.may_end(9)


def test_leases_of_its_own_are_its_own_and_bounded() -> None:
    selves = FormerSelves()
    selves.granted(1)
    selves.found([9])
    assert (selves.may_end(1), selves.may_end(9)) == (True, False)
    for lease in range(2, REMEMBERED + 2):
        selves.granted(lease)
    assert (selves.may_end(1), selves.may_end(2), selves.may_end(REMEMBERED + 1)) == (False, True, True)
