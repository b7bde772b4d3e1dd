"""Agent configuration from command line options."""

from __future__ import annotations

import importlib
import inspect
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Self, cast

import typer

from rxloop._names import find_nearest
from rxloop.agents.agent import Agent
from rxloop.cli.model_access import OFFLINE, describe_key_setup, get_key_state, get_key_variable, make_offline_model
from rxloop.cli.options import Strategy, decode
from rxloop.cli.stored_keys import find_stored_key
from rxloop.cli.suggestions import suggest_models
from rxloop.cli.terminal import format_error
from rxloop.errors import ConfigurationError
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.interfaces import Provider
from rxloop.providers import PRESETS, HTTPModel, openai_chat, resolve_model
from rxloop.support.misuse import check_type
from rxloop.tools.agent_tools import AnyTool
from rxloop.tools.think_aloud import Thoughts

_DEFAULT_NAME = "agent"
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
            help="Model, for example zai:glm-4.7, openai:gpt-5 or ollama:qwen3.",
            autocompletion=suggest_models,
        ),
    ] = None
    base_url: Annotated[
        str | None, typer.Option("--base-url", metavar="URL", help="Base URL of the model, without /chat/completions.")
    ] = None
    tools: Annotated[
        list[str] | None,
        typer.Option("--tools", metavar="MODULE:OBJECT", help="Function, tool, or list of tools. Can be repeated."),
    ] = None
    mcp: Annotated[
        list[str] | None,
        typer.Option("--mcp", metavar="SERVER", help="MCP server as a command, URL or mcp.json file. Can be repeated."),
    ] = None
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="MODULE:AGENT", help="Agent or factory function without parameters."),
    ] = None
    strategy: Strategy = None
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT|@FILE", help="Instructions for the model.")
    ] = None
    schema: Annotated[
        str | None,
        typer.Option(
            "--schema",
            metavar="SCHEMA",
            help="Answer with JSON: a JSON Schema, its file, or fields such as 'name, age int, tags str[]'.",
        ),
    ] = None

    def to_flags(self) -> str:
        """Format the options for a follow-up command, excluding options stored in the log."""
        options = [
            ("--agent", self.agent),
            *(("--tools", reference) for reference in self.tools or ()),
            *(("--mcp", server) for server in self.mcp or ()),
            ("--base-url", self.base_url),
            ("--strategy", self.strategy),
            ("--system", self.system),
            ("--schema", self.schema),
            ("--model", self.model if self.base_url or self.model == OFFLINE else None),
        ]
        return "".join(f" {name} {shlex.quote(value)}" for name, value in options if value)

    def make(self, *, recorded: str | None = None, thinks_aloud: bool = True) -> LoadedAgent:
        """Create the agent.

        Args:
            recorded: Default model.
            thinks_aloud: Whether an agent without a strategy receives the tool for thoughts.

        Raises:
            ConfigurationError: An option is invalid, or options are incompatible.
        """
        if self.strategy is not None:
            # Report unknown names before asking questions.
            from rxloop.strategies.catalog import load_strategy

            if Path(self.strategy).suffix in (".json", ".yaml", ".yml"):
                raise ConfigurationError(
                    f"--strategy must be the name of a strategy, got the file {self.strategy!r}. Files contain only "
                    "stages. List the names with rxloop strategies, or use --agent with an agent that has your strategy"
                )
            load_strategy(self.strategy)
        if self.agent is not None:
            self._check_agent_options()
            has_model = self.model is not None or self.base_url is not None
            model = self._make_provider(None) if has_model else None
            return LoadedAgent(load_agent(self.agent), model, model)
        model = self._make_provider(recorded)
        # Show thoughts, but hide the corresponding tool calls. Strategies require thoughts.
        thoughts = Thoughts(hidden=True) if thinks_aloud or self.strategy is not None else False
        instructions = "" if self.system is None else _read_instructions(self.system)
        output_type = self._make_output_type()
        tools = [*self.load_tools(), *self._make_servers()]
        try:
            agent = Agent(model, tools=tools, instructions=instructions, output_type=output_type, thoughts=thoughts)
            return LoadedAgent(agent, None, model)
        except ConfigurationError as error:
            if not self.tools:
                raise
            raise ConfigurationError(f"--tools {' '.join(self.tools)}: {error}") from error

    def _check_agent_options(self) -> None:
        """Reject options that conflict with an existing agent.

        Raises:
            ConfigurationError: An option is set.
        """
        options: dict[str, tuple[object, str]] = {
            "--tools": (self.tools, "its own tools"),
            "--mcp": (self.mcp, "its own tools"),
            "--system": (self.system, "its own instructions"),
            "--schema": (self.schema, "its own output_type"),
        }
        for option, (value, part) in options.items():
            if value:
                raise ConfigurationError(f"{option} cannot be used with --agent, because the agent has {part}")

    def _make_output_type(self) -> type[Any]:
        if self.schema is None:
            return str
        # Imported lazily because most answers are text.
        from rxloop.cli.arguments.schemas import load_schema, make_output_type

        return make_output_type(load_schema(decode(self.schema)))

    def load_tools(self) -> list[AnyTool]:
        """Load the tools specified by `--tools`."""
        tools: list[AnyTool] = []
        for reference in self.tools or ():
            value = load(reference, "--tools")
            tools += cast("Sequence[AnyTool]", value) if isinstance(value, list | tuple) else [value]
        return tools

    def _make_servers(self) -> list[AnyTool]:
        """Create the MCP servers specified by `--mcp`."""
        if not self.mcp:
            return []
        # Imported lazily because most agents do not use MCP.
        from rxloop.tools.mcp import mcp, mcp_config

        servers: list[AnyTool] = []
        for server in self.mcp:
            try:
                arguments = shlex.split(server)
            except ValueError as error:
                raise ConfigurationError(f"--mcp: cannot parse the command {server!r}: {error}") from error
            if server.endswith(".json") and Path(server).is_file():
                servers += mcp_config(server)
            elif arguments:
                servers.append(mcp(*arguments))
        return servers

    def _make_provider(self, recorded: str | None) -> Provider:
        model = self.model or recorded
        if model == OFFLINE and self.base_url is None:
            return make_offline_model()
        if self.base_url is not None:
            if model is None:
                raise ConfigurationError("--base-url requires a model; add --model")
            prefix, colon, name = model.partition(":")
            if not colon or prefix not in PRESETS:
                return _add_stored_key(partial(openai_chat, model.rpartition("#")[2], base_url=self.base_url))
            vendor_model = model if name else prefix
            return _check_key(_add_stored_key(partial(resolve_model, vendor_model, base_url=self.base_url)))
        if model is None:
            keys = {
                get_key_variable(preset): name
                for name, preset in PRESETS.items()
                if preset.key() and preset.default_model
            }
            hint = "".join(f" ({key} is set: --model {name})" for key, name in list(keys.items())[:1])
            raise ConfigurationError(f"no model selected; add --model zai:glm-4.7 or {OFFLINE}, or RXLOOP_MODEL{hint}")
        try:
            return _check_endpoint(_check_key(_add_stored_key(partial(resolve_model, model))))
        except ConfigurationError as error:
            if self.model is not None:
                raise
            raise ConfigurationError(
                f"cannot use the recorded model: {error}; add --model, or --agent for a model defined in a file"
            ) from error


