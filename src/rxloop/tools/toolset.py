"""The tools of an agent: what is offered in a run, and what a model reads about a tool that is not."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from typing_extensions import TypeVar

from rxloop.errors import ConfigurationError
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.pipeline.seams import Tool, ToolProvider
from rxloop.tools.function import Function, FunctionTool, as_tool, check_name, is_tool

ToolDeps = TypeVar("ToolDeps", default=Any)

AnyTool = Tool[ToolDeps] | Function | ToolProvider[ToolDeps]
"""What `tools=` of an agent takes: `AnyTool[Deps]` for one with these deps."""

log = logging.getLogger("rxloop")

_KEPT = 16
"""How many lists of definitions are kept: one for each set of tools that is enabled at times."""


class Toolset:
    """The tools of an agent, in the order in which they were given."""

    def __init__(self, tools: Iterable[AnyTool] = ()) -> None:
        """Collect the tools.

        Args:
            tools: Tools, functions, and families of tools that may differ from run to run.

        Raises:
            ConfigurationError: Two tools have one name, or something is not a tool.
        """
        self._parts: list[Tool | ToolProvider] = [_tool_or_family(tool) for tool in tools]
        self._plain: dict[str, Tool] = {}
        self._hidden: set[str] = set()
        for part in self._parts:
            if isinstance(part, ToolProvider):
                continue
            name = part.definition.name
            check_name(name)
            if name in self._plain:
                raise ConfigurationError(f"two tools are called {name!r}; give one of them another name=...")
            self._plain[name] = part
            self._know(part)
        self._waits = len(self._plain) < len(self._parts) or any(map(_decided_elsewhere, self._plain.values()))
        self._definitions: tuple[tuple[ToolDefinition, ...], ...] = ()
        self._warned: set[str] = set()

    def __repr__(self) -> str:
        return f"<Toolset {', '.join(_label(part) for part in self._parts)}>"

    @property
    def providers(self) -> tuple[ToolProvider, ...]:
        """The families of tools."""
        return tuple(part for part in self._parts if isinstance(part, ToolProvider))

    def hides(self, name: str) -> bool:
        """Tell whether a tool of that name is not for clients, also one that is not enabled or was offered earlier."""
        return name in self._hidden

    def resolve_now(self, ctx: RunContext[Any]) -> dict[str, Tool] | None:
        """Find the tools that are offered now, as `resolve` does, without waiting.

        None if that takes waiting: for families of tools, or for functions of the user that decide about a tool.
        """
        if self._waits:
            return None
        return {name: tool for name, tool in self._plain.items() if tool.enabled(ctx)}

    @property
    def plain(self) -> Mapping[str, Tool]:
        """The tools that stand by themselves, by name, be they offered now or not."""
        return self._plain

    async def resolve(self, ctx: RunContext[Any]) -> dict[str, Tool]:
        """Find the tools that are offered now, by name, in order.

        The first tool of a name counts; a warning names the others.

        Raises:
            ConfigurationError: One family has two tools of one name.
        """
        # Imported here, because importing the tools is quicker without.
        from rxloop.stream.within import within

        # A tool that is not enabled keeps its name: no other one takes its place meanwhile.
        found: dict[str, Tool] = {}
        for part in self._parts:
            if isinstance(part, ToolProvider):
                given = cast("object", await within(ctx, part.tools(ctx), f"{type(part).__qualname__}.tools()"))
                if not isinstance(given, Iterable):
                    raise ConfigurationError(f"{type(part).__qualname__}.tools() gave {given!r}: give a list of tools")
                self._add(found, part, cast("Iterable[Tool]", given))
            elif part.definition.name in found:
                self._warn(f"tool {part.definition.name!r} is left out: a family before it has one of that name")
            else:
                found[part.definition.name] = part
        enabled = await _ask_enabled(list(found.values()), ctx)
        return {name: tool for (name, tool), is_enabled in zip(found.items(), enabled, strict=True) if is_enabled}

    def definitions(self, tools: Mapping[str, Tool]) -> tuple[ToolDefinition, ...]:
        """List the tools as they are offered: the identical tuple for the same tools, so that it is encoded once."""
        current = tuple(tool.definition for tool in tools.values())
        for known in self._definitions:
            if known == current:
                return known
        self._definitions = (current, *self._definitions[: _KEPT - 1])
        return current

    def why_not(self, name: str, offered: Iterable[str]) -> str:
        """Say what the model reads when it calls a tool that it was not offered; clients see it, too.

        Args:
            name: The tool that it called.
            offered: The tools that it may call.
        """
        # The model has the hidden ones in its list of tools anyway.
        names = [tool for tool in offered if not self.hides(tool)]
        known = f"The tool {name!r} is not available now." if name in self._plain else f"There is no tool {name!r}."
        if not names:
            return f"{known} No tools are available: answer without them."
        near = nearest(name, names)
        meant = f" Did you mean {near!r}?" if near is not None else ""
        return f"{known}{meant} The available tools are: {', '.join(names)}."

    async def aclose(self) -> None:
        """Close the families of tools; may be called more than once."""
        # Imported here, because importing the tools is quicker without.
        from rxloop.pipeline.closing import in_turn

        await in_turn([provider.aclose for provider in self.providers])

    def _add(self, found: dict[str, Tool], provider: ToolProvider, tools: Iterable[Tool]) -> None:
        own: set[str] = set()
        for tool in (as_tool(each) if callable(each) and not hasattr(each, "definition") else each for each in tools):
            name = tool.definition.name
            if name in own:
                raise ConfigurationError(f"{type(provider).__qualname__} has two tools called {name!r}")
            own.add(name)
            if name in found:
                self._warn(f"tool {name!r} of {type(provider).__qualname__} is left out: one before it has that name")
            elif self._usable(name, provider):
                self._know(tool)
                found[name] = tool

    def _know(self, tool: Tool) -> None:
        if tool.definition.hidden:
            self._hidden.add(tool.definition.name)

    def _usable(self, name: str, provider: ToolProvider) -> bool:
        try:
            check_name(name)
        except ConfigurationError as error:
            # Not raised: one odd name of a server must not take all its other tools away.
            self._warn(f"a tool of {type(provider).__qualname__} is left out: {error}")
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
    from rxloop.stream.threads import in_thread
    from rxloop.stream.within import within

    return await within(ctx, in_thread(ask), lambda: f"enabled= of the tool {current}")


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


def _tool_or_family(value: AnyTool) -> Tool | ToolProvider:
    if not isinstance(value, type) and not is_tool(value) and isinstance(value, ToolProvider):
        return value
    if callable(getattr(value, "tools", None)) and not hasattr(value, "aclose"):
        raise ConfigurationError(f"{type(value).__qualname__} is a family of tools with no aclose(): add one")
    return as_tool(value)  # pyright: ignore[reportArgumentType]


def _label(part: Tool | ToolProvider) -> str:
    return type(part).__qualname__ if isinstance(part, ToolProvider) else part.definition.name
