"""Pytest plugin that ends hanging tests even if they swallow the first timeout.

pytest-timeout raises only once, in the main thread, and not during teardown. A task may swallow that error, and
teardown may hang. The plugin therefore raises again each minute and also limits the teardown.
"""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest
from pytest_timeout import Settings  # pyright: ignore[reportMissingTypeStubs]

_AGAIN = 60.0
"""Interval for repeating the timeout, and time limit for teardown, in seconds."""


@pytest.hookimpl(wrapper=True)
def pytest_timeout_set_timer(settings: Settings) -> Generator[None, object, object]:
    """Repeat the timeout."""
    done = yield
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, _AGAIN)
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    """Limit the teardown time."""
    settings = Settings(timeout=_AGAIN, method="signal", func_only=False, disable_debugger_detection=False)
    item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
    try:
        return (yield)
    finally:
        item.ihook.pytest_timeout_cancel_timer(item=item)