@dataclass(frozen=True, slots=True)
class RecordedAgentOptions(AgentOptions):
    """Agent options of `rxloop resume` and `rxloop fork`."""

    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            metavar="MODEL",
            help="Replacement for the model of the run.",
            autocompletion=suggest_models,
        ),
    ] = None
    strategy: None = None
    """Always None. `rxloop resume` has a separate option."""


@dataclass(frozen=True, slots=True)
class LoadedAgent:
    """Agent with its models. Use `async with` to close them."""

    agent: Agent[Any, Any]
    model: Provider | None
    """Model override for the agent's runs."""
    owned_model: Provider | None
    """Model created using command line options, to be closed with this object."""

    def with_log(self, log: EventLog) -> LoadedAgent:
        """Return a copy with a different event log, so that later commands can find the runs."""
        return replace(self, agent=self.agent.with_log(log))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.agent.aclose()
        if self.owned_model is not None:
            await self.owned_model.aclose()


def _read_instructions(text: str) -> str:
    """Parse instructions passed as text or `@FILE`.

    Raises:
        ConfigurationError: Instructions are unreadable or empty.
    """
    text = decode(text)
    if text.startswith("@"):
        path = Path(text[1:]).expanduser()
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise ConfigurationError(
                f"--system: cannot read {str(path)!r}: {reason}; pass @FILE, or the text itself without @"
            ) from error
    if not text.strip():
        raise ConfigurationError("--system must not be empty; omit it to send no instructions")
    return text


