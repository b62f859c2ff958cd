"""A topic's DAG as lines."""

from __future__ import annotations

from typing import Any

import pytest

from txnctl.commands.shared.drawing import draw
from txnctl.commands.topics import thresholds_of
from txnwire.errors import InvalidArgument


def segment(number: int, lo: int, hi: int, parents: list[int], children: list[int], **facts: Any) -> dict[str, Any]:
    return {
        "id": number,
        "descriptor": f"{lo:04x}-{hi:04x}-{number}",
        "lo": lo,
        "hi": hi,
        "parents": parents,
        "children": children,
        "state": "SEALED" if children else "ACTIVE",
        "owner": "b1",
        "entries": 1234,
        "last_confirmed": "1:1233",
        "max_read_position": "1:1233",
        "pinned_by": [],
        "backlog": {},
        "load": None,
        "error": None,
    } | facts


def drawn(*segments: dict[str, Any], changes: Any = (), policies: Any = (), everything: bool = False) -> list[str]:
    answer = {
        "topic": "topic://t/n/x",
        "epoch": 4,
        "policies": dict(policies),
        "changes": list(changes),
        "segments": sorted(segments, key=lambda one: (one["lo"], one["id"])),
    }
    return list(draw(answer, everything=everything))


PIN = {"txn": "0003-1", "position": "1:7", "entries_behind": 5, "owner": "alice"}
SEGMENTS = (
    segment(0, 0, 0xFFFF, [], [1, 2], backlog={"billing": 12, "audit": 0}, pinned_by=[PIN]),
    segment(
        1,
        0,
        0x7FFF,
        [0],
        [3, 4],
        owner=None,
        entries=None,
        last_confirmed=None,
        max_read_position=None,
        error="NotOwner: nobody",
    ),
    segment(2, 0x8000, 0xFFFF, [0], [5]),
    segment(3, 0, 0x3FFF, [1], [], load={"messages_per_s": 12_000.0, "bytes_per_s": 1_500_000.0}),
    segment(4, 0x4000, 0x7FFF, [1], [5]),
    segment(5, 0x4000, 0xFFFF, [4, 2], []),
)


def test_parents_stand_before_their_children_with_all_that_is_known_of_them() -> None:
    change = {"kind": "merge", "segments": ["t/n/x/0000-3fff-3", "t/n/x/4000-ffff-5"], "for_s": 1.25}
    assert drawn(*SEGMENTS, policies={"retention_ms": 60_000}, changes=[change]) == [
        "topic://t/n/x  layout epoch 4: 2 active, 4 sealed",
        "policies: retention_ms 60,000",
        "under way: merge of t/n/x/0000-3fff-3 and t/n/x/4000-ffff-5, for 1.2 s",
        "",
        "segment            0000        ffff  state   merged  owner   entries  end     readable             comes in"
        "  backlog",
        "0000-ffff-0        ████████████████  sealed          b1        1,234  1:1233  1:1233                       "
        "  billing 12",
        "                   held at 1:7 by 0003-1 of alice, 5 entries behind it",
        "├─ 0000-7fff-1     ████████········  sealed          nobody",
        "                   NotOwner: nobody",
        "│  ├─ 0000-3fff-3  ████············  active          b1        1,234  1:1233  1:1233    12,000/s 1,500 kB/s",
        "│  └─ 4000-7fff-4  ····████········  sealed          b1        1,234  1:1233  1:1233",
        "└─ 8000-ffff-2     ········████████  sealed          b1        1,234  1:1233  1:1233",
        "   └─ 4000-ffff-5  ····████████████  active  4+2     b1        1,234  1:1233  1:1233",
    ]


