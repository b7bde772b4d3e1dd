"""Agent configuration from command line options."""

from __future__ import annotations

import importlib
import inspect
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Self, cast

import typer

from rxloop.agents.agent import Agent
from rxloop.cli.model_access import how_to_get_in, key_state, key_variable
from rxloop.cli.options import Strategy
from rxloop.cli.terminal import failure
from rxloop.errors import ConfigurationError
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Provider
from rxloop.providers import PRESETS, HTTPModel, openai_chat, resolve_model
from rxloop.tools.agent_tools import AnyTool
from rxloop.tools.think_aloud import Thoughts

_NAMELESS = "agent"
"""Default agent name."""


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Agent options of `rxloop run`, `chat` and `map`."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            envvar="RXLOOP_MODEL",
            metavar="MODEL",
            help="A model, such as zai:glm-4.7, openai:gpt-5 or ollama:qwen3.",
        ),
    ] = None
    base_url: Annotated[
        str | None,
        typer.Option("--base-url", metavar="URL", help="The endpoint of the model, without /chat/completions."),
    ] = None
    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tools", metavar="MODULE:OBJECT", help="A function, a tool, or a list of them; may be repeated."
        ),
    ] = None
    mcp: Annotated[
        list[str] | None,
        typer.Option(
            "--mcp", metavar="SERVER", help="An MCP server: a command, a URL or an mcp.json; may be repeated."
        ),
    ] = None
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            metavar="MODULE:AGENT",
            help="An agent of yours, or a function without parameters that makes one.",
        ),
    ] = None
    strategy: Strategy = None

    def flags(self) -> str:
        """Format the options for a follow-up command, excluding options stored in the log."""
        given = [
            ("--agent", self.agent),
            *(("--tools", reference) for reference in self.tools or ()),
            *(("--mcp", server) for server in self.mcp or ()),
            ("--base-url", self.base_url),
            ("--strategy", self.strategy),
        ]
        if self.base_url:
            given.append(("--model", self.model))
        return "".join(f" {name} {shlex.quote(value)}" for name, value in given if value)

    def make(self, *, recorded: str | None = None) -> Ready:
        """Create the agent.

        Args:
            recorded: Default model.

        Raises:
            ConfigurationError: An option is invalid, or options are incompatible.
        """
        if self.strategy is not None:
            # Report unknown names before asking questions.
            from rxloop.strategies.catalog import load_strategy

            if Path(self.strategy).suffix in (".json", ".yaml", ".yml"):
                raise ConfigurationError(
                    f"--strategy {self.strategy!r}: a file holds only stages, and nothing that runs them; "
                    "name a strategy (rxloop strategies lists them), or make an agent with one of your own for --agent"
                )
            load_strategy(self.strategy)
        if self.agent is not None:
            if self.tools or self.mcp:
                option = "--tools" if self.tools else "--mcp"
                raise ConfigurationError(f"{option} does not go with --agent: that agent has tools of its own")
            named = self.model is not None or self.base_url is not None
            model = self._provider(None) if named else None
            return Ready(load_agent(self.agent), model, model)
        model = self._provider(recorded)
        # Show thoughts, but hide the corresponding tool calls.
        thoughts = Thoughts(hidden=True)
        if not self.tools and not self.mcp:
            return Ready(Agent(model, thoughts=thoughts), None, model)
        tools, servers = self.load_tools(), self._servers()
        try:
            return Ready(Agent(model, tools=[*tools, *servers], thoughts=thoughts), None, model)
        except ConfigurationError as error:
            raise ConfigurationError(f"--tools {' '.join(self.tools or ())}: {error}") from error

    def load_tools(self) -> list[AnyTool]:
        """Load the tools specified by `--tools`."""
        tools: list[AnyTool] = []
        for reference in self.tools or ():
            found = load(reference, "--tools")
            tools += cast("Sequence[AnyTool]", found) if isinstance(found, list | tuple) else [found]
        return tools

    def _servers(self) -> list[AnyTool]:
        """Create the MCP servers specified by `--mcp`."""
        if not self.mcp:
            return []
        # Imported lazily because most agents do not use MCP.
        from rxloop.tools.mcp import mcp, mcp_config

        servers: list[AnyTool] = []
        for given in self.mcp:
            try:
                words = shlex.split(given)
            except ValueError as error:
                raise ConfigurationError(f"--mcp {given!r} is not a command: {error}") from error
            if given.endswith(".json") and Path(given).is_file():
                servers += mcp_config(given)
            elif words:
                servers.append(mcp(*words))
        return servers

    def _provider(self, recorded: str | None) -> Provider:
        model = self.model or recorded
        if self.base_url is not None:
            if model is None:
                raise ConfigurationError("--base-url needs the name of a model: add --model")
            prefix, colon, name = model.partition(":")
            if not colon or prefix not in PRESETS:
                return openai_chat(model.rpartition("#")[2], base_url=self.base_url)
            return _with_key(resolve_model(model if name else prefix, base_url=self.base_url))
        if model is None:
            keys = {
                key_variable(preset): name for name, preset in PRESETS.items() if preset.key() and preset.default_model
            }
            there = "".join(f" ({key} is set: --model {name})" for key, name in list(keys.items())[:1])
            raise ConfigurationError(f"no model is named: add --model zai:glm-4.7, or set RXLOOP_MODEL{there}")
        try:
            return _with_address(_with_key(resolve_model(model)))
        except ConfigurationError as error:
            if self.model is not None:
                raise
            raise ConfigurationError(f"the model of the run cannot be used here: {error}; add --model") from error


