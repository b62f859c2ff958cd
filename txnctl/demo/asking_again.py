"""Retries a call on a retriable error: for a minute, ever more slowly, never silently."""

from __future__ import annotations

import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_delay,
    wait_exponential,
    wait_random,
)

import txnclient

log = structlog.get_logger()

FOR_S = 60.0


def asking_again(what: str) -> AsyncRetrying:
    """Used as `await asking_again("…")(call)`. Raises the last error after the minute, and an error that is not
    retriable at once."""

    def report(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        log.warning("asking_again", what=what, attempt=state.attempt_number, error=f"{type(error).__name__}: {error}")

    return AsyncRetrying(
        retry=retry_if_exception(lambda error: isinstance(error, txnclient.TxnError) and error.retriable),
        wait=wait_exponential(multiplier=0.05, max=2.0) + wait_random(0.0, 0.1),
        stop=stop_after_delay(FOR_S),
        before_sleep=report,
        reraise=True,
    )
