"""Generate the protobuf modules from every `.proto` in the tree, or with --check fail where one is stale."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("txnwire", "txnstore")


def generate(target: Path) -> list[Path]:
    """Write `*_pb2.py` and `*_pb2.pyi` for every .proto below `target`; their paths relative to it."""
    sources = sorted(path.relative_to(ROOT) for package in PACKAGES for path in (ROOT / package).rglob("*.proto"))
    arguments = ["protoc", f"-I{ROOT}", f"--python_out={target}", f"--pyi_out={target}", *map(str, sources)]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed")
    return [source.with_name(f"{source.stem}_pb2{suffix}") for source in sources for suffix in (".py", ".pyi")]


def _body(path: Path) -> str:
    """The text without the generator's own version line, which differs between releases of the compiler."""
    lines = path.read_text().splitlines()
    return "\n".join(line for line in lines if "Protobuf Python Version" not in line and "ValidateProtobuf" not in line)


def stale() -> list[Path]:
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(Path(scratch))
        return [
            path for path in fresh if not (ROOT / path).exists() or _body(Path(scratch) / path) != _body(ROOT / path)
        ]


def main() -> int:
    if "--check" not in sys.argv[1:]:
        generate(ROOT)
        return 0
    paths = stale()
    for path in paths:
        print(f"{path} is stale: run `make proto` and commit it")
    return 1 if paths else 0


if __name__ == "__main__":
    sys.exit(main())
