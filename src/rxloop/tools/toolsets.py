"""Toolset lifecycle and failure handling."""

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
from rxloop.support.tasks import is_cancelled
from rxloop.tools.function import as_tool

if TYPE_CHECKING:
    from rxloop.pipeline.interfaces import ListsNow
    from rxloop.tools.task_resources import TaskResources

_MAX_TOOLS = 10_000
"""Maximum number of tools in a toolset."""

_MAX_REASON = 2_000
"""Maximum number of characters in the reason of a failure."""


@dataclass(frozen=True, slots=True)
class MissingToolset:
    """Unavailable toolset."""

    name: str
    reason: str


def toolset_name(toolset: Toolset) -> str:
    """Return the toolset name for events, warnings and model messages. Defaults to the class name."""
    name = getattr(toolset, "name", None)
    return name if isinstance(name, str) and name else type(toolset).__qualname__


class Toolsets:
    """Toolsets entered by an agent and shared across runs."""

    def __init__(self) -> None:
        self._resources: TaskResources[Any] | None = None

    def list_tools_now(self, toolsets: Sequence[Toolset], ctx: RunContext[Any]) -> list[Sequence[Tool]] | None:
        """Return available tools of all toolsets, or None if waiting is required."""
        results: list[Sequence[Tool]] = []
        for toolset in toolsets:
            if (
                self._resources is None
                or self._resources.get_now(id(toolset)) is None
                or not hasattr(toolset, "tools_now")
            ):
                return None
            tools = cast("ListsNow", toolset).tools_now(ctx)
            if tools is None:
                return None
            results.append(tools)
        return results

    async def list_tools(
        self, toolsets: Sequence[Toolset], ctx: RunContext[Any]
    ) -> list[Sequence[Tool] | MissingToolset]:
        """List toolset tools concurrently, entering toolsets if necessary.

        Raises:
            Paused: Pending question from a toolset.
        """
        if len(toolsets) == 1:
            return [await self._list_limited(toolsets[0], ctx)]
        # Await all toolsets, because a pending task would outlive the run.
        answers = await asyncio.gather(
            *(self._list_limited(toolset, ctx) for toolset in toolsets), return_exceptions=True
        )
        results: list[Sequence[Tool] | MissingToolset] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            results.append(answer)
        return results

    async def aclose(self) -> None:
        """Leave all entered toolsets. May be called from any task and more than once."""
        if self._resources is not None:
            await self._resources.aclose()

    async def _list_limited(self, toolset: Toolset, ctx: RunContext[Any]) -> Sequence[Tool] | MissingToolset:
        # Imported lazily to speed up the import of the tools.
        from rxloop.pipeline.time_limits import limit_time

        name = toolset_name(toolset)
        try:
            return await limit_time(ctx, lambda: self._list_one(toolset, ctx), f"the toolset {name}")
        except RxloopError as error:
            return MissingToolset(name, _reason(error))

    async def _list_one(self, toolset: Toolset, ctx: RunContext[Any]) -> Sequence[Tool] | MissingToolset:
        try:
            if isinstance(toolset, AbstractAsyncContextManager):
                return await self._enter_and_list(toolset, ctx)
            return _check_tools(toolset, await toolset.tools(ctx))
        except Paused:
            raise
        except asyncio.CancelledError as error:
            if is_cancelled(error):
                raise
            return MissingToolset(toolset_name(toolset), _reason(error))
        except BaseException as error:
            # Imported lazily to speed up the import of the tools.
            from rxloop.support.foreign_errors import leave_to_loop

            if isinstance(error, KeyboardInterrupt):
                leave_to_loop(error)
            return MissingToolset(toolset_name(toolset), _reason(error))

    async def _enter_and_list(self, toolset: Toolset, ctx: RunContext[Any]) -> Sequence[Tool]:
        if self._resources is None:
            from rxloop.tools.task_resources import TaskResources

            self._resources = TaskResources()
        manager = cast("AbstractAsyncContextManager[Any]", toolset)
        limits = None if ctx.run is None else ctx.info.limits
        seconds = None if limits is None else limits.preparation
        # Toolsets need not be hashable. The entered toolset is kept alive, so its id stays unique.
        key = id(toolset)
        entered = await self._resources.get(key, lambda: manager, name=toolset_name(toolset), seconds=seconds)
        try:
            return _check_tools(toolset, await toolset.tools(ctx))
        except ConnectionError:
            self._resources.drop(key, entered)
            raise


def _check_tools(toolset: Toolset, results: object) -> Sequence[Tool]:
    """Validate toolset results and convert functions to tools.

    Raises:
        ConfigurationError: Invalid return type, duplicate tool names or too many tools.
    """
    name = toolset_name(toolset)
    if not isinstance(results, Iterable):
        raise ConfigurationError(f"{type(toolset).__qualname__}.tools() must return a list of tools, got {results!r}")
    tools: dict[str, Tool] = {}
    for each in islice(cast("Iterable[Any]", results), _MAX_TOOLS + 1):
        checked = cast("Tool", as_tool(each) if callable(each) and not hasattr(each, "definition") else each)
        tool_name = checked.definition.name
        if tool_name in tools:
            raise ConfigurationError(f"tool names of {name} must be unique, got {tool_name!r} twice")
        tools[tool_name] = checked
    if len(tools) > _MAX_TOOLS:
        raise ConfigurationError(f"{name} must have at most {_MAX_TOOLS} tools")
    return list(tools.values())


def _reason(error: BaseException) -> str:
    text = str(error)
    if not isinstance(error, RxloopError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return replace_surrogates(text)[:_MAX_REASON]
