"""Agent tools and their selection for model requests."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from typing_extensions import TypeIs, TypeVar

from rxloop.errors import ConfigurationError
from rxloop.pipeline.interfaces import Tool, Toolset
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.tools.function import Function, FunctionTool, as_tool, check_name, is_tool
from rxloop.tools.redaction import RedactedTool
from rxloop.tools.toolsets import MissingToolset, Toolsets, toolset_name

if TYPE_CHECKING:
    from rxloop.tools.client_tool import ClientTool

ToolDeps = TypeVar("ToolDeps", default=Any)

AnyTool = Tool[ToolDeps] | Function | Toolset[ToolDeps]
"""Item type for an agent's `tools=` argument. Use `AnyTool[Deps]` for agents with typed dependencies."""

log = logging.getLogger("rxloop")

_MAX_DEFINITIONS = 16
"""Maximum number of cached tuples of definitions. Each set of enabled tools needs one."""


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """Tools offered in one model request."""

    tools: dict[str, Tool]
    """Ordered mapping of tool names to tools."""
    missing: tuple[MissingToolset, ...] = ()
    """Unavailable toolsets."""
    answers: tuple[str, ...] = field(init=False)
    """Names of tools that return the run's answer, computed once because most requests offer identical tools."""

    def __post_init__(self) -> None:
        answers = tuple(name for name, tool in self.tools.items() if tool.definition.answer)
        object.__setattr__(self, "answers", answers)


class _MergedTools:
    """Agent tools merged with toolset tools."""

    def __init__(self, results: Sequence[object], tools: dict[str, Tool]) -> None:
        self.results = results
        self.all = OfferedTools(tools)
        self._conditional = [(name, tool) for name, tool in tools.items() if getattr(tool, "is_conditional", True)]
        """Conditionally enabled tools."""
        self._must_wait = any(_is_decided_by_user(tool) for _, tool in self._conditional)

    def select_now(self, ctx: RunContext[Any]) -> OfferedTools | None:
        """Return the tools offered now, or None if that requires waiting."""
        if self._must_wait:
            return None
        disabled = {name for name, tool in self._conditional if not tool.enabled(ctx)}
        if not disabled:
            return self.all
        return OfferedTools({name: tool for name, tool in self.all.tools.items() if name not in disabled})