def test_what_is_long_over_is_counted_and_drawn_when_asked_for() -> None:
    segments = [segment(0, 0, 0xFFFF, [], [1, 2])]
    for number in range(1, 19, 3):  # split, merged, split again
        more = number + 3 < 19
        segments += [
            segment(number, 0, 0x7FFF, [number - 1], [number + 2]),
            segment(number + 1, 0x8000, 0xFFFF, [number - 1], [number + 2]),
            segment(number + 2, 0, 0xFFFF, [number, number + 1], [number + 3, number + 4] if more else []),
        ]
    lines = drawn(*segments)
    assert [line.split(" ")[1] if line[0] in "└├" else line.split(" ")[0] for line in lines[3:6]] == [
        "0000-7fff-16",
        "0000-ffff-18",
        "8000-ffff-17",
    ]
    assert len(lines) == 2 + 1 + 3 + 2, "the active one and its parents"
    assert lines[-1] == (
        "16 older segments more, sealed, with 19,744 entries that no subscription needs; --all shows them"
    )
    assert len(drawn(*segments, everything=True)) == 2 + 1 + 19


def test_of_several_policies_changes_pins_and_backlogs_all_are_drawn() -> None:
    pins = [PIN, PIN | {"txn": "0003-2", "position": "1:9", "entries_behind": 3, "owner": "bob"}]
    changes = [
        {"kind": "split", "segments": [f"t/n/x/{name}"], "for_s": 1.0} for name in ("0000-7fff-0", "8000-ffff-1")
    ]
    backlog = dict(zip("abcde", (7, 0, 9, 8, 6), strict=True))
    lines = drawn(
        segment(0, 0, 0x7FFF, [], [], pinned_by=pins, backlog=backlog),
        segment(1, 0x8000, 0xFFFF, [], [], owner=None, error="NotOwner: nobody"),
        policies={"retention_ms": 60_000, "max_segments": 8},
        changes=changes,
    )
    assert lines[1] == "policies: retention_ms 60,000, max_segments 8"
    assert [line.partition(" of ")[2] for line in lines[2:4]] == [
        "t/n/x/0000-7fff-0, for 1.0 s",
        "t/n/x/8000-ffff-1, for 1.0 s",
    ]
    assert lines[6].endswith("c 9, d 8, a 7 and 1 more"), lines[6]
    assert [line.strip() for line in lines[7:9]] == [
        "held at 1:7 by 0003-1 of alice, 5 entries behind it",
        "held at 1:9 by 0003-2 of bob, 3 entries behind it",
    ]
    assert [lines[9].split()[0], lines[10].strip()] == ["8000-ffff-1", "NotOwner: nobody"]


def test_a_merged_segment_of_which_only_the_second_parent_is_drawn_is_drawn_once_below_it() -> None:
    lines = drawn(
        segment(0, 0, 0x7FFF, [], [2]),
        segment(1, 0x8000, 0xFFFF, [], [2], backlog={"job": 1}),
        segment(2, 0, 0xFFFF, [0, 1], [3, 4], backlog={"job": 1}),
        segment(3, 0, 0x7FFF, [2], []),
        segment(4, 0x8000, 0xFFFF, [2], []),
    )
    assert [line.rstrip().partition("  █")[0].partition("  ·")[0] for line in lines[3:-2]] == [
        "8000-ffff-1      ",
        "└─ 0000-ffff-2   ",
        "   ├─ 0000-7fff-3",
        "   └─ 8000-ffff-4",
    ]


def test_what_came_into_a_segment_before_it_was_sealed_does_not_come_in_any_more() -> None:
    load = {"messages_per_s": 5.0, "bytes_per_s": 900.0}
    sealed = segment(0, 0, 0xFFFF, [], [1], load=load, backlog={"job": 1})
    lines = drawn(sealed, segment(1, 0, 0xFFFF, [0], []))
    assert not any("comes in" in line or "/s" in line for line in lines)
    lines = drawn(sealed, segment(1, 0, 0xFFFF, [0], [], load=load))
    assert ["5/s 1 kB/s" in line for line in lines[3:]] == [False, True]


