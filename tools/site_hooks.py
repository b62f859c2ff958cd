"""The documentation site shows README.md and CONTRIBUTING.md as pages, and names files that it does not have.

Called by mkdocs (`hooks` in mkdocs.yml). The files stay where readers of the repository look for them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File, Files

ROOT: Final = Path(__file__).resolve().parents[1]
PAGES: Final = {"index.md": "README.md", "contributing.md": "CONTRIBUTING.md"}
LINK: Final = re.compile(r"\]\((?!https?:|#)([^)#]+)(#[^)]*)?\)")


def on_files(files: Files, *, config: Any) -> Files:
    for page, source in PAGES.items():
        files.append(File.generated(config, page, content=_as_page((ROOT / source).read_text())))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """What lies outside `docs` is named, not linked: the site does not have it."""
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"`\1`", markdown)


def _as_page(text: str) -> str:
    """Links of the repository's root, as those of a page in `docs`."""

    def relative(found: re.Match[str]) -> str:
        path, anchor = found[1], found[2] or ""
        if path.startswith("docs/"):
            return f"]({path.removeprefix('docs/')}{anchor})"
        return f"](../{path}{anchor})"

    return LINK.sub(relative, text)