class AgentTools:
    """Ordered collection of an agent's tools."""

    def __init__(self, tools: Iterable[AnyTool] = (), toolsets: Toolsets | None = None) -> None:
        """Initialize the tool collection.

        Args:
            tools: Tools, functions and toolsets.
            toolsets: Toolset lifecycle manager. Toolsets are closed along with the agent.

        Raises:
            ConfigurationError: Duplicate tool name or invalid item.
        """
        self._parts: list[Tool | Toolset] = [_to_tool_or_toolset(tool) for tool in tools]
        self._plain_tools: dict[str, Tool] = {}
        self._client_tools: dict[str, ClientTool] = {}
        """Client tools of the current run."""
        self._hidden_names: set[str] = set()
        self._toolsets = toolsets or Toolsets()
        self._owners: dict[str, str] = {}
        """Mapping of previously offered tool names to toolset names."""
        self._toolset_parts: list[Toolset] = []
        for part in self._parts:
            if _is_toolset(part):
                self._toolset_parts.append(part)
                continue
            name = part.definition.name
            check_name(name)
            if name in self._plain_tools:
                raise ConfigurationError(f"two tools are named {name!r}; pass another name= to one of them")
            self._plain_tools[name] = part
            self._remember_hidden(part)
        self._must_wait = any(map(_is_decided_by_user, self._plain_tools.values()))
        self._merged: _MergedTools | None = None
        """Cached merge result, because most toolsets return an identical list each time."""
        self._definitions: tuple[tuple[ToolDefinition, ...], ...] = ()
        self._last_definitions: tuple[Mapping[str, Tool] | None, tuple[ToolDefinition, ...]] = (None, ())
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        return f"<AgentTools {', '.join(_label(part) for part in self._parts)}>"

    def with_client_tools(self, tools: Iterable[ClientTool]) -> AgentTools:
        """Return a copy with additional client tools.

        Raises:
            ConfigurationError: Name conflict with an existing agent tool.
        """
        added = {tool.definition.name: tool for tool in tools}
        for name in added:
            if name in self._plain_tools:
                raise ConfigurationError(f"client_tools: the agent already has a tool named {name!r}; rename one")
        # Client tools are visible, always offered, and already checked. Hidden names and previously offered toolset
        # names are shared across all runs.
        copy_ = copy(self)
        copy_._parts, copy_._plain_tools = [*self._parts, *added.values()], {**self._plain_tools, **added}
        copy_._client_tools, copy_._warned = added, set()
        copy_._merged, copy_._definitions, copy_._last_definitions = None, (), (None, ())
        return copy_

    def hides(self, name: str) -> bool:
        """Return True if clients must not see the tool, even if it is disabled or was offered earlier."""
        return name in self._hidden_names

    def resolve_now(self, ctx: RunContext[Any]) -> OfferedTools | None:
        """Return the tools offered now, like `resolve`, but without waiting.

        Returns None if that requires waiting for a toolset or for an `enabled` function of the user.
        """
        if self._must_wait:
            return None
        results = self._toolsets.list_tools_now(self._toolset_parts, ctx) if self._toolset_parts else ()
        return None if results is None else self._merge(results).select_now(ctx)

    def is_swapped(self, name: str, tool: Tool, question_kind: str | None) -> bool:
        """Return True if an earlier attempt may have called a different tool of the same name.

        A client tool may have replaced this tool since then, or vice versa.

        Args:
            name: Requested tool name.
            tool: Current tool with this name.
            question_kind: Kind of the call's last question. Only client tools use the kind `tool`.
        """
        return name in self._client_tools and (tool is self._client_tools[name]) != (question_kind in (None, "tool"))

    @property
    def plain_tools(self) -> Mapping[str, Tool]:
        """Tools that do not belong to a toolset, by name. Includes disabled tools."""
        return self._plain_tools

    @property
    def toolset_tools(self) -> dict[str, list[str]]:
        """Names of the tools that each toolset has offered so far, by toolset name. Hidden tools are omitted."""
        names = [toolset_name(part) for part in self._toolset_parts]
        return {
            name: [tool for tool, owner in self._owners.items() if owner == name and not self.hides(tool)]
            for name in names
        }

    async def resolve(self, ctx: RunContext[Any]) -> OfferedTools:
        """Return the tools offered now.

        If several tools have the same name, the first one is used and a warning is logged. Toolsets that fail are
        skipped.
        """
        results = await self._toolsets.list_tools(self._toolset_parts, ctx) if self._toolset_parts else ()
        # Disabled tools keep their names reserved.
        tools = self._merge(results).all.tools
        enabled = await _check_enabled(list(tools.values()), ctx)
        offered = {name: tool for (name, tool), is_enabled in zip(tools.items(), enabled, strict=True) if is_enabled}
        return OfferedTools(offered, tuple(each for each in results if isinstance(each, MissingToolset)))

    def _merge(self, results: Sequence[Sequence[Tool] | MissingToolset]) -> _MergedTools:
        """Merge toolset tools into the agent's tool list, preserving order."""
        if self._merged is not None and all(map(operator.is_, self._merged.results, results)):
            return self._merged
        answers = iter(results)
        tools: dict[str, Tool] = {}
        missing = {each.name for each in results if isinstance(each, MissingToolset)}
        for part in self._parts:
            if _is_toolset(part):
                added = next(answers)
                if not isinstance(added, MissingToolset):
                    self._add(tools, toolset_name(part), added)
                continue
            name = part.definition.name
            # A client tool must not replace a toolset's tool that is only temporarily missing.
            if name in tools or (name in self._client_tools and self._owners.get(name) in missing):
                self._warn(f"Skipping tool {name!r}: an earlier toolset has a tool of that name")
            else:
                tools[name] = part
        self._merged = _MergedTools(results, tools)
        return self._merged

    def definitions(self, tools: Mapping[str, Tool]) -> tuple[ToolDefinition, ...]:
        """Return tool definitions. Identical lists share a cached tuple to avoid repeated encoding."""
        if tools is self._last_definitions[0]:
            return self._last_definitions[1]
        current = tuple(tool.definition for tool in tools.values())
        current = next((each for each in self._definitions if each == current), current)
        if current not in self._definitions:
            self._definitions = (current, *self._definitions[: _MAX_DEFINITIONS - 1])
        self._last_definitions = (tools, current)
        return current

    def explain_unavailable(self, name: str, offered: Iterable[str], missing: Iterable[str] = ()) -> str:
        """Return the text for the model when it calls a tool that was not offered. Clients can read this text.

        Args:
            name: Name of the tool in the call.
            offered: Names of the offered tools.
            missing: Names of the toolsets whose tools are not available.
        """
        # Hidden tools are already listed in the model request.
        names = [tool for tool in offered if not self.hides(tool)]
        missing = list(missing)
        if self._owners.get(name) in missing:
            text = f"The tool {name!r} is not available now, like all tools of {self._owners[name]}: it has failed."
        else:
            text = (
                f"The tool {name!r} is not available now."
                if name in self._plain_tools
                else f"There is no tool {name!r}."
            )
            if missing:
                text += f" The tools of {', '.join(missing)} are not available now."
        if not names:
            return f"{text} No tools are available: answer without them."
        # Imported lazily, because correct programs do not need it.
        from rxloop._names import find_nearest

        closest = find_nearest(name, names)
        hint = f" Did you mean {closest!r}?" if closest is not None else ""
        return f"{text}{hint} The available tools are: {', '.join(names)}."

    def _add(self, tools: dict[str, Tool], toolset: str, added: Iterable[Tool]) -> None:
        for tool in added:
            name = tool.definition.name
            if name in tools:
                self._warn(f"Skipping tool {name!r} of {toolset}: an earlier tool has that name")
            elif self._is_valid_name(name, toolset):
                self._remember_hidden(tool)
                self._owners[name] = toolset
                tools[name] = tool

    def _remember_hidden(self, tool: Tool) -> None:
        if tool.definition.hidden:
            self._hidden_names.add(tool.definition.name)

    def _is_valid_name(self, name: str, toolset: str) -> bool:
        try:
            check_name(name)
        except ConfigurationError as error:
            # Only logged, so that one invalid name does not disable all tools of a server.
            self._warn(f"Skipping a tool of {toolset}: {error}")
            return False
        return True

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)


