"""Between what `read` reads, from where `peek` begins, and how a value is shown."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from txnctl.commands.reading import SHOWN_BYTES, _before, _bound, _shown, read
from txnctl.commands.shared.output import Format
from txnctl.commands.topics import _hash_of, _show_layout
from txnwire.errors import InvalidArgument
from txnwire.ids import Position
from txnwire.snapshot import SegmentBounds, Snapshot, TopicBounds

TOPIC = "topic://public/default/orders"


def test_a_snapshots_file_is_a_bound_and_what_is_none_is_named_with_its_option(tmp_path: Path) -> None:
    snapshot = ending({"0000-ffff-0": Position(5, 9)})
    file = tmp_path / "taken"
    file.write_text(snapshot.to_json())
    assert _bound(str(file), "--from") == snapshot
    assert _bound("1700", "--to") == 1700
    for content in (b"{}", b"\xff\xfe"):
        file.write_bytes(content)
        with pytest.raises(InvalidArgument, match=f"^--at: {file} is no snapshot as `txnctl snapshot -o json` writes"):
            _bound(str(file), "--at")
    with pytest.raises(InvalidArgument, match=f"^--from: '{tmp_path}': expected 'earliest'"):
        _bound(str(tmp_path), "--from")
    with pytest.raises(InvalidArgument, match=r"^--to x{300}: File name too long$"):
        _bound("x" * 300, "--to")


@pytest.mark.parametrize("options", [{"to": "1"}, {"follow": True}, {"start": "1"}])
def test_one_moment_has_no_other_bounds(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="leave out --from, --to and --follow"):
        read(TOPIC, at="1700", **options)


def test_what_is_followed_has_no_end() -> None:
    with pytest.raises(InvalidArgument, match="--follow has no end: leave out --to"):
        read(TOPIC, to="1700", follow=True)


@pytest.mark.parametrize("end", ["earliest", "public/default/orders/0000-ffff-0@7:42:0"])
def test_the_end_is_a_time_or_a_snapshot(end: str) -> None:
    with pytest.raises(InvalidArgument, match=f"--to {end}: expected a snapshot's file or a time"):
        read(TOPIC, to=end)


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"", ""),
        (b"a\nb", "a⏎b"),
        (b"\xff", "\ufffd"),
        (b"x" * SHOWN_BYTES, "x" * SHOWN_BYTES),
        (b"x" * (SHOWN_BYTES + 1), "x" * SHOWN_BYTES + "…"),
    ],
)
def test_a_value_is_shown_in_one_line_and_cut_off_with_a_mark(data: bytes, shown: str) -> None:
    assert _shown(data) == shown


def ending(ends: dict[str, Position]) -> Snapshot:
    segments = {f"public/default/orders/{name}": SegmentBounds(end, end) for name, end in ends.items()}
    return Snapshot(revision=1, topics={TOPIC: TopicBounds(1, segments)})


@pytest.mark.parametrize(
    ("ends", "entries", "ledgers", "starts"),
    [
        ([(5, 9)], 4, 0, [(5, 5)]),
        ([(5, 9)], 10, 0, [(5, -1)]),
        ([(5, 9)], 1000, 0, [(5, -1)]),
        ([(5, 9)], 4, 1, [(4, -1)]),
        ([(5, 9)], 4, 4, [(1, -1)]),
        ([(5, 9)], 4, 5, None),
        ([(5, 9)], 4, 1000, None),
        ([(5, 9), (2, 3)], 4, 3, [(2, -1), (0, -1)]),
        ([(2, 3), (5, 9)], 4, 3, [(0, -1), (2, -1)]),
        ([(0, 7)], 4, 0, None),
    ],
)
def test_peek_begins_so_many_entries_or_ledgers_before_the_end_and_not_before_the_first_of_all(
    ends: list[tuple[int, int]], entries: int, ledgers: int, starts: list[tuple[int, int]] | None
) -> None:
    end = ending({f"{number}": Position(*one) for number, one in enumerate(ends)})
    start = _before(end, entries, ledgers)
    found = None if start is None else [tuple(one.end) for one in start.topics[TOPIC].segments.values()]
    assert found == starts


def test_a_hash_is_read_as_it_stands_in_the_names_of_segments() -> None:
    assert [_hash_of(text) for text in ("9000", "ffff", "0000")] == [0x9000, 0xFFFF, 0]
    with pytest.raises(InvalidArgument, match="--at 'middle': expected a hash in hex digits"):
        _hash_of("middle")


def test_a_child_that_is_no_segment_any_more_is_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    segments = {
        0: SimpleNamespace(path="t/n/x/0000-ffff-0", children=(1, 2)),
        2: SimpleNamespace(path="t/n/x/8000-ffff-2", children=()),
    }
    layout = cast(Any, SimpleNamespace(topic="topic://t/n/x", epoch=3, segments=segments))
    _show_layout(layout, "it", ["t/n/x/0000-ffff-0"], Format.TABLE)
    assert capsys.readouterr().out == "it into 8000-ffff-2, layout epoch 3\n"
