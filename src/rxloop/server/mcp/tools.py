"""Agents exposed as MCP tools."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import mcp_types as types
from pydantic import Field

from rxloop.agents.agent import Agent
from rxloop.errors import ConfigurationError
from rxloop.protocol.ids import Id
from rxloop.protocol.messages import Prompt
from rxloop.support.threads import call_user_function
from rxloop.tools.output import is_object
from rxloop.tools.signature import Parameters

CONTINUE = "continue_run"
"""Name of the tool for continuing a run."""
CONTEXT = "context_id"
"""Name of the conversation argument."""
RESULT = "result"
"""Field for non-object answers, because structured content must be an object."""
UNFINISHED_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "The run is not finished. Call continue_run.",
    "properties": {
        "state": {"type": "string", "enum": ["working", "input-required", "auth-required"]},
        "taskId": {"type": "string"},
        "contextId": {"type": "string"},
        "questions": {"type": "array", "items": {"type": "object"}},
        "next": {"type": "string"},
    },
    "required": ["state", "taskId", "contextId", "next"],
}
"""Schema of the structured content for an unfinished run."""
FAILED_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "The call failed.",
    "properties": {
        "state": {"type": "string", "enum": ["failed", "canceled"]},
        "taskId": {"type": "string"},
        "contextId": {"type": "string"},
        "error": {"type": "object", "properties": {"code": {"type": "string"}, "message": {"type": "string"}}},
        "content": {"type": "string"},
        "value": {},
    },
    "required": ["state"],
}
"""Schema of the structured content for a failed call. Some clients validate errors against the output schema."""
_NO_CONTEXT: Any = None
"""Placeholder for a missing run context."""

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]+")


@dataclass(frozen=True, slots=True)
class AgentTool:
    """Settings for exposing an agent as a tool.

    Attributes:
        description: Purpose of the tool, for the client's model. Defaults to a generic description.
        prompt: Sync or async function that creates the prompt. Its parameters become the tool's arguments, described by
            its docstring. By default, the tool has a single `prompt` argument.
        title: Display name.
        annotations: Hints about effects of the tool, such as `{"readOnlyHint": True}`.
    """

    description: str | None = None
    prompt: Callable[..., Any] | None = None
    title: str | None = None
    annotations: Mapping[str, Any] | None = None


AgentSelection = Sequence[str] | Mapping[str, str | AgentTool] | None
"""Agents to expose, as names or as a mapping to descriptions or `AgentTool` instances. None selects all agents."""


def _prompt(
    prompt: Annotated[
        str,
        Field(
            min_length=1,
            max_length=100_000,
            description="The complete task. The agent cannot see this conversation.",
        ),
    ],
) -> str:
    return prompt


def _context(
    context_id: Annotated[
        Id | None, Field(description="ID of the conversation to continue, from an earlier answer.")
    ] = None,
) -> None: ...


def _continue(
    task_id: Annotated[Id, Field(description="Run id from an earlier result.")],
    answers: Annotated[
        dict[str, Any] | None, Field(description="Answers to the questions of the run, by input_id.", max_length=64)
    ] = None,
) -> None: ...


_CONTINUE = Parameters(_continue, CONTINUE)


class ExposedAgent:
    """Agent exposed as a tool."""

    def __init__(self, name: str, agent: Agent[Any, Any], settings: AgentTool) -> None:
        """Create the tool definition of an agent.

        Raises:
            ConfigurationError: If the parameters of the prompt function are not supported.
        """
        self.agent_name, self._agent = name, agent
        self._function = settings.prompt or _prompt
        tool_name = _NOT_IN_A_NAME.sub("_", name)[:64]
        self._parameters = Parameters(self._function, tool_name)
        self._context = Parameters(_context, tool_name)
        if CONTEXT in self._parameters.schema.get("properties", {}):
            raise ConfigurationError(f"agent {name!r}: prompt= must not have a parameter {CONTEXT}, which is reserved")
        answer = agent.definition.output_schema
        self._is_wrapped = answer is not None and not is_object(answer)
        default_description = f"Give a task to the agent {name}, and return its answer."
        description = settings.description or self._parameters.description or default_description
        self.tool = types.Tool(
            name=tool_name,
            title=settings.title,
            description=inspect.cleandoc(description),
            input_schema=_merge_properties(self._parameters.schema, self._context.schema),
            output_schema=None if answer is None else _make_output_schema(answer),
            annotations=None
            if settings.annotations is None
            else types.ToolAnnotations.model_validate(settings.annotations),
        )

    async def make_prompt(self, arguments: Mapping[str, Any]) -> tuple[Prompt, str | None]:
        """Create the prompt from call arguments and return it with the conversation id.

        Raises:
            ToolError: If the arguments are invalid.
        """
        own = {name: value for name, value in arguments.items() if name != CONTEXT}
        positional, keyword = self._parameters.bind(own, _NO_CONTEXT)
        context = _bind(self._context, {name: arguments[name] for name in arguments if name == CONTEXT})[CONTEXT]
        return await call_user_function(partial(self._function, *positional, **keyword)), context

    def to_structured_content(self, content: str) -> Any:
        """Convert an answer to structured content, or return None for a text answer.

        Raises:
            ValueError: If the answer does not match the agent's output type.
        """
        if self.tool.output_schema is None:
            return None
        value = self._agent.definition.output_json(content)
        return {RESULT: value} if self._is_wrapped else value


def make_agent_tools(agents: Mapping[str, Agent[Any, Any]], selection: AgentSelection) -> dict[str, ExposedAgent]:
    """Create agent tools by tool name.

    Raises:
        ConfigurationError: If an agent does not exist, no agent is selected, or two tools have the same name.
    """
    settings_by_name = dict.fromkeys(agents if selection is None else selection)
    if isinstance(selection, Mapping):
        settings_by_name = dict(selection)
    exposed: dict[str, ExposedAgent] = {}
    for name, option in settings_by_name.items():
        if name not in agents:
            raise ConfigurationError(f"unknown agent {name!r}; the runtime has {', '.join(agents)}")
        settings = option if isinstance(option, AgentTool) else AgentTool(description=option)
        agent = ExposedAgent(name, agents[name], settings)
        if agent.tool.name in (*exposed, CONTINUE):
            raise ConfigurationError(f"agent {name!r} duplicates the tool name {agent.tool.name!r}; rename the agent")
        exposed[agent.tool.name] = agent
    if not exposed and selection is not None:
        raise ConfigurationError("agents= must not be empty; omit it to expose all agents of the runtime")
    return exposed


def make_continue_tool() -> types.Tool:
    """Return the definition of the `continue_run` tool."""
    return types.Tool(
        name=CONTINUE,
        description=(
            "Continue an agent run that waits for an answer or is still running, according to its last result. Ask the "
            "person for the answers. Never invent them."
        ),
        input_schema=_CONTINUE.schema,
    )


def parse_continue_arguments(arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Parse `continue_run` arguments into a run id and answers.

    Raises:
        ToolError: If the arguments are invalid.
    """
    values = _bind(_CONTINUE, arguments)
    return values["task_id"], values["answers"] or {}


def _bind(parameters: Parameters, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return parameters.bind(arguments, _NO_CONTEXT)[1]


def _merge_properties(schema: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {**schema, "properties": {**schema.get("properties", {}), **other["properties"]}}


def _make_output_schema(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the output schema of a tool, which includes unfinished and failed runs."""
    inner = {key: value for key, value in answer.items() if key != "$defs"}
    if not is_object(answer):
        inner = {"type": "object", "properties": {RESULT: inner}, "required": [RESULT]}
    shared = {"$defs": answer["$defs"]} if "$defs" in answer else {}
    return {"type": "object", "anyOf": [inner, UNFINISHED_SCHEMA, FAILED_SCHEMA], **shared}
