"""Makes forbidden actions of production code raise inside the simulation: clocks, randomness, threads, unordered
iteration.

`forbidden()` replaces the functions of `time`, `random`, `uuid`, `os`, `secrets`, `threading` and `socket` for its
duration. `install_guard()` has to be called before production packages are imported: it compiles them with sets that
refuse to be iterated while a simulation runs (membership, size, set algebra and `sorted` stay allowed), and with
`datetime.now()` and its like refused.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import hashlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, TypeVar

from simulation.world.loop import Nondeterminism

T = TypeVar("T")

PRODUCTION = ("txnwire", "txnstore", "watchers", "segments", "coordinator_v5", "txnclient", "txnctl")

_TIME_READERS = ("logging", "prometheus_client", "structlog")
"""Libraries that timestamp their records: they get virtual time instead of an error."""

_CLOCKS = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "sleep")
_RANDOM = (
    "random", "uniform", "randint", "randrange", "getrandbits", "choice", "choices", "sample", "shuffle", "seed",
    "randbytes", "gauss", "expovariate", "triangular", "betavariate",
)  # fmt: skip

_UNREPLACEABLE = frozenset(
    [("time", name) for name in _CLOCKS]
    + [("random", name) for name in _RANDOM]
    + [("uuid", "uuid1"), ("uuid", "uuid4"), ("os", "urandom"), ("secrets", "token_bytes"), ("secrets", "token_hex")]
)

_active = 0


def active() -> bool:
    return _active > 0


def _refusal(what: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        raise Nondeterminism(f"{what} inside the simulation: take it from a port (txnwire.ports) instead")

    return refuse


def _clock(name: str, now: Callable[[], float]) -> Callable[..., Any]:
    refuse = _refusal(f"time.{name}()")

    def read(*args: object) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if name == "sleep" or caller.partition(".")[0] not in _TIME_READERS:
            return refuse(*args)
        return int(now() * 1e9) if name.endswith("_ns") else now()

    return read


class _OrderedTasks(dict[Any, None]):
    """Replaces the set of tasks in a `TaskGroup`, which then cancels them in the order of their creation, not of
    addresses."""

    def add(self, task: Any) -> None:
        self[task] = None

    def discard(self, task: Any) -> None:
        self.pop(task, None)


_new_task_group = asyncio.TaskGroup.__init__
_wait = asyncio.wait


def _ordered_task_group(group: asyncio.TaskGroup) -> None:
    _new_task_group(group)
    group._tasks = _OrderedTasks()  # type: ignore[assignment]


async def _guarded_wait(*args: Any, **kwargs: Any) -> Any:
    done, pending = await _wait(*args, **kwargs)
    return GuardedSet(done), GuardedSet(pending)


class _SeededRandom(random.Random):
    def __init__(self, seed: int | str | bytes | None = None) -> None:
        if seed is None:
            raise Nondeterminism("random.Random() without a seed inside the simulation")
        super().__init__(seed)


@contextmanager
def forbidden(now: Callable[[], float]) -> Iterator[None]:
    """Clocks, randomness, threads, processes, sockets raise `Nondeterminism` until this ends. `now`: virtual time."""
    global _active
    replaced: list[tuple[Any, str, Any]] = []

    def replace(target: Any, name: str, by: Any) -> None:
        replaced.append((target, name, getattr(target, name)))
        setattr(target, name, by)

    for name in _CLOCKS:
        replace(time, name, _clock(name, now))
    for name in _RANDOM:
        replace(random, name, _refusal(f"random.{name}()"))
    replace(random, "SystemRandom", _refusal("random.SystemRandom()"))
    replace(random, "Random", _SeededRandom)
    for name in ("uuid1", "uuid4"):
        replace(uuid, name, _refusal(f"uuid.{name}()"))
    for name in ("urandom", "getrandom", "fork"):
        replace(os, name, _refusal(f"os.{name}()"))
    for name in ("token_bytes", "token_hex", "token_urlsafe", "randbits", "randbelow", "choice"):
        replace(secrets, name, _refusal(f"secrets.{name}()"))
    replace(asyncio.TaskGroup, "__init__", _ordered_task_group)
    replace(asyncio, "wait", _guarded_wait)
    replace(threading.Thread, "start", _refusal("Thread.start()"))
    replace(subprocess, "Popen", _refusal("subprocess.Popen()"))
    replace(socket, "socket", _refusal("socket.socket()"))
    _active += 1
    try:
        yield
    finally:
        _active -= 1
        for target, name, original in reversed(replaced):
            setattr(target, name, original)


def _unordered_use(what: str, at: FrameType) -> Nondeterminism:
    where = f"{at.f_code.co_filename}:{at.f_lineno}"
    return Nondeterminism(f"{what} inside the simulation, {where}: use a dict as an ordered set, or sorted()")


class GuardedSet(set[T]):
    """A set whose order cannot leak: iterating it, or popping from it, raises while a simulation runs. With at most one
    element it may be iterated."""

    __slots__ = ()

    def __iter__(self) -> Iterator[T]:
        if _active and len(self) > 1:
            raise _unordered_use("iteration over a set", sys._getframe(1))
        return super().__iter__()

    def pop(self) -> T:
        if _active and len(self) > 1:
            raise _unordered_use("set.pop()", sys._getframe(1))
        return super().pop()

    def __or__(self, other: Any) -> Any:
        return _guarded(set.__or__(self, other))

    def __and__(self, other: Any) -> Any:
        return _guarded(set.__and__(self, other))

    def __sub__(self, other: Any) -> Any:
        return _guarded(set.__sub__(self, other))

    def __xor__(self, other: Any) -> Any:
        return _guarded(set.__xor__(self, other))

    def __rsub__(self, other: Any) -> Any:
        return _guarded(set.__rsub__(self, other))  # type: ignore[attr-defined]

    def union(self, *others: Iterable[Any]) -> Any:
        return GuardedSet(super().union(*others))

    def intersection(self, *others: Iterable[Any]) -> Any:
        return GuardedSet(super().intersection(*others))

    def difference(self, *others: Iterable[Any]) -> Any:
        return GuardedSet(super().difference(*others))

    def symmetric_difference(self, other: Iterable[Any]) -> Any:
        return GuardedSet(super().symmetric_difference(other))

    def copy(self) -> Any:
        return GuardedSet(self)


class GuardedFrozenSet(frozenset[T]):
    __slots__ = ()

    def __iter__(self) -> Iterator[T]:
        if _active and len(self) > 1:
            raise _unordered_use("iteration over a frozenset", sys._getframe(1))
        return super().__iter__()


_GUARDED = (GuardedSet, GuardedFrozenSet)


def _unordered(values: Any) -> Any:
    """Iterates a guarded set for a function whose result does not depend on the order."""
    if isinstance(values, GuardedSet):
        return set.__iter__(values)
    if isinstance(values, GuardedFrozenSet):
        return frozenset.__iter__(values)
    return values


def _order_blind(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        for value in args:
            if isinstance(value, _GUARDED):
                return function(*map(_unordered, args), **kwargs)
        return function(*args, **kwargs)

    return call


def _guarded(values: Any) -> Any:
    """Guards the result: set algebra gives plain sets, for example on dict views. Passes on anything else."""
    return GuardedSet(values) if type(values) is set else values


def _plain(values: Any) -> Any:
    """A dict view would iterate a guarded set it is combined with."""
    return set(values) if isinstance(values, GuardedSet) else values


def _wall_clock(function: Callable[..., Any], *args: Any) -> Any:
    if _active:
        raise Nondeterminism(f"{function.__qualname__}() inside the simulation: take the time from the Clock port")
    return function(*args)


_INJECTED: dict[str, Any] = {
    "set": GuardedSet,
    "frozenset": GuardedFrozenSet,
    "guarded__": _guarded,
    "plain__": _plain,
    "wall_clock__": _wall_clock,
    **{name: _order_blind(getattr(builtins, name)) for name in ("sorted", "min", "max", "any", "all")},
}


class _GuardTransformer(ast.NodeTransformer):
    """Guards set displays, comprehensions and set algebra on dict views. Sends `datetime.now()` through the guard;
    refuses a clock imported by name, which could not be replaced."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        taken = [alias.name for alias in node.names if (node.module, alias.name) in _UNREPLACEABLE]
        if taken:
            raise Nondeterminism(f"line {node.lineno}: from {node.module} import {taken[0]}: import the module instead")
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if (
            isinstance(function, ast.Attribute)
            and function.attr in ("now", "utcnow", "today")
            and isinstance(function.value, ast.Name | ast.Attribute)
            and ast.unparse(function.value).rpartition(".")[2] in ("datetime", "date")
        ):
            asked = ast.Call(ast.Name("wall_clock__", ast.Load()), [function, *node.args], [])
            return ast.copy_location(asked, node)
        return node

    def visit_Set(self, node: ast.Set) -> ast.AST:
        self.generic_visit(node)
        elements = ast.Tuple(elts=node.elts, ctx=ast.Load())
        return _call("set", elements, node)

    def visit_SetComp(self, node: ast.SetComp) -> ast.AST:
        self.generic_visit(node)
        return _call("set", ast.GeneratorExp(elt=node.elt, generators=node.generators), node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor) and (
            _is_view(node.left) or _is_view(node.right)
        ):
            node.left, node.right = _call("plain__", node.left, node), _call("plain__", node.right, node)
            return _call("guarded__", node, node)
        return node