@dataclass(frozen=True, slots=True)
class RecordedAgentOptions(AgentOptions):
    """Agent options of `rxloop resume` and `rxloop fork`."""

    model: Annotated[
        str | None, typer.Option("--model", "-m", metavar="MODEL", help="A model other than the run's.")
    ] = None
    strategy: str | None = None
    """Always None. `rxloop resume` has a separate option."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Loaded agent with its models. Use `async with` to close it."""

    agent: Agent[Any, Any]
    model: Provider | None
    """Model override for the agent's runs."""
    made: Provider | None
    """Model created using command line options, to be closed with this object."""

    def logging_to(self, log: EventLog) -> Ready:
        """Return a copy with a different event log, so that later commands can find the runs."""
        return replace(self, agent=self.agent.with_log(log))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.agent.aclose()
        if self.made is not None:
            await self.made.aclose()


def load(reference: str, option: str) -> Any:
    """Import an object using a `module:object` path, with precedence for the current folder.

    Raises:
        ConfigurationError: The object cannot be imported.
    """
    place, colon, name = reference.partition(":")
    if not (colon and place and name):
        example = "weather:get_weather" if option == "--tools" else "weather:agent"
        raise ConfigurationError(f"{option} {reference!r}: write module:object, such as {example}")
    folder, module = Path.cwd(), place
    if place.endswith(".py"):
        folder, module = Path(place).absolute().parent, Path(place).stem
    # Keep the folder in `sys.path`, because tools may import modules when called.
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (module, module.partition(".")[0]):
            raise ConfigurationError(f"{option} {reference!r}: there is no module {module!r} in {folder}") from error
        raise ConfigurationError(f"{option} {reference!r}: {place} cannot be imported: {failure(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, dir(found), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ConfigurationError(f"{option} {reference!r}: {place} has no {part!r}{hint}")
        found = getattr(found, part)
    return found


def load_agent(reference: str) -> Agent[Any, Any]:
    """Import an agent using a `module:agent` path. The object can also be a function that creates the agent.

    Raises:
        ConfigurationError: The object is not an agent.
    """
    return agent_of(load(reference, "--agent"), reference, "--agent")


def agent_of(found: Any, reference: str, option: str) -> Agent[Any, Any]:
    """Convert an imported object to an agent. Functions are called.

    Raises:
        ConfigurationError: The object is neither an agent nor a factory.
    """
    found = made_of(found, reference, option)
    if not isinstance(found, Agent):
        raise ConfigurationError(
            f"{option} {reference!r} is {found!r}: it must be an Agent, or a function that gives one"
        )
    return cast("Agent[Any, Any]", found)


def made_of(found: Any, reference: str, option: str) -> Any:
    """Return an imported object, or its return value if it is a function.

    Raises:
        ConfigurationError: The function is async or failed.
    """
    if inspect.iscoroutinefunction(found):
        raise ConfigurationError(f"{option} {reference!r} is an async function: make the agent in one without async")
    if not callable(found) or isinstance(found, type):
        return found
    try:
        return found()
    except Exception as error:
        raise ConfigurationError(f"{option} {reference!r} did not give an agent: {failure(error)}") from error


def agents_of(found: Any, reference: str) -> Mapping[str, Agent[Any, Any]] | None:
    """Convert an imported object to a dict of agents by name. Returns None for other types."""
    if isinstance(found, Agent):
        agent = cast("Agent[Any, Any]", found)
        return {name_of(agent, reference): agent}
    if isinstance(found, Mapping) and found:
        agents = cast("Mapping[str, Any]", found)
        return agents if all(isinstance(each, Agent) for each in agents.values()) else None
    return None


def name_of(agent: Agent[Any, Any], reference: str) -> str:
    """Return the agent's name. For agents with the default name, this is the variable name."""
    return agent.name if agent.name != _NAMELESS else reference.rpartition(":")[2].rpartition(".")[2]


def _with_address(provider: Provider) -> Provider:
    """Return the provider after checking its endpoint.

    Raises:
        ConfigurationError: The URL is missing or invalid.
    """
    if isinstance(provider, HTTPModel) and provider.preset.name in PRESETS:
        provider.preset.url()
    return provider


def _with_key(provider: Provider) -> Provider:
    """Return the provider after checking for an API key, so that runs fail early.

    Raises:
        ConfigurationError: The key is missing.
    """
    if isinstance(provider, HTTPModel):
        preset = provider.preset
        if key_state(preset) == "not set":
            raise ConfigurationError(
                f"{provider.name} needs a key: {how_to_get_in(preset)}, or name another model with --model"
            )
    return provider
