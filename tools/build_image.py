"""Build the image of every role, and one of etcd: `python tools/build_image.py [--tag txnstore:local] [--lock]`.

Does nothing where the image was made of the same files. Where the base cannot be pulled, one is made of Debian's
packages (mmdebstrap, as root). The build itself has no network: everything is gathered before, pinned by hash.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.build_wheels import NAMES, build, described, packages  # noqa: E402 (a program, found by its path)

SOURCES: Final = ROOT / "packaging" / "image"
SPARK_SOURCES: Final = SOURCES / "spark"
"""Of another image, `tools/build_spark_image.py`."""
CONTEXT: Final = ROOT / "build" / "image"
TAG: Final = "txnstore:local"
ETCD_TAG: Final = "txnstore-etcd:local"
ETCD: Final = "quay.io/coreos/etcd:v3.5.21"
LOCAL_BASE: Final = "txnstore-base:bookworm"
PYTHON: Final = "3.11"
"""Minor version of the base, and of the wheels that are gathered."""
GLIBC: Final = 36
"""Minor version of the glibc 2 that the base has at least."""
BASE_PACKAGES: Final = ("python3", "ca-certificates", "libstdc++6")
LINKED: Final = """
for one in lib lib64; do mkdir -p "$1/usr/$one"; test -e "$1/$one" || ln -s "usr/$one" "$1/$one"; done
for path in "$1"/usr/lib/*-linux-gnu/ld-linux*; do
    name=${path##*/}; place=${path%/*}
    for one in lib lib64; do test -e "$1/usr/$one/$name" || ln -s "../lib/${place##*/}/$name" "$1/usr/$one/$name"; done
done
"""
"""Shell words of mmdebstrap: where the packages that make them are not installed, programs find the dynamic linker."""
LOCKED: Final = ("requirements.txt", "build-requirements.txt")
BUILDING: Final = ("pip", "cyclonedx-python-lib")
PULL_TIMEOUT_S: Final = 300
TIMEOUT_S: Final = 900
NOT_HERE: Final = 3
"""Exit code where this machine cannot build it; 1: it should, and failed."""


class NotHere(Exception):
    """This machine cannot build the image; says why."""


def run(*words: str, timeout_s: float = TIMEOUT_S) -> None:
    """Raises `SystemExit` with the end of what it said."""
    done = subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s)
    if done.returncode:
        raise SystemExit(f"{' '.join(words[:4])} … ended with {done.returncode}:\n{done.stdout[-4000:]}")


def answer(*words: str) -> str | None:
    """What a command prints; None if it fails."""
    done = subprocess.run(words, text=True, capture_output=True, timeout=60)
    return done.stdout.strip() if done.returncode == 0 else None


def inputs() -> Iterator[Path]:
    """Files that decide what is in the image."""
    yield from (ROOT / name for name in ("README.md", "LICENSE", "pyproject.toml", "tools/build_image.py"))
    yield from sorted(one for one in (ROOT / "packaging").rglob("*.*") if SPARK_SOURCES not in one.parents)
    yield SOURCES / "Dockerfile"
    for name in NAMES:
        for package in packages(name):
            found = (ROOT / package).rglob("*")
            yield from sorted(one for one in found if one.is_file() and "__pycache__" not in one.parts)


def fingerprint(paths: Iterable[Path] | None = None) -> str:
    """Of files; by default those of this image."""
    digest = hashlib.sha256()
    for path in inputs() if paths is None else paths:
        if path.is_file():
            digest.update(f"{path.relative_to(ROOT)}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:32]


def label(image: str, name: str) -> str | None:
    return answer("docker", "image", "inspect", "-f", f'{{{{index .Config.Labels "{name}"}}}}', image)


def there(image: str) -> bool:
    return answer("docker", "image", "inspect", "-f", "{{.Id}}", image) is not None


def pulled(image: str) -> bool:
    """Whether it is here, or could be brought."""
    if there(image):
        return True
    try:
        done = subprocess.run(["docker", "pull", "-q", image], capture_output=True, timeout=PULL_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def ensure_mmdebstrap(tag: str) -> None:
    """Installs it where that is possible. Raises `NotHere`."""
    if os.geteuid() == 0 and shutil.which("mmdebstrap") is None and shutil.which("apt-get") is not None:
        print("installing mmdebstrap with apt-get", flush=True)
        settings = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for words in (("update", "-q"), ("install", "-y", "-q", "--no-install-recommends", "mmdebstrap")):
            subprocess.run(("apt-get", *words), env=settings, capture_output=True, timeout=TIMEOUT_S)
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        raise NotHere(
            f"{tag} cannot be made: be root and `apt-get install mmdebstrap`, or let the engine reach a registry"
        )


def from_mirrors(tag: str, *words: str) -> None:
    """Runs what needs Debian's mirrors. Raises `NotHere`."""
    try:
        run(*words)
    except SystemExit as error:
        raise NotHere(f"{tag} cannot be made, does a mirror of Debian answer? {error}") from error


def from_debian(tag: str, suite: str, variant: str, include: str, changes: Sequence[str]) -> None:
    """Makes `tag` of Debian's packages. Raises `NotHere`."""
    ensure_mmdebstrap(tag)
    print(f"no registry answers: making {tag} of Debian's packages by mmdebstrap, once", flush=True)
    with tempfile.TemporaryDirectory(prefix="txnstore-base-") as folder:
        archive = str(Path(folder, "base.tar"))
        from_mirrors(
            tag,
            "mmdebstrap", f"--variant={variant}", f"--include={include}",
            "--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
            "--dpkgopt=path-exclude=/usr/share/doc/*", "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            # Java's packages put links there, and fail where the folder is missing.
            '--essential-hook=mkdir -p "$1/usr/share/man/man1"',
            f"--{'extract' if variant == 'extract' else 'customize'}-hook={LINKED}",
            suite, archive,
        )  # fmt: skip
        run("docker", "import", *(word for change in changes for word in ("-c", change)), archive, tag)


