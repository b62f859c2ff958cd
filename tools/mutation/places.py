"""Which mutants there are: one for each place in a module, of cosmic-ray's operators and ours, chosen by a seed."""

from __future__ import annotations

import ast
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Final

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator

from tools.mutation.operators import KINDS, Replacing

ACCIDENTS: Final = ("RemoveDecorator", "ExceptionReplacer", "VariableReplacer", "VariableInserter")
"""Operators whose mutants fail by a name or an attribute that is not there: catching them proves nothing."""

ALIKE: Final = (
    "Add_Sub", "Sub_Add", "Mul_FloorDiv", "FloorDiv_Mul", "Mul_Div", "Div_Mul", "Mod_Mul", "BitAnd_BitOr",
    "BitOr_BitAnd", "LShift_RShift", "RShift_LShift", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Eq_NotEq", "NotEq_Eq",
    "Is_IsNot", "IsNot_Is", "In_NotIn", "NotIn_In",
)  # fmt: skip
"""The operators in place of others that somebody might have written; `<<` for `+` fails at once."""

LARGEST_DERIVED: Final = 2

Position = tuple[int, int]
Span = tuple[Position, Position]


@dataclass(frozen=True)
class Mutant:
    """`path` from the root; `code` is the whole module, mutated."""

    path: str
    operator: str
    line: int
    before: str
    after: str
    code: str

    @property
    def diff(self) -> str:
        return f"{self.path}:{self.line} ({self.operator})\n- {self.before}\n+ {self.after}"


def mutants(
    root: Path, paths: Iterable[str], count: int, seed: int, kinds: Sequence[str] | None = None
) -> list[Mutant]:
    """`count` of them over all `paths`, in no order, so that the first ones are a sample as well: the same for the same
    code and seed. Fewer where there are. `kinds`: of these operators of ours only."""
    chance = random.Random(seed)
    operators = _alike() if kinds is None else []
    operators += [[(f"ours/{kind.name}", Replacing(kind))] for kind in KINDS if kinds is None or kind.name in kinds]
    found = [
        (path, place, choices) for path in paths for place, choices in sorted(_places(root / path, operators).items())
    ]
    chosen = chance.sample(range(len(found)), min(count, len(found)))
    made = [_made(root, found[index][0], chance.choice(found[index][2])) for index in chosen]
    return [mutant for mutant in made if mutant is not None]


Choice = tuple[str, Operator, int]
"""An operator's name, itself, and which of its occurrences in the module."""


def _places(path: Path, operators: list[list[tuple[str, Operator]]]) -> dict[tuple[Span, str], list[Choice]]:
    """What can be changed in a module → how. Many operators for one place are one place."""
    source = path.read_text()
    tree, without = get_ast(source), list(_passed_over(ast.parse(source)))
    places: dict[tuple[Span, str], list[Choice]] = defaultdict(list)
    nodes = list(ast_nodes(tree))
    for alike in operators:
        spans = (span for node in nodes for span in alike[0][1].mutation_positions(node))
        for occurrence, span in enumerate(spans):
            if not any(first <= span[0] and span[1] <= last for first, last in without):
                family = alike[0][0].partition("/")[2].partition("_")[0]
                places[span, family] += [(name, operator, occurrence) for name, operator in alike]
    return places


def _alike() -> list[list[tuple[str, Operator]]]:
    """Operators that change the same places in different ways, as `+` to `-`, `*` and others: these are looked for
    once."""
    found: dict[str, list[tuple[str, Operator]]] = defaultdict(list)
    for name in sorted(cosmic_ray.plugins.operator_names()):
        operator_class = cosmic_ray.plugins.get_operator(name)
        kind = name.partition("/")[2]
        is_replaced = kind.startswith(("ReplaceBinaryOperator_", "ReplaceComparisonOperator_"))
        if (is_replaced and kind.partition("_")[2] not in ALIKE) or kind.endswith("_Not"):
            continue
        if kind not in ACCIDENTS and not operator_class.arguments():
            found["_".join(kind.split("_")[:2])].append((name, operator_class()))
    return list(found.values())


def _passed_over(tree: ast.Module) -> Iterator[Span]:
    """Annotations, which nobody evaluates; the text of messages, and what is logged, which no test should repeat; class
    keywords such as `frozen`; sizes and times, which are chosen and not derived."""
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            parts = [node.returns, *(each.annotation for each in every if each is not None)]
            yield from _stars(node)
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.ClassDef):
            parts = [*node.keywords, *node.decorator_list]
        elif isinstance(node, ast.JoinedStr) or _is_logging(node) or _is_chosen(node):
            parts = [node]
        for part in parts:
            if part is not None and hasattr(part, "end_lineno"):
                yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset)


def _stars(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Span]:
    """Parameters: cosmic-ray takes their `*` for a product."""
    yield (function.lineno, function.col_offset), (function.body[0].lineno, function.body[0].col_offset)


def _is_chosen(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.right, ast.Constant) and (isinstance(node.left, ast.Constant) or _is_chosen(node.left))
    return isinstance(node, ast.Constant) and (
        isinstance(node.value, float) or (type(node.value) is int and node.value > LARGEST_DERIVED)
    )


def _is_logging(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in ("log", "_log")
    )


def _made(root: Path, path: str, choice: Choice) -> Mutant | None:
    name, operator, occurrence = choice
    source = (root / path).read_text()
    code = mutate_code(source, operator, occurrence)
    if code is None or code == source:
        return None
    changed = list(unified_diff(source.splitlines(), code.splitlines(), n=0, lineterm=""))[2:]
    line = int(changed[0].split()[1].lstrip("-").split(",")[0])
    before = " ".join(one[1:].strip() for one in changed if one.startswith("-"))
    after = " ".join(one[1:].strip() for one in changed if one.startswith("+"))
    if not before:  # an end behind the body of a loop: told by the loop, as a module has many
        before = _loop(source.splitlines()[:line], changed[-1][1:])
        after = f"{before} … {after}"
    return Mutant(path, name.partition("/")[2], line, before, after, code)


def _loop(above: list[str], end: str) -> str:
    """The first line of the loop whose body ends with this line."""
    depth = len(end) - len(end.lstrip())
    heads = (one.strip() for one in reversed(above) if one.strip() and len(one) - len(one.lstrip()) < depth)
    return next(one for one in heads if one.startswith(("for ", "async for ", "while ")))