def _is_view(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "items")


def _call(name: str, argument: ast.expr, at: ast.expr) -> ast.Call:
    function = ast.Name(id=name, ctx=ast.Load())
    return ast.fix_missing_locations(ast.copy_location(ast.Call(func=function, args=[argument], keywords=[]), at))


def guard_source(source: str, filename: str) -> CodeType:
    """Compiled production code with guarded sets. Run it in a namespace made by `guard_namespace`."""
    tree = _GuardTransformer().visit(ast.parse(source, filename))
    code: CodeType = compile(ast.fix_missing_locations(tree), filename, "exec", dont_inherit=True)
    return code


def guard_namespace(namespace: dict[str, Any]) -> dict[str, Any]:
    namespace.update(_INJECTED)
    return namespace


_CACHE = f".guarded-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]}.pyc"
"""Suffix of compiled files: guarded code is not what Python keeps, and changes with this module, too."""


class _GuardedLoader(importlib.machinery.SourceFileLoader):
    """Caches compiled code beside Python's own, as long as the source is the same: guarding all of it takes seconds in
    each process."""

    def source_to_code(self, data: Any, path: Any, **_: object) -> CodeType:  # type: ignore[override]
        return guard_source(importlib.util.decode_source(data), path)

    def get_data(self, path: str) -> bytes:
        return super().get_data(_guarded_cache(path))

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        super().set_data(_guarded_cache(path), data, _mode=_mode)

    def exec_module(self, module: ModuleType) -> None:
        guard_namespace(module.__dict__)
        code = self.get_code(module.__name__)
        assert code is not None
        exec(code, module.__dict__)


def _guarded_cache(path: str) -> str:
    return path.removesuffix(".pyc") + _CACHE if path.endswith(".pyc") else path


class _GuardedFinder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in PRODUCTION or fullname.endswith("_pb2"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _GuardedLoader(fullname, spec.loader.path)
        return spec


def install_guard() -> None:
    """Call before the first import of production code. Raises `RuntimeError` if it is too late."""
    early = sorted(name for name in sys.modules if name.partition(".")[0] in PRODUCTION and "." in name)
    if early:
        raise RuntimeError(f"the guard must be installed before production code is imported; already here: {early}")
    sys.meta_path.insert(0, _GuardedFinder())
