"""The options that type checkers know are those that the calls take."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import txnclient
from txnclient.options import ConsumerOptions, ProducerOptions, ReaderOptions

POSITIONAL_OR_TYPED = {"self", "topic", "topics", "subscription", "serializer"}


@pytest.mark.parametrize(
    ("call", "options"),
    [
        (txnclient.Client.producer, ProducerOptions),
        (txnclient.Client.consumer, ConsumerOptions),
        (txnclient.Client.reader, ReaderOptions),
    ],
    ids=["producer", "consumer", "reader"],
)
def test_every_option_of_a_call_is_known_to_type_checkers(call: Any, options: Any) -> None:
    taken = inspect.signature(call).parameters
    assert sorted(name for name in taken if name not in POSITIONAL_OR_TYPED) == sorted(options.__annotations__)
    for name, annotation in options.__annotations__.items():
        assert taken[name].annotation == annotation.__forward_arg__, name
