"""Server for the official conformance suite, whose tools are agents. Prints its URL to stdout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, WithJsonSchema

from rxloop import Agent, MemoryEventLog, RunContext, Runtime, tool
from rxloop.errors import ServerError
from rxloop.pipeline.requests import ModelRequest
from rxloop.server import AgentTool, McpServer, mcp_server
from rxloop.testing import ScriptedModel, call
from support.api_server import serve_app


class Status(StrEnum):
    active = "active"
    inactive = "inactive"
    pending = "pending"


class Defaults(BaseModel):
    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Status = Status.active
    verified: bool = True


class User(BaseModel):
    username: str = Field(description="User's response")
    email: str = Field(description="User's email address")


class Name(BaseModel):
    name: str


class Color(BaseModel):
    color: str


class Ok(BaseModel):
    ok: bool


TITLED = [{"const": f"value{n}", "title": word} for n, word in enumerate(("one", "two", "three"), 1)]
LEGACY = {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["one", "two", "three"]}


class Enums(BaseModel):
    untitledSingle: Literal["option1", "option2", "option3"]  # noqa: N815
    titledSingle: Annotated[Any, WithJsonSchema({"type": "string", "oneOf": TITLED})]  # noqa: N815
    legacyEnum: Annotated[Any, WithJsonSchema(LEGACY)]  # noqa: N815
    untitledMulti: list[Literal["option1", "option2", "option3"]]  # noqa: N815
    titledMulti: Annotated[Any, WithJsonSchema({"type": "array", "items": {"anyOf": TITLED}})]  # noqa: N815


def make_questioner(*questions: tuple[str, type[Any]]) -> list[Any]:
    @tool(name="ask")
    async def ask(ctx: RunContext[Any]) -> str:
        """Ask."""
        return " ".join([str(await ctx.ask(prompt, answer)) for prompt, answer in questions])

    return [ask]


@tool
async def work(ctx: RunContext[Any]) -> str:
    """Work in steps."""
    for part in (0.0, 0.5, 1.0):
        ctx.progress("a part", part)
        await asyncio.sleep(0.15)
    return "worked"


def no_arguments() -> str:
    """Tool of the conformance suite."""
    return "Go."


def message(message: str) -> str:
    """Tool of the conformance suite."""
    return message


def in_header(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "here",
) -> str:
    """Tool of the conformance suite."""
    return region


def call_tool(name: str) -> Callable[[ModelRequest], Any]:
    """Create a model function that calls a tool once."""
    return lambda request: call(name) if request.messages[-1].role == "user" else "Done: state-ok."


ASKING = call_tool("ask")
AGENTS: dict[str, tuple[Any, list[Any], Callable[..., str]]] = {
    "test_simple_text": ("This is a simple text response for testing.", [], no_arguments),
    "test_error_handling": (ServerError("for testing"), [], no_arguments),
    "test_tool_with_progress": (call_tool("work"), [work], no_arguments),
    "test_elicitation": (ASKING, make_questioner(("Who are you?", User)), message),
    "test_elicitation_sep1034_defaults": (ASKING, make_questioner(("Who are you?", Defaults)), no_arguments),
    "test_elicitation_sep1330_enums": (ASKING, make_questioner(("Which?", Enums)), no_arguments),
    "test_streaming_elicitation": (ASKING, make_questioner(("What is your name?", Name)), no_arguments),
    "test_header": ("Hi.", [], in_header),
    "test_logging_tool": ("Hi.", [], no_arguments),
    "test_input_required_result_elicitation": (ASKING, make_questioner(("What is your name?", Name)), no_arguments),
    "test_input_required_result_request_state": (ASKING, make_questioner(("Please confirm", Ok)), no_arguments),
    "test_input_required_result_tampered_state": (ASKING, make_questioner(("Please confirm", Ok)), no_arguments),
    "test_input_required_result_multi_round": (
        ASKING,
        make_questioner(("Your name?", Name), ("Your color?", Color)),
        no_arguments,
    ),
    "test_input_required_result_capabilities": (ASKING, make_questioner(("Please confirm", Ok)), no_arguments),
}


def make_server() -> McpServer:
    """Create the server."""
    agents = {
        name: Agent(ScriptedModel(*[answer] * 50), tools=tools, thoughts=False, name=name)
        for name, (answer, tools, _) in AGENTS.items()
    }
    runtime = Runtime(agents, log=MemoryEventLog())
    return mcp_server(runtime, agents={name: AgentTool(prompt=prompt) for name, (_, _, prompt) in AGENTS.items()})


async def main() -> None:
    """Run the server until the process is terminated."""
    server = make_server()
    async with server.gateway.runtime, serve_app(server) as url:
        print(f"{url}/mcp", flush=True)
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main())
