"""Groups of commands whose help is readable in 80 columns: no frames, and no sentence cut off."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

WHOLE = 1000
"""More characters than the first sentence of any command's help."""


class _WholeSentences(TyperGroup):
    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Like its base, but the first sentence of a command's help stays whole, over as many lines as it needs."""
        rows = [(name, command.get_short_help_str(limit=WHOLE)) for name, command in self.commands.items()]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def group(help: str) -> typer.Typer:
    return typer.Typer(
        help=help,
        cls=_WholeSentences,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # its tables cut words off
    )
