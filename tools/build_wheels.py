"""Build the two distributions, `txnstore-client` and `txnstore`: `python tools/build_wheels.py FOLDER`.

Each is built from a copy of its packages, because a build leaves files beside its sources. `packaging/NAME.toml`
describes it; the version is the one of `pyproject.toml`. Needs no network: setuptools comes from this environment.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
NAMES: Final = ("txnstore-client", "txnstore")
BUILD_TIMEOUT_S: Final = 120


def described(name: str) -> str:
    """The `pyproject.toml` of a distribution."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return (ROOT / "packaging" / f"{name}.toml").read_text().replace("VERSION", version)


def packages(name: str) -> list[str]:
    """Top-level packages of a distribution."""
    found = tomllib.loads(described(name))["tool"]["setuptools"]["packages"]["find"]["include"]
    return [pattern.removesuffix("*") for pattern in found]


def build(name: str, folder: Path) -> Path:
    """The wheel of a distribution, made in `folder`."""
    with tempfile.TemporaryDirectory(prefix="txnstore-wheel-") as source:
        for package in packages(name):
            shutil.copytree(ROOT / package, Path(source, package), ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("README.md", "LICENSE"):
            shutil.copy(ROOT / file, source)
        Path(source, "pyproject.toml").write_text(described(name))
        made = Path(source, "made")
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check"]
        command += ["--no-deps", "--no-build-isolation", "--no-index", "-w", str(made), source]
        subprocess.run(command, check=True, timeout=BUILD_TIMEOUT_S)
        (wheel,) = made.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, folder))


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: python tools/build_wheels.py FOLDER", file=sys.stderr)
        return 2
    for name in NAMES:
        print(build(name, Path(sys.argv[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
