"""A run that is made once, whoever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rxloop.errors import RunExists, UnknownRun
from rxloop.run.result import Result

O = TypeVar("O")  # noqa: E741
_MOMENT = 0.01
"""Seconds until what was begun in this process is looked for in the log again."""


async def once(begin: Callable[[], Awaitable[Result[O]]], resume: Callable[[], Awaitable[Result[O]]]) -> Result[O]:
    """Await a run that has a chosen id; where somebody else has begun it, its end, which may still be to come.

    Args:
        begin: Makes the run.
        resume: Goes on with it, or gives its end; it waits while the run is under way elsewhere.
    """
    while True:
        try:
            return await begin()
        except RunExists:
            try:
                return await resume()
            except UnknownRun:
                # Begun in this process this very moment: its first events are on their way into the log.
                await asyncio.sleep(_MOMENT)