def load(reference: str, option: str) -> Any:
    """Import an object using a `module:object` path, with precedence for the current folder.

    Raises:
        ConfigurationError: The object cannot be imported.
    """
    path, colon, name = reference.partition(":")
    if not (colon and path and name):
        example = "weather:get_weather" if option == "--tools" else "weather:agent"
        raise ConfigurationError(
            f"invalid import path {reference!r} for {option}, expected module:object, for example {example}"
        )
    folder, module = Path.cwd(), path
    if path.endswith(".py"):
        folder, module = Path(path).absolute().parent, Path(path).stem
    # Keep the folder in `sys.path`, because tools may import modules when called.
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        value: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (module, module.partition(".")[0]):
            raise ConfigurationError(f"{option} {reference!r}: no module {module!r} in {folder}") from error
        raise ConfigurationError(f"{option} {reference!r}: cannot import {path}: {format_error(error)}") from error
    for part in name.split("."):
        if not hasattr(value, part):
            nearest = find_nearest(part, dir(value))
            hint = "" if nearest is None else f"; did you mean {nearest!r}?"
            raise ConfigurationError(f"{option} {reference!r}: missing attribute {part!r} in {path}{hint}")
        value = getattr(value, part)
    return value


def load_agent(reference: str) -> Agent[Any, Any]:
    """Import an agent using a `module:agent` path. Functions are called to create agents.

    Raises:
        ConfigurationError: The object has a different type.
    """
    return to_agent(load(reference, "--agent"), reference, "--agent")


def to_agent(value: Any, reference: str, option: str) -> Agent[Any, Any]:
    """Convert an imported object to an agent by calling factory functions.

    Raises:
        ConfigurationError: The object is neither an agent nor a factory.
    """
    if hasattr(value, "definition") and hasattr(value, "call"):
        raise ConfigurationError(f"{option} {reference!r} is a tool; use --tools {reference} with --model")
    value = call_factory(value, reference, option)
    check_type(f"{option} {reference!r}", value, Agent, "an Agent or a function that returns one")
    return cast("Agent[Any, Any]", value)


def call_factory(value: Any, reference: str, option: str) -> Any:
    """Return an imported object, or its return value if it is a function.

    Raises:
        ConfigurationError: The function is async or failed.
    """
    if inspect.iscoroutinefunction(value):
        raise ConfigurationError(f"{option} {reference!r} must be a synchronous function, got an async function")
    if not callable(value) or isinstance(value, type):
        return value
    try:
        return value()
    except Exception as error:
        raise ConfigurationError(f"{option} {reference!r} did not create an agent: {format_error(error)}") from error


def to_agents(value: Any, reference: str) -> Mapping[str, Agent[Any, Any]] | None:
    """Convert an imported object to a dict of agents by name. Returns None for other types."""
    if isinstance(value, Agent):
        agent = cast("Agent[Any, Any]", value)
        return {get_agent_name(agent, reference): agent}
    if isinstance(value, Mapping) and value:
        agents = cast("Mapping[str, Any]", value)
        return agents if all(isinstance(each, Agent) for each in agents.values()) else None
    return None


def get_agent_name(agent: Agent[Any, Any], reference: str) -> str:
    """Return the agent's name. For agents with the default name, this is the variable name."""
    return agent.name if agent.name != _DEFAULT_NAME else reference.rpartition(":")[2].rpartition(".")[2]


def _check_endpoint(provider: Provider) -> Provider:
    """Return the provider after checking its endpoint.

    Raises:
        ConfigurationError: The URL is missing or invalid.
    """
    if isinstance(provider, HTTPModel) and provider.preset.name in PRESETS:
        provider.preset.url()
    return provider


def _add_stored_key(make: Callable[..., Provider]) -> Provider:
    """Create a provider, using a stored key unless the environment contains one.

    Raises:
        ConfigurationError: Stored keys are invalid.
    """
    provider = make()
    key = find_stored_key(provider.preset) if isinstance(provider, HTTPModel) else None
    return provider if key is None else make(api_key=key)


def _check_key(provider: Provider) -> Provider:
    """Return the provider after checking for an API key, so that runs fail early.

    Raises:
        ConfigurationError: The key is missing.
    """
    if isinstance(provider, HTTPModel):
        preset = provider.preset
        if get_key_state(preset) == "not set":
            raise ConfigurationError(
                f"missing key for {provider.name}: {describe_key_setup(preset)}, or select another model with --model"
            )
    return provider