def _is_decided_by_user(tool: Tool) -> bool:
    """Return True if code of the user decides whether a tool is offered. Such code may block."""
    if isinstance(tool, RedactedTool):
        tool = tool.inner
    return tool.is_conditional if isinstance(tool, FunctionTool) else not type(tool).__module__.startswith("rxloop.")


async def _check_enabled(tools: Sequence[Tool], ctx: RunContext[Any]) -> list[bool]:
    """Return for each tool whether it is enabled.

    Code of the user runs in a thread, so that it cannot block the event loop.

    Raises:
        RxloopError: If the time limit is exceeded.
    """
    current = ""

    def ask() -> list[bool]:
        nonlocal current
        answers: list[bool] = []
        for tool in tools:
            current = tool.definition.name
            answers.append(tool.enabled(ctx))
        return answers

    if not any(map(_is_decided_by_user, tools)):
        return ask()
    # Imported lazily to speed up the import of the tools.
    from rxloop.pipeline.time_limits import limit_time
    from rxloop.support.threads import run_in_thread

    return await limit_time(ctx, lambda: run_in_thread(ask), lambda: f"enabled= of the tool {current}")


def _to_tool_or_toolset(value: AnyTool) -> Tool | Toolset:
    if not isinstance(value, type) and not is_tool(value) and isinstance(value, Toolset):
        return value
    return as_tool(value)  # pyright: ignore[reportArgumentType]


def _is_toolset(part: Tool | Toolset) -> TypeIs[Toolset]:
    # Checking for the methods of a toolset takes ten times as long, and clients define many tools.
    return not is_tool(part)


def _label(part: Tool | Toolset) -> str:
    return toolset_name(part) if _is_toolset(part) else part.definition.name
