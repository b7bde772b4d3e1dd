"""The tools of one agent, and which are offered now."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import TypeVar

from rxloop.errors import ConfigurationError
from rxloop.pipeline.interfaces import Tool, Toolset
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.tools.function import Function, FunctionTool, as_tool, check_name, is_tool
from rxloop.tools.toolsets import Families, Missing, family_name

ToolDeps = TypeVar("ToolDeps", default=Any)

AnyTool = Tool[ToolDeps] | Function | Toolset[ToolDeps]
"""What `tools=` of an agent takes: `AnyTool[Deps]` for one with these deps."""

log = logging.getLogger("rxloop")

_KEPT = 16
"""How many lists of definitions are kept: one for each set of tools that is enabled at times."""


@dataclass(frozen=True, slots=True)
class Offered:
    """What is offered at one time."""

    tools: dict[str, Tool]
    """The tools by name, in order."""
    missing: tuple[Missing, ...] = ()
    """The families whose tools cannot be had."""


class _Merged:
    """The tools of an agent, together with those that its families gave."""

    def __init__(self, given: Sequence[object], found: dict[str, Tool]) -> None:
        self.given = given
        self.all = Offered(found)
        self._deciding = [(name, tool) for name, tool in found.items() if getattr(tool, "asks", True)]
        """Those that may be offered at times."""
        self._waits = any(_decided_elsewhere(tool) for _, tool in self._deciding)

    def offered_now(self, ctx: RunContext[Any]) -> Offered | None:
        """Find what is offered now; None if that takes waiting."""
        if self._waits:
            return None
        left_out = {name for name, tool in self._deciding if not tool.enabled(ctx)}
        if not left_out:
            return self.all
        return Offered({name: tool for name, tool in self.all.tools.items() if name not in left_out})


class AgentTools:
    """The tools of an agent, in the order in which they were given."""

    def __init__(self, tools: Iterable[AnyTool] = (), families: Families | None = None) -> None:
        """Collect the tools.

        Args:
            tools: Tools, functions, and families of tools that may differ from run to run.
            families: Enters the families, and leaves them at the end of the agent.

        Raises:
            ConfigurationError: Two tools have one name, or something is not a tool.
        """
        self._parts: list[Tool | Toolset] = [_tool_or_family(tool) for tool in tools]
        self._plain: dict[str, Tool] = {}
        self._client: dict[str, Tool] = {}
        """Those that the client of the run brings with it."""
        self._hidden: set[str] = set()
        self._families = families or Families()
        self._family_of: dict[str, str] = {}
        """The families of tools that were offered at some time, by the names of the tools."""
        for part in self._parts:
            if isinstance(part, Toolset):
                continue
            name = part.definition.name
            check_name(name)
            if name in self._plain:
                raise ConfigurationError(f"two tools are called {name!r}; give one of them another name=...")
            self._plain[name] = part
            self._know(part)
        self._asked = [part for part in self._parts if isinstance(part, Toolset)]
        self._waits = any(map(_decided_elsewhere, self._plain.values()))
        self._merged: _Merged | None = None
        """What came of what the families gave last, since most give the same each time."""
        self._definitions: tuple[tuple[ToolDefinition, ...], ...] = ()
        self._defined: tuple[Mapping[str, Tool] | None, tuple[ToolDefinition, ...]] = (None, ())
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        return f"<AgentTools {', '.join(_label(part) for part in self._parts)}>"

    def with_client(self, tools: Iterable[Tool]) -> AgentTools:
        """Add tools that the client of a run brings with it.

        Raises:
            ConfigurationError: One has the name of a tool that is here.
        """
        added = list(tools)
        for name in (tool.definition.name for tool in added):
            if name in self._plain:
                raise ConfigurationError(f"client_tools: the agent has a tool called {name!r}; give another name")
        made = AgentTools([*self._parts, *added], self._families)
        # What the families have shown so far is known to all runs.
        made._hidden, made._family_of = self._hidden, self._family_of
        made._client = {tool.definition.name: tool for tool in added}
        return made

    def hides(self, name: str) -> bool:
        """Tell whether a tool of that name is not for clients, also one that is not enabled or was offered earlier."""
        return name in self._hidden

    def resolve_now(self, ctx: RunContext[Any]) -> Offered | None:
        """Find the tools that are offered now, as `resolve` does, without waiting.

        None if that takes waiting: for families of tools, or for functions of the user that decide about a tool.
        """
        if self._waits:
            return None
        if self._asked:
            given = self._families.given_now(self._asked, ctx)
            return None if given is None else self._merge(given).offered_now(ctx)
        return Offered({name: tool for name, tool in self._plain.items() if tool.enabled(ctx)})

    def swapped(self, name: str, tool: Tool, asked: str | None) -> bool:
        """Tell whether a call from before may have been one of another tool: a client's for a family's, or vice versa.

        Args:
            name: What was called.
            tool: The tool of that name now.
            asked: The kind of the last question of the call; only those of a client's tools are of the kind `tool`.
        """
        return name in self._client and (tool is self._client[name]) != (asked in (None, "tool"))

    @property
    def plain(self) -> Mapping[str, Tool]:
        """The tools that stand by themselves, by name, be they offered now or not."""
        return self._plain

    async def resolve(self, ctx: RunContext[Any]) -> Offered:
        """Find the tools that are offered now.

        The first tool of a name counts; a warning names the others. A family that fails is left out.
        """
        given = await self._families.ask_all(self._asked, ctx) if self._asked else ()
        # A tool that is not enabled keeps its name: no other one takes its place meanwhile.
        found = self._merge(given).all.tools
        enabled = await _ask_enabled(list(found.values()), ctx)
        offered = {name: tool for (name, tool), is_enabled in zip(found.items(), enabled, strict=True) if is_enabled}
        return Offered(offered, tuple(each for each in given if isinstance(each, Missing)))

    def _merge(self, given: Sequence[Sequence[Tool] | Missing]) -> _Merged:
        """Put the tools of the families among the others, where they were given."""
        if self._merged is not None and all(map(operator.is_, self._merged.given, given)):
            return self._merged
        answers = iter(given)
        found: dict[str, Tool] = {}
        missing = {each.family for each in given if isinstance(each, Missing)}
        for part in self._parts:
            if isinstance(part, Toolset):
                tools = next(answers)
                if not isinstance(tools, Missing):
                    self._add(found, family_name(part), tools)
                continue
            name = part.definition.name
            # A client's tool does not take the place of one that is only away.
            if name in found or (name in self._client and self._family_of.get(name) in missing):
                self._warn(f"tool {name!r} is left out: a family before it has one of that name")
            else:
                found[name] = part
        self._merged = _Merged(given, found)
        return self._merged

    def definitions(self, tools: Mapping[str, Tool]) -> tuple[ToolDefinition, ...]:
        """List the tools as they are offered: the identical tuple for the same tools, so that it is encoded once."""
        if tools is self._defined[0]:
            return self._defined[1]
        current = tuple(tool.definition for tool in tools.values())
        current = next((known for known in self._definitions if known == current), current)
        if current not in self._definitions:
            self._definitions = (current, *self._definitions[: _KEPT - 1])
        self._defined = (tools, current)
        return current

    def why_not(self, name: str, offered: Iterable[str], missing: Iterable[str] = ()) -> str:
        """Say what the model reads when it calls a tool that it was not offered; clients see it, too.

        Args:
            name: The tool that it called.
            offered: The tools that it may call.
            missing: The families whose tools cannot be had now.
        """
        # The model has the hidden ones in its list of tools anyway.
        names = [tool for tool in offered if not self.hides(tool)]
        missing = list(missing)
        if self._family_of.get(name) in missing:
            known = f"The tool {name!r} is not available now, like all tools of {self._family_of[name]}: it has failed."
        else:
            known = f"The tool {name!r} is not available now." if name in self._plain else f"There is no tool {name!r}."
            if missing:
                known += f" The tools of {', '.join(missing)} are not available now."
        if not names:
            return f"{known} No tools are available: answer without them."
        near = nearest(name, names)
        meant = f" Did you mean {near!r}?" if near is not None else ""
        return f"{known}{meant} The available tools are: {', '.join(names)}."

    def _add(self, found: dict[str, Tool], family: str, tools: Iterable[Tool]) -> None:
        for tool in tools:
            name = tool.definition.name
            if name in found:
                self._warn(f"tool {name!r} of {family} is left out: one before it has that name")
            elif self._usable(name, family):
                self._know(tool)
                self._family_of[name] = family
                found[name] = tool

    def _know(self, tool: Tool) -> None:
        if tool.definition.hidden:
            self._hidden.add(tool.definition.name)

    def _usable(self, name: str, family: str) -> bool:
        try:
            check_name(name)
        except ConfigurationError as error:
            # Not raised: one odd name of a server must not take all its other tools away.
            self._warn(f"a tool of {family} is left out: {error}")
            return False
        return True

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s", text)


def _decided_elsewhere(tool: Tool) -> bool:
    """Tell whether code of the user decides if a tool is offered, which may take any time."""
    return tool.asks if isinstance(tool, FunctionTool) else not type(tool).__module__.startswith("rxloop.")


async def _ask_enabled(tools: Sequence[Tool], ctx: RunContext[Any]) -> list[bool]:
    """Ask for each tool whether it is offered now; code of the user runs in a thread, where it holds up nothing.

    Raises:
        RxloopError: One of them took too long.
    """
    current = ""

    def ask() -> list[bool]:
        nonlocal current
        answers: list[bool] = []
        for tool in tools:
            current = tool.definition.name
            answers.append(tool.enabled(ctx))
        return answers

    if not any(map(_decided_elsewhere, tools)):
        return ask()
    # Imported here, because importing the tools is quicker without.
    from rxloop.pipeline.time_limits import limit_time
    from rxloop.support.threads import run_in_thread

    return await limit_time(ctx, lambda: run_in_thread(ask), lambda: f"enabled= of the tool {current}")


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Find the name that was probably meant; case, `-`, `_` and a prefix such as `functions.` do not count."""
    from difflib import get_close_matches

    plain = {_plain(known): known for known in names}
    found = get_close_matches(_plain(name), plain, n=1)
    return plain[found[0]] if found else None


def _plain(name: str) -> str:
    for mark in ".:/":
        name = name.rpartition(mark)[2] or name
    return name.casefold().replace("-", "").replace("_", "")


def _tool_or_family(value: AnyTool) -> Tool | Toolset:
    if not isinstance(value, type) and not is_tool(value) and isinstance(value, Toolset):
        return value
    return as_tool(value)  # pyright: ignore[reportArgumentType]


def _label(part: Tool | Toolset) -> str:
    return family_name(part) if isinstance(part, Toolset) else part.definition.name
