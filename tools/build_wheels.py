"""Build the two distributions, `txnstore-client` and `txnstore`: `python tools/build_wheels.py FOLDER [URL]`.

Each is built from a copy of its packages, because a build leaves files beside its sources. `packaging/NAME.toml`
describes it; the version is the one of `pyproject.toml`. Needs no network: setuptools comes from this environment.

URL: where the repository can be seen (`https://host/owner/txnstore`). A package index then shows it with the pages of
the version, and the links of the README lead there. Without it no page is shown, and those links lead nowhere.
"""

from __future__ import annotations

import re
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


PAGES: Final = {
    "Homepage": "",
    "Documentation": "/blob/v{version}/docs/client.md",
    "Changelog": "/blob/v{version}/CHANGELOG.md",
    "Source": "/tree/v{version}",
    "Issues": "/issues",
}
"""What an index shows of a repository, by its path."""
_LINK_WITHIN: Final = re.compile(r"\]\((?![a-z+]+:|#)([^)]+)\)")


def version_of() -> str:
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return version


def described(name: str, url: str = "") -> str:
    """The `pyproject.toml` of a distribution."""
    text = (ROOT / "packaging" / f"{name}.toml").read_text().replace("VERSION", version_of())
    if not url:
        return text
    pages = {page: f"{url}{path.format(version=version_of())}" for page, path in PAGES.items()}
    return text + "\n[project.urls]\n" + "".join(f'{page} = "{at}"\n' for page, at in pages.items())


def readme(url: str = "") -> str:
    """The README, with links into the repository that lead there from elsewhere."""
    text = (ROOT / "README.md").read_text()
    return _LINK_WITHIN.sub(rf"]({url}/blob/v{version_of()}/\1)", text) if url else text


def packages(name: str) -> list[str]:
    """Top-level packages of a distribution."""
    found = tomllib.loads(described(name))["tool"]["setuptools"]["packages"]["find"]["include"]
    return [pattern.removesuffix("*") for pattern in found]


def build(name: str, folder: Path, url: str = "") -> Path:
    """The wheel of a distribution, made in `folder`."""
    with tempfile.TemporaryDirectory(prefix="txnstore-wheel-") as source:
        for package in packages(name):
            shutil.copytree(ROOT / package, Path(source, package), ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "LICENSE", source)
        Path(source, "README.md").write_text(readme(url))
        Path(source, "pyproject.toml").write_text(described(name, url))
        made = Path(source, "made")
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check"]
        command += ["--no-deps", "--no-build-isolation", "--no-index", "-w", str(made), source]
        subprocess.run(command, check=True, timeout=BUILD_TIMEOUT_S)
        (wheel,) = made.glob("*.whl")
        folder.mkdir(parents=True, exist_ok=True)
        return Path(shutil.copy(wheel, folder))


def main() -> int:
    folder, url = (*sys.argv[1:], "")[:2] if len(sys.argv) in (2, 3) else ("", "")
    if not folder:
        print("usage: python tools/build_wheels.py FOLDER [URL]", file=sys.stderr)
        return 2
    if url and not re.fullmatch(r"https://[^\s\"\\/]+(/[^\s\"\\/]+)+", url):
        print(
            f"{url!r} is not where a repository can be seen: https://host/owner/name, no / at its end", file=sys.stderr
        )
        return 2
    for name in NAMES:
        print(build(name, Path(folder), url))
    return 0


if __name__ == "__main__":
    sys.exit(main())
