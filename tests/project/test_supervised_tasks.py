"""Every background task of a server is begun by `txnwire.tasks`, or is one of those whose end somebody waits for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("txnwire", "txnstore", "watchers", "segments", "coordinator_v5", "txnctl")
NO_SERVERS = ("txnctl/bench", "txnctl/commands", "txnctl/demo", "txnctl/launch/dev.py", "txnctl/launch/supervisor.py")
"""What runs beside servers, or starts them: commands and their tools, which end with what they do."""

WAITED_FOR = {
    "txnctl/backup/progress.py in_thread": "awaited there, also by who is cancelled",
    "txnwire/transport/calls.py Caller.open": "ends with its connection, which is then closed",
    "txnwire/transport/calls.py Caller._end": "closes a connection",
    "txnwire/transport/grpc_transport.py GrpcListener.serve": "serves one connection and ends with it",
    "txnwire/transport/grpc_transport.py GrpcListener.close": "awaited by whoever closes",
    "txnwire/transport/grpc_transport.py GrpcListener._close": "awaited there",
    "txnwire/transport/serving.py Peer.disconnect": "closes a connection",
    "txnwire/transport/serving.py _Serving._handle": "answers one request, errors too",
    "txnwire/transport/stream.py StreamConnection.__init__": "ends with its connection, which is then closed",
    "txnwire/transport/stream.py StreamConnection.close": "closes a connection",
    "txnwire/transport/stream.py StreamConnection._say_goodbye": "awaited there",
    "txnwire/tasks.py restarted": "here it is",
    "txnwire/tasks.py vital": "here it is",
    "txnwire/tasks.py errand": "here it is",
    "txnwire/tasks.py all_of": "awaited there; the first failure ends the others and is raised",
    "txnstore/election.py Leadership.wait_lost": "awaited there; the end of either is the loss",
    "txnstore/etcd/hedging.py first_answer": "awaited there",
    "txnstore/etcd/watch.py EtcdWatchStream._create": "awaited there",
    "segments/broker/broker.py Broker._wait_change": "awaited there",
    "coordinator_v5/coordinator.py Coordinator._running_until": "awaited there",
    "coordinator_v5/coordinator.py Coordinator._run": "a task group, whose failure ends the vital task it is in",
    "coordinator_v5/ownership.py TcidOwnership._hold": "awaited there; the end of any raises",
    "txnctl/process/serve.py _unless": "awaited there",
    "txnctl/process/serve.py _serve_until": "awaited there; the end of any ends the process",
    "txnctl/process/serve.py wait_stopped_or_failed": "awaited there; the end of any ends the process",
}


def begun(path: Path) -> Iterator[str]:
    def within(node: ast.AST, names: tuple[str, ...]) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            yield from within(child, (*names, child.name) if named else names)  # type: ignore[attr-defined]
            function = child.func if isinstance(child, ast.Call) else None
            if isinstance(function, ast.Attribute) and function.attr in ("create_task", "ensure_future"):
                yield ".".join(names)

    yield from within(ast.parse(path.read_text()), ())


def test_who_begins_a_task_of_a_server_says_what_becomes_of_its_end() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()} {where}": None
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.relative_to(ROOT).as_posix().startswith(NO_SERVERS)
        for where in begun(path)
    }
    assert sorted(found) == sorted(WAITED_FOR)
