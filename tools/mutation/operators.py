"""What cosmic-ray does not change: loops cut short, statements and guards left out, counts, errors that are caught.

Each operator takes its place in a module's tree and gives the code that replaces it. Names that would then be missing
prove nothing when a test finds them, so an assignment to a local name stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import parso
from cosmic_ray.operators.operator import Operator

Node = Any
"""A node of parso, which has no types."""
Change = Callable[[Node], str | None]
"""The code in place of a node, or None where it is left alone."""
PASS: Final = "pass"
JUMPS: Final = ("return_stmt", "raise_stmt", "continue_stmt", "break_stmt")


@dataclass(frozen=True)
class Kind:
    """One family of mutants: what it does to nodes of `types`."""

    name: str
    types: tuple[str, ...]
    change: Change


class Replacing(Operator):
    """The operator of a kind."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind

    def mutation_positions(self, node: Node) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        if node.type in self.kind.types and self.kind.change(node) is not None:
            # A place is its first line: what stands within a loop or a handler has places of its own.
            first = node.get_first_leaf()
            yield first.start_pos, first.end_pos

    def mutate(self, node: Node, index: int) -> Node:
        code = self.kind.change(node)
        assert code is not None
        return parso.parse(node.get_first_leaf().prefix + code)

    @classmethod
    def examples(cls) -> tuple[()]:
        return ()


def _code(node: Node) -> str:
    return str(node.get_code(include_prefix=False))


def _serves_the_first_only(loop: Node) -> str | None:
    suite = loop.children[5] if len(loop.children) > 5 else None
    if suite is None or suite.type != "suite" or _jump(suite.children[-1]) is not None:
        return None
    indent = " " * suite.children[1].get_first_leaf().column
    body = "".join(child.get_code() for child in suite.children)
    head = "".join(child.get_code() for child in loop.children[:5]).removeprefix(loop.get_first_leaf().prefix)
    return f"{head}{body}{indent}break\n" + "".join(child.get_code() for child in loop.children[6:])


def _takes_the_first_only(comprehension: Node) -> str | None:
    """`… for x in xs`: of the first of them."""
    if comprehension.get_previous_leaf() is not None and comprehension.get_previous_leaf().value == "async":
        return None
    values = [child.get_code() for child in comprehension.children]
    values[0] = values[0].lstrip()
    values[3] = f" list({values[3].strip()})[:1]"
    return "".join(values)


def _leaves_out(statement: Node) -> str | None:
    """A call, an `await`, or an assignment to an attribute or an item; in `__init__` calls only."""
    what = statement.children[0]
    if what.type == "expr_stmt":
        target = what.children[0]
        if target.type not in ("atom_expr", "power") or _is_within(statement, "__init__"):
            return None
    elif what.type not in ("atom_expr", "power", "await", "del_stmt") or _is_logging(what):
        return None
    return f"{PASS}\n"


def _counts_one(assignment: Node) -> str | None:
    operator = assignment.children[1]
    if operator.type not in ("operator", "annassign") or getattr(operator, "value", "") not in ("+=", "-="):
        return None
    added = assignment.children[2]
    if added.type in ("number", "string", "fstring", "atom"):
        return None
    return f"{_code(assignment.children[0])} {operator.value} 1"


def _passes_the_guard(statement: Node) -> str | None:
    """`if …: return`, and nothing else: goes on."""
    if len(statement.children) != 4 or statement.children[3].type != "suite":
        return None
    stands = [child for child in statement.children[3].children if child.type != "newline"]
    if len(stands) != 1 or _jump(stands[0]) is None:
        return None
    condition = _code(statement.children[1])
    return f"if False and ({condition}):" + statement.children[3].get_code()


def _drops_the_last_operand(test: Node) -> str | None:
    """`a and b`, `a or b` → `a`."""
    return "".join(child.get_code() for child in test.children[:-2]).lstrip()


def _drops_the_first_operand(test: Node) -> str | None:
    return "".join(child.get_code() for child in test.children[2:]).lstrip()


def _lets_errors_through(statement: Node) -> str | None:
    """Each `except` raises what it caught; each `finally` does nothing."""
    words: list[str] = []
    changed = False
    for before, child in zip([None, None, *statement.children], statement.children, strict=False):
        code = child.get_code()
        if child.type == "suite" and before is not None:
            is_finally = getattr(before, "value", "") == "finally"
            if before.type == "except_clause" or is_finally:
                indent = " " * child.children[1].get_first_leaf().column
                replaced = f"\n{indent}{PASS if is_finally else 'raise'}\n"
                changed = changed or replaced.strip() != code.strip()
                code = replaced
        words.append(code)
    return "".join(words).removeprefix(statement.get_first_leaf().prefix) if changed else None


def _takes_the_other_extreme(name: Node) -> str | None:
    other = {"min": "max", "max": "min"}.get(getattr(name, "value", ""))
    after = name.get_next_sibling()
    if other is None or after is None or not after.get_code().startswith("("):
        return None
    return other


def _jump(statement: Node) -> Node | None:
    if statement.type != "simple_stmt":
        return None
    first = statement.children[0]
    word = getattr(first, "value", "")
    return first if first.type in JUMPS or word in ("return", "raise", "continue", "break") else None


def _is_within(node: Node, function: str) -> bool:
    while node is not None and node.type != "funcdef":
        node = node.parent
    return node is not None and node.name.value == function


def _is_logging(node: Node) -> bool:
    return getattr(node.get_first_leaf(), "value", "") in ("log", "_log", "logger", "_logger")


KINDS: Final = (
    Kind("ServeFirstOnly", ("for_stmt",), _serves_the_first_only),
    Kind("TakeFirstOnly", ("sync_comp_for",), _takes_the_first_only),
    Kind("LeaveOut", ("simple_stmt",), _leaves_out),
    Kind("CountOne", ("expr_stmt",), _counts_one),
    Kind("PassGuard", ("if_stmt",), _passes_the_guard),
    Kind("DropLastOperand", ("and_test", "or_test"), _drops_the_last_operand),
    Kind("DropFirstOperand", ("and_test", "or_test"), _drops_the_first_operand),
    Kind("LetErrorsThrough", ("try_stmt",), _lets_errors_through),
    Kind("OtherExtreme", ("name",), _takes_the_other_extreme),
)
