"""Dashboards against Grafana's own schema: each field exists there, with a value of its type.

The types are those that Grafana Labs generates from Grafana's source (`grafana-foundation-sdk`). Reading them drops
what the schema does not know and checks no type, so both are compared here.
"""

from __future__ import annotations

import copy
import enum
import importlib
import json
import types
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tools import generate_dashboards

FOLDER = Path(__file__).resolve().parents[2] / "charts" / "txnstore" / "files" / "dashboards"
DASHBOARDS = sorted(FOLDER.glob("*.json"))

register_default_plugins()


def unfit(dashboard: dict[str, Any]) -> list[str]:
    """Paths of what the schema does not have, or has with another type."""
    read = Dashboard.from_json(copy.deepcopy(dashboard))
    return [*_unknown(dashboard, json.loads(JSONEncoder().encode(read)), ""), *_mistyped(read, "")]


def _unknown(given: Any, kept: Any, path: str) -> Iterator[str]:
    if isinstance(given, dict) and isinstance(kept, dict):
        for name, value in given.items():
            if name in kept:
                yield from _unknown(value, kept[name], f"{path}/{name}")
            else:
                yield f"{path}/{name}"
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from _unknown(one, other, f"{path}/{number}")
    elif given != kept:
        yield path


def _mistyped(thing: Any, path: str) -> Iterator[str]:
    module = importlib.import_module(type(thing).__module__)
    for name, hint in typing.get_type_hints(type(thing), vars(module)).items():
        value = getattr(thing, name)
        if value is not None and not _fits(value, hint):
            yield f"{path}/{name}"
        for number, one in enumerate(value if isinstance(value, list) else [value]):
            if type(one).__module__.startswith("grafana_foundation_sdk.models") and not isinstance(one, enum.Enum):
                yield from _mistyped(one, f"{path}/{name}/{number}" if isinstance(value, list) else f"{path}/{name}")


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, one) for one in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is list:
        return isinstance(value, list) and all(_fits(one, arguments[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(one, arguments[1]) for one in value.values())
    if hint in (object, Any):
        return True
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return value in {one.value for one in hint} or isinstance(value, hint)
    return isinstance(value, hint) and (hint is not int or not isinstance(value, bool))


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_grafana_s_schema_has_each_field_of_a_dashboard_with_its_type(path: Path) -> None:
    assert unfit(json.loads(path.read_text())) == []


def test_every_dashboard_is_held_against_the_schema() -> None:
    assert {path.stem for path in DASHBOARDS} == {*generate_dashboards.DASHBOARDS}


def _legend(dashboard: dict[str, Any]) -> None:
    dashboard["panels"][0]["options"]["legend"]["placement"] = "under"


def _grid(dashboard: dict[str, Any]) -> None:
    dashboard["panels"][0]["gridPos"]["w"] = "8"


def _expression(dashboard: dict[str, Any]) -> None:
    dashboard["panels"][0]["targets"][0]["expression"] = "up"


def _variable(dashboard: dict[str, Any]) -> None:
    dashboard["templating"]["list"][1]["refresh"] = 7


def _title(dashboard: dict[str, Any]) -> None:
    dashboard["name"] = dashboard.pop("title")


def _minimum(dashboard: dict[str, Any]) -> None:
    dashboard["panels"][0]["fieldConfig"]["defaults"]["min"] = "none"


@pytest.mark.parametrize(
    ("spoil", "at"),
    [
        (_legend, "/panels/0/options/legend/placement"),
        (_grid, "/panels/0/grid_pos/w"),
        (_expression, "/panels/0/targets/0/expression"),
        (_variable, "/templating/list_val/1/refresh"),
        (_title, "/name"),
        (_minimum, "/panels/0/field_config/defaults/min_val"),
    ],
)
def test_what_grafana_would_not_take_is_found(spoil: Callable[[dict[str, Any]], None], at: str) -> None:
    dashboard = json.loads(DASHBOARDS[0].read_text())
    spoil(dashboard)
    assert unfit(dashboard) == [at]
