"""Build the image of Spark with our source and sink, `python tools/build_spark_image.py [--tag TAG] [--lock]`.

The base of the other image, Debian's Java 17, PyPI's PySpark and the client's wheel; nothing of the servers. Does
nothing where the image was made of the same files.
"""

from __future__ import annotations

import re
import shutil
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.build_image import (  # noqa: E402 (a program, found by its path)
    LOCKED,
    SOURCES,
    SPARK_SOURCES,
    base_image,
    build_arguments,
    expect_engine,
    fingerprint,
    gather,
    label,
    lock_into,
    program,
    run,
    tell,
)
from tools.build_wheels import build, described, packages  # noqa: E402

TAG: Final = "txnstore-spark:local"
LOCAL_BASE: Final = "txnstore-spark-base:bookworm"
PACKAGES: Final = ("openjdk-17-jre-headless", "tini")
CONTEXT: Final = ROOT / "build" / "spark-image"
CLIENT: Final = "txnstore-client"
SPARK: Final = "pyspark"
"""What its makers give as source alone: its wheel is made here."""
PINNED: Final = re.compile(r"(?m)^([a-z0-9-]+)==.*(?:\n    --hash=.*)+\n?")
WHEEL_TIMEOUT_S: Final = 1800


def inputs() -> Iterator[Path]:
    yield from (ROOT / name for name in ("README.md", "LICENSE", "pyproject.toml", f"packaging/{CLIENT}.toml"))
    yield from (ROOT / "tools" / name for name in ("build_image.py", "build_spark_image.py"))
    yield from sorted(one for one in SPARK_SOURCES.iterdir() if one.is_file())
    yield SOURCES / LOCKED[1]
    for package in packages(CLIENT):
        found = (ROOT / package).rglob("*")
        yield from sorted(one for one in found if one.is_file() and "__pycache__" not in one.parts)


def lock() -> None:
    project = tomllib.loads(described(CLIENT))["project"]
    lock_into(
        SPARK_SOURCES / "requirements.txt", [*project["dependencies"], *project["optional-dependencies"]["spark"]]
    )


def parted(requirements: str) -> tuple[str, str]:
    """Spark's part of the pinned requirements, and the others'."""
    parts: dict[bool, list[str]] = {True: [], False: []}
    for one in PINNED.finditer(requirements):
        parts[one[1] == SPARK].append(one[0])
    return "".join(parts[True]), "".join(parts[False])


def wheel_of_spark(pinned: str, folder: Path) -> Path:
    """Checked by hash, then made into a wheel, which is kept for the next image of the same version."""
    asked = folder / "asked.txt"
    found = list(folder.glob("*.whl"))
    if not (found and asked.exists() and asked.read_text() == pinned):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        asked.write_text(pinned)
        run(
            sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps", "--require-hashes",
            "--no-build-isolation", "-r", str(asked), "-w", str(folder), timeout_s=WHEEL_TIMEOUT_S,
        )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return wheel


def fill(context: Path) -> None:
    """Everything that the build needs, so that it needs no network."""
    of_spark, others = parted((SPARK_SOURCES / "requirements.txt").read_text())
    context.mkdir(parents=True, exist_ok=True)
    (context / "requirements.txt").write_text(others)
    gather(context / "wheels", [context / "requirements.txt", SOURCES / LOCKED[1]])
    shutil.rmtree(context / "ours", ignore_errors=True)
    build(CLIENT, context / "ours")
    shutil.copy(wheel_of_spark(of_spark, ROOT / "build" / "spark-wheel"), context / "ours")
    for name in ("Dockerfile", "entrypoint.py"):
        shutil.copy(SPARK_SOURCES / name, context)


def make(tag: str) -> int:
    """Raises `NotHere`."""
    begin = time.monotonic()
    expect_engine()
    made_of = fingerprint(inputs())
    if label(tag, "txnstore.inputs") == made_of:
        print(f"{tag} is up to date")
        return 0
    base = base_image(SPARK_SOURCES, LOCAL_BASE, PACKAGES)
    fill(CONTEXT)
    network = "none" if base == LOCAL_BASE else "default"
    run("docker", "build", "-q", "--network", network, "-t", tag, *build_arguments(base, made_of), str(CONTEXT))
    tell(tag, begin)
    return 0


def main() -> int:
    return program(__doc__, "image of Spark", TAG, make, lock)


if __name__ == "__main__":
    sys.exit(main())
