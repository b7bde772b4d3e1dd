"""Life and failures of an agent's toolsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from rxloop.errors import ConfigurationError, Paused, RxloopError
from rxloop.pipeline.interfaces import Tool, Toolset
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.json_data import replace_surrogates
from rxloop.tools.function import as_tool

if TYPE_CHECKING:
    from rxloop.pipeline.interfaces import ListsNow
    from rxloop.tools.task_resources import Owned

_MOST = 10_000
"""Tools of a family."""

_LONGEST = 2_000
"""Characters of a reason."""


@dataclass(frozen=True, slots=True)
class Missing:
    """A family whose tools cannot be had now."""

    family: str
    reason: str


def family_name(family: Toolset) -> str:
    """What a family is called in events, warnings and answers to the model: its `name`, or that of its class."""
    name = getattr(family, "name", None)
    return name if isinstance(name, str) and name else type(family).__qualname__


class Families:
    """The families of tools that an agent has entered; one for all its runs."""

    def __init__(self) -> None:
        self._owned: Owned[Any] | None = None

    def given_now(self, families: Sequence[Toolset], ctx: RunContext[Any]) -> list[Sequence[Tool]] | None:
        """Ask families for their tools without waiting; None if that takes waiting."""
        given: list[Sequence[Tool]] = []
        for family in families:
            if self._owned is None or self._owned.now(id(family)) is None or not hasattr(family, "tools_now"):
                return None
            tools = cast("ListsNow", family).tools_now(ctx)
            if tools is None:
                return None
            given.append(tools)
        return given

    async def ask_all(self, families: Sequence[Toolset], ctx: RunContext[Any]) -> list[Sequence[Tool] | Missing]:
        """Ask families for their tools, side by side; one is entered first, if that has to be.

        Raises:
            Paused: One of them asks a question.
        """
        if len(families) == 1:
            return [await self._ask(families[0], ctx)]
        # Every answer is awaited, since what is left alone would outlive the run.
        answers = await asyncio.gather(*(self._ask(family, ctx) for family in families), return_exceptions=True)
        given: list[Sequence[Tool] | Missing] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            given.append(answer)
        return given

    async def aclose(self) -> None:
        """Leave the families that were entered; may be called from any task, and more than once."""
        if self._owned is not None:
            await self._owned.aclose()

    async def _ask(self, family: Toolset, ctx: RunContext[Any]) -> Sequence[Tool] | Missing:
        # Imported here, because importing the tools is quicker without.
        from rxloop.pipeline.time_limits import limit_time

        name = family_name(family)
        try:
            return await limit_time(ctx, lambda: self._given(family, ctx), f"the family of tools {name}")
        except RxloopError as error:
            return Missing(name, _reason(error))

    async def _given(self, family: Toolset, ctx: RunContext[Any]) -> Sequence[Tool] | Missing:
        try:
            if isinstance(family, AbstractAsyncContextManager):
                return await self._entered(family, ctx)
            return _tools(family, await family.tools(ctx))
        except Paused:
            raise
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return Missing(family_name(family), _reason(error))
        except BaseException as error:
            # Imported here, because importing the tools is quicker without.
            from rxloop.support.foreign_errors import leave_to_loop

            if isinstance(error, KeyboardInterrupt):
                leave_to_loop(error)
            return Missing(family_name(family), _reason(error))

    async def _entered(self, family: Toolset, ctx: RunContext[Any]) -> Sequence[Tool]:
        if self._owned is None:
            from rxloop.tools.task_resources import Owned

            self._owned = Owned()
        life = cast("AbstractAsyncContextManager[Any]", family)
        limits = None if ctx.run is None else ctx.info.limits
        seconds = None if limits is None else limits.preparation
        # By its id: a family need not be hashable, and what is entered keeps it alive.
        key = id(family)
        entered = await self._owned.get(key, lambda: life, name=family_name(family), seconds=seconds)
        try:
            return _tools(family, await family.tools(ctx))
        except ConnectionError:
            self._owned.drop(key, entered)
            raise


def _tools(family: Toolset, given: object) -> Sequence[Tool]:
    """What a family gave, as tools.

    Raises:
        ConfigurationError: It is something else, or two tools have one name.
    """
    name = family_name(family)
    if not isinstance(given, Iterable):
        raise ConfigurationError(f"{type(family).__qualname__}.tools() gave {given!r}: give a list of tools")
    found: dict[str, Tool] = {}
    for each in islice(cast("Iterable[Any]", given), _MOST + 1):
        member = cast("Tool", as_tool(each) if callable(each) and not hasattr(each, "definition") else each)
        known = member.definition.name
        if known in found:
            raise ConfigurationError(f"{name} has two tools called {known!r}")
        found[known] = member
    if len(found) > _MOST:
        raise ConfigurationError(f"{name} has more than {_MOST} tools")
    return list(found.values())


def _reason(error: BaseException) -> str:
    text = str(error)
    if not isinstance(error, RxloopError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return replace_surrogates(text)[:_LONGEST]
