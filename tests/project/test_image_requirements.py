"""What is pinned for the image is what the distributions ask for, each by hash, and names no place to get it from."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement

from tools.build_image import LOCKED, PYTHON, SOURCES, fingerprint
from tools.build_wheels import NAMES, ROOT, described

PINNED = re.compile(r"(?m)^([a-z0-9-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+)")


def pinned(name: str) -> dict[str, str]:
    return {one[1]: one[2] for one in PINNED.finditer((SOURCES / name).read_text())}


@pytest.mark.parametrize("name", LOCKED)
def test_every_requirement_is_pinned_by_hash_and_from_nowhere_in_particular(name: str) -> None:
    text = (SOURCES / name).read_text()
    assert len(pinned(name)) == text.count("==") > 1
    assert "://" not in text
    assert "--index" not in text


@pytest.mark.parametrize("name", NAMES)
def test_what_a_distribution_needs_is_pinned_in_a_version_that_it_takes(name: str) -> None:
    found = pinned("requirements.txt")
    described_ = tomllib.loads(described(name))["project"]
    for text in described_["dependencies"]:
        requirement = Requirement(text)
        if requirement.name not in NAMES:
            assert requirement.specifier.contains(found[requirement.name]), text
    assert Requirement(f"python{described_['requires-python']}").specifier.contains(PYTHON)


def test_the_base_has_the_python_of_the_wheels_and_is_pinned() -> None:
    assert f"ARG BASE=python:{PYTHON}." in (SOURCES / "Dockerfile").read_text()


def test_an_image_of_the_same_files_is_not_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint()
    assert fingerprint() == before
    monkeypatch.setattr("tools.build_image.NAMES", NAMES[:1])
    assert fingerprint() != before, "what is in a package counts"
    assert ROOT.is_dir()
