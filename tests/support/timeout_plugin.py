"""A test that hangs is ended, whatever it makes of its first time-out.

pytest-timeout raises in the main thread, once, and no more after a test has failed. A task may swallow that, and what
is cleaned up behind a failed test may hang: so it raises again each minute, and there is a time for cleaning up, too.
"""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest
from pytest_timeout import Settings  # pyright: ignore[reportMissingTypeStubs]

_AGAIN = 60.0
"""Seconds to clean up in, and between a time-out that was swallowed and the next."""


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(settings: Settings) -> Generator[None, object, object]:
    """Raise again and again."""
    done = yield
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, _AGAIN)
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Raise in what comes behind a test."""
    settings = Settings(timeout=_AGAIN, method="signal", func_only=False, disable_debugger_detection=False)
    item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
    try:
        return (yield)
    finally:
        item.ihook.pytest_timeout_cancel_timer(item=item)
