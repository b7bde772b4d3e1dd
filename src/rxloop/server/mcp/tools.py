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
NOT_OVER: dict[str, Any] = {
    "type": "object",
    "description": "The run is not over: call continue_run.",
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
FAILED: dict[str, Any] = {
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
_NOWHERE: Any = None
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


Chosen = Sequence[str] | Mapping[str, str | AgentTool] | None
"""Agents to expose, as names or as a mapping to descriptions or `AgentTool` instances. None selects all agents."""


def _prompt(
    prompt: Annotated[
        str,
        Field(
            min_length=1,
            max_length=100_000,
            description="The whole task: the agent knows nothing else of this conversation.",
        ),
    ],
) -> str:
    return prompt


def _context(
    context_id: Annotated[
        Id | None, Field(description="A conversation with the agent to go on with, as an earlier answer names it.")
    ] = None,
) -> None: ...


def _continue(
    task_id: Annotated[Id, Field(description="The run, as an earlier result names it.")],
    answers: Annotated[
        dict[str, Any] | None, Field(description="The answers to its questions, by their input_id.", max_length=64)
    ] = None,
) -> None: ...


_CONTINUE = Parameters(_continue, CONTINUE)


class Offered:
    """Agent exposed as a tool."""

    def __init__(self, name: str, agent: Agent[Any, Any], how: AgentTool) -> None:
        """Create the tool definition of an agent.

        Raises:
            ConfigurationError: If the parameters of the prompt function are not supported.
        """
        self.agent_name, self._agent = name, agent
        self._function = how.prompt or _prompt
        tool_name = _NOT_IN_A_NAME.sub("_", name)[:64]
        self._parameters = Parameters(self._function, tool_name)
        self._context = Parameters(_context, tool_name)
        if CONTEXT in self._parameters.schema.get("properties", {}):
            raise ConfigurationError(f"agent {name!r}: prompt= has a parameter {CONTEXT}, which every tool has anyway")
        answer = agent.definition.output_schema
        self._wrapped = answer is not None and not is_object(answer)
        usual = f"Hands a task to the agent {name}, and gives its answer."
        description = how.description or self._parameters.description or usual
        self.tool = types.Tool(
            name=tool_name,
            title=how.title,
            description=inspect.cleandoc(description),
            input_schema=_together(self._parameters.schema, self._context.schema),
            output_schema=None if answer is None else _output_schema(answer),
            annotations=None if how.annotations is None else types.ToolAnnotations.model_validate(how.annotations),
        )

    async def prompt(self, arguments: Mapping[str, Any]) -> tuple[Prompt, str | None]:
        """Create the prompt from call arguments and return it with the conversation id.

        Raises:
            ToolError: If the arguments are invalid.
        """
        own = {name: value for name, value in arguments.items() if name != CONTEXT}
        positional, keyword = self._parameters.bind(own, _NOWHERE)
        context = _bound(self._context, {name: arguments[name] for name in arguments if name == CONTEXT})[CONTEXT]
        return await call_user_function(partial(self._function, *positional, **keyword)), context

    def structured(self, content: str) -> Any:
        """Convert an answer to structured content, or return None for a text answer.

        Raises:
            ValueError: If the answer does not match the agent's output type.
        """
        if self.tool.output_schema is None:
            return None
        value = self._agent.definition.output_json(content)
        return {RESULT: value} if self._wrapped else value


def offered(agents: Mapping[str, Agent[Any, Any]], chosen: Chosen) -> dict[str, Offered]:
    """Create agent tools by tool name.

    Raises:
        ConfigurationError: If an agent does not exist, no agent is selected, or two tools have the same name.
    """
    wanted = dict.fromkeys(agents if chosen is None else chosen)
    if isinstance(chosen, Mapping):
        wanted = dict(chosen)
    found: dict[str, Offered] = {}
    for name, how in wanted.items():
        if name not in agents:
            raise ConfigurationError(f"there is no agent {name!r}: the runtime has {', '.join(agents)}")
        made = Offered(name, agents[name], how if isinstance(how, AgentTool) else AgentTool(description=how))
        if made.tool.name in (*found, CONTINUE):
            raise ConfigurationError(f"the agent {name!r} would be one more tool {made.tool.name!r}: rename it")
        found[made.tool.name] = made
    if not found and chosen is not None:
        raise ConfigurationError("agents= names none: leave it out for all agents of the runtime")
    return found


def continuing() -> types.Tool:
    """Return the definition of the `continue_run` tool."""
    return types.Tool(
        name=CONTINUE,
        description=(
            "Goes on with a run of an agent whose result said that it waits for an answer, or that it was not over "
            "yet. Ask the person for the answers; never make them up."
        ),
        input_schema=_CONTINUE.schema,
    )


def to_continue(arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Parse `continue_run` arguments into a run id and answers.

    Raises:
        ToolError: If the arguments are invalid.
    """
    given = _bound(_CONTINUE, arguments)
    return given["task_id"], given["answers"] or {}


def _bound(parameters: Parameters, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return parameters.bind(arguments, _NOWHERE)[1]


def _together(own: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return {**own, "properties": {**own.get("properties", {}), **more["properties"]}}


def _output_schema(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the output schema of a tool, which includes unfinished and failed runs."""
    inner = {key: value for key, value in answer.items() if key != "$defs"}
    if not is_object(answer):
        inner = {"type": "object", "properties": {RESULT: inner}, "required": [RESULT]}
    shared = {"$defs": answer["$defs"]} if "$defs" in answer else {}
    return {"type": "object", "anyOf": [inner, NOT_OVER, FAILED], **shared}
