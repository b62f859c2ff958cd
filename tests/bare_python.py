"""A Python environment with some wheels, their declared dependencies, and no other package of this Python's."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from packaging.requirements import Requirement

INSTALL_TIMEOUT_S = 120


def bare_python(home: Path, *wheels: Path, extra: str = "") -> Path:
    """The interpreter of a new environment in `home`. `extra`: the wheels' extra to install, too. Dependencies are
    linked from this environment, so nothing is downloaded."""
    venv.create(home, with_pip=False)
    python, purelib = home / "bin" / "python", Path(sysconfig.get_path("purelib", vars={"base": str(home)}))
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index"]
    subprocess.run([*command, *map(str, wheels)], check=True, timeout=INSTALL_TIMEOUT_S)
    ours = {described(wheel).name for wheel in wheels}
    for name in {name for wheel in wheels for name in needed(wheel, extra)} - ours:
        one = importlib.metadata.distribution(name)
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not (purelib / top).exists():
                (purelib / top).symlink_to(Path(str(one.locate_file(top))))
    return python


def described(wheel: Path) -> importlib.metadata.Distribution:
    (found,) = importlib.metadata.distributions(path=[str(wheel)])
    return found


def needed(wheel: Path, extra: str = "") -> set[str]:
    """Distributions that the wheel and its extra declare to need, and what those need."""
    found: set[str] = set()
    waiting = [(text, extra) for text in described(wheel).requires or ()]
    while waiting:
        text, of = waiting.pop()
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": of}):
            continue
        name = requirement.name.lower().replace("_", "-")
        if name not in found:
            found.add(name)
            if name != "txnstore-client":
                requires = importlib.metadata.requires(name) or ()
                waiting += [(one, each) for one in requires for each in ("", *requirement.extras)]
    return found