def base_image(sources: Path = SOURCES, local: str = LOCAL_BASE, more: Sequence[str] = ()) -> str:
    """`more`: packages of Debian beside those of every base. Raises `NotHere`."""
    found = re.search(r"(?m)^ARG BASE=(\S+)", (sources / "Dockerfile").read_text())
    assert found is not None
    if there(local):
        return local
    if pulled(found[1]):
        return found[1]
    from_debian(local, "bookworm", "essential", ",".join((*BASE_PACKAGES, *more)), ("ENV LANG=C.UTF-8",))
    return local


def ensure_etcd() -> None:
    """`ETCD_TAG`: the image of etcd's makers where it can be pulled, else Debian's etcd without a shell."""
    if there(ETCD_TAG):
        return
    if pulled(ETCD):
        run("docker", "tag", ETCD, ETCD_TAG)
        return
    changes = ("USER 10001:10001", 'CMD ["etcd"]', "ENV PATH=/usr/local/bin:/usr/bin:/bin", "ENV ETCDCTL_API=3")
    from_debian(ETCD_TAG, "trixie", "extract", "etcd-server,etcd-client", changes)


def gather(folder: Path, locked: Sequence[Path]) -> None:
    """The wheels of others, of this machine's architecture, their hashes checked. `locked`: files of requirements."""
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in locked)).hexdigest()
    mark = folder / "gathered"
    if mark.exists() and mark.read_text() == wanted:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    machine = platform.machine()
    platforms = [f"--platform=manylinux_2_{minor}_{machine}" for minor in range(GLIBC, 4, -1)]
    platforms += [f"--platform=manylinux2014_{machine}", f"--platform=manylinux1_{machine}"]
    for path in locked:
        run(
            sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
            "--only-binary=:all:", "--require-hashes", "-r", str(path), "-d", str(folder),
            *platforms,
            f"--python-version={PYTHON}", "--implementation=cp",
            f"--abi=cp{PYTHON.replace('.', '')}", "--abi=abi3", "--abi=none",
        )  # fmt: skip
    mark.write_text(wanted)


def lock() -> None:
    """Writes the newest versions, with the hashes of all their files."""
    own = {"txnstore-client"}
    needed = [one for name in NAMES for one in tomllib.loads(described(name))["project"]["dependencies"]]
    needed = [one for one in needed if re.split(r"[=<>]", one)[0] not in own]
    for name, wanted in zip(LOCKED, (needed, BUILDING), strict=True):
        lock_into(SOURCES / name, wanted)


def lock_into(path: Path, wanted: Sequence[str]) -> None:
    subprocess.run(
        ["uv", "pip", "compile", "-q", "--upgrade", "--generate-hashes", "--no-header", "--no-annotate",
         "--no-emit-index-url", "--no-emit-find-links", f"--python-version={PYTHON}", "-o", str(path), "-"],
        input="\n".join(wanted), text=True, check=True, timeout=TIMEOUT_S,
    )  # fmt: skip


def build_image(tag: str, made_of: str) -> None:
    base = base_image()
    gather(CONTEXT / "wheels", [SOURCES / name for name in LOCKED])
    shutil.rmtree(CONTEXT / "ours", ignore_errors=True)
    for name in NAMES:
        build(name, CONTEXT / "ours")
    for name in ("Dockerfile", "sbom.py", *LOCKED):
        shutil.copy(SOURCES / name, CONTEXT)
    run("docker", "build", "-q", "--network", "none", "-t", tag, *build_arguments(base, made_of), str(CONTEXT))


def build_arguments(base: str, made_of: str) -> list[str]:
    """Of either image: its base, and what its labels say."""
    about = {
        "BASE": base,
        "VERSION": tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"],
        "REVISION": answer("git", "-C", str(ROOT), "rev-parse", "HEAD") or "",
        "CREATED": answer("git", "-C", str(ROOT), "log", "-1", "--format=%cI") or "",
        "INPUTS": made_of,
    }
    return [word for name, value in about.items() for word in ("--build-arg", f"{name}={value}")]


def main() -> int:
    return program(__doc__, "image", TAG, make, lock)


def program(about: str | None, what: str, tag: str, make: Callable[[str], int], lock: Callable[[], object]) -> int:
    """The command of either image: its options, and its exit code."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--tag", default=tag)
    parser.add_argument("--lock", action="store_true", help="only write the pinned requirements anew (needs `uv`)")
    arguments = parser.parse_args()
    if arguments.lock:
        lock()
        return 0
    try:
        return make(arguments.tag)
    except NotHere as error:
        print(f"no {what}: {error}")
        return NOT_HERE


def expect_engine() -> None:
    """Raises `NotHere`."""
    if shutil.which("docker") is None or answer("docker", "version", "-f", "{{.Server.Version}}") is None:
        raise NotHere("no Docker engine answers")


def tell(tag: str, begin: float) -> None:
    size = int(answer("docker", "image", "inspect", "-f", "{{.Size}}", tag) or 0)
    print(f"{tag}: {size / 1e6:.0f} MB, in {time.monotonic() - begin:.0f} s")


def make(tag: str) -> int:
    """Raises `NotHere`."""
    begin = time.monotonic()
    expect_engine()
    ensure_etcd()
    made_of = fingerprint()
    if label(tag, "txnstore.inputs") == made_of:
        print(f"{tag} is up to date")
        return 0
    build_image(tag, made_of)
    tell(tag, begin)
    return 0


if __name__ == "__main__":
    sys.exit(main())