@pytest.mark.parametrize(
    ("lo", "hi", "bar"),
    [
        (0, 0x00FF, "█···············"),
        (0, 0x0FFF, "█···············"),
        (0, 0x1000, "██··············"),
        (0x0FFF, 0x1FFF, "██··············"),
        (0x1000, 0x1FFF, "·█··············"),
        (0xFF00, 0xFFFF, "···············█"),
    ],
)
def test_a_bar_covers_all_that_a_segment_has_a_part_of(lo: int, hi: int, bar: str) -> None:
    assert bar in drawn(segment(0, lo, hi, [], []))[-1]


@pytest.mark.parametrize(
    ("backlog", "shown"),
    [
        ({"a": 1, "b": 2, "c": 3}, "c 3, b 2, a 1"),
        ({"a": 1, "b": 1, "c": 1, "d": 1000}, "d 1,000, a 1, b 1 and 1 more"),
        ({"a": 1, "b": 0}, "a 1"),
    ],
)
def test_the_longest_backlogs_are_named_and_the_others_counted(backlog: dict[str, int], shown: str) -> None:
    assert drawn(segment(0, 0, 0xFFFF, [], [], backlog=backlog))[-1].endswith(f"  {shown}")


def test_one_entry_that_is_held_back_is_told_as_one() -> None:
    lines = drawn(segment(0, 0, 0xFFFF, [], [], pinned_by=[PIN | {"entries_behind": 1}]))
    assert lines[-1].strip() == "held at 1:7 by 0003-1 of alice, 1 entry behind it"


@pytest.mark.parametrize("why", [{"backlog": {"job": 1}}, {"pinned_by": [PIN]}, {"error": "NotOwner: nobody"}])
def test_a_sealed_segment_is_drawn_as_long_as_anything_of_it_matters(why: dict[str, Any]) -> None:
    parts = [segment(1, 0, 0xFFFF, [0], [2]), segment(2, 0, 0xFFFF, [1], [])]
    lines = drawn(segment(0, 0, 0xFFFF, [], [1], **why), *parts)
    assert ("0000-ffff-0" in lines[3], "older segment" in lines[-1]) == (True, False)
    lines = drawn(segment(0, 0, 0xFFFF, [], [1], backlog={"job": 0}), *parts)
    assert lines[-1].startswith("1 older segment more, sealed, with 1,234 entries that no subscription needs")


def test_nobody_owns_it_and_nothing_is_known() -> None:
    lines = drawn(segment(0, 0, 0xFFFF, [], [], owner=None, entries=None, last_confirmed=None, max_read_position=None))
    assert lines[-1] == "0000-ffff-0  ████████████████  active  nobody"


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("off", "off"),
        ("", {}),
        ("max_segments=8,split_messages_per_s=2.5e3", {"max_segments": 8, "split_messages_per_s": 2500.0}),
        ("split_bytes_per_s=1.5MiB, merge_after_s=5m,", {"split_bytes_per_s": 1_572_864, "merge_after_s": 300.0}),
        ("a=1.5,b=1e3,c_s=90", {"a": 1.5, "b": 1000.0, "c_s": 90.0}),
    ],
)
def test_a_policy_is_typed_in_one_word(text: str, policy: Any) -> None:
    assert thresholds_of(text) == policy


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("on", "on"),
        ("max_segments", "max_segments"),
        ("max_segments=many", "max_segments=many"),
        ("max_segments=8,merge_after_s=soon", "merge_after_s=soon"),
        ("max_segments=8,split_bytes_per_s=much", "split_bytes_per_s=much"),
        ("max_segments=", "max_segments="),
        ("split_messages_per_s=5m", "split_messages_per_s=5m"),
    ],
)
def test_a_policy_that_is_none_is_refused_with_the_part_that_is_wrong(text: str, wrong: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"--autoscale '{wrong}': expected off, or name=num.*--drop autoscale"):
        thresholds_of(text)
