"""The server that the official conformance suite asks: each of its tools is an agent. Says where it is on stdout."""

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


def asks(*questions: tuple[str, type[Any]]) -> list[Any]:
    """A tool that asks these questions, one after the other."""

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


def nothing() -> str:
    """A tool of the suite."""
    return "Go."


def message(message: str) -> str:
    """A tool of the suite."""
    return message


def in_header(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "here",
) -> str:
    """A tool of the suite."""
    return region


def calling(name: str) -> Callable[[ModelRequest], Any]:
    """A model that calls a tool, and then says that it is done."""
    return lambda request: call(name) if request.messages[-1].role == "user" else "Done: state-ok."


ASKING = calling("ask")
AGENTS: dict[str, tuple[Any, list[Any], Callable[..., str]]] = {
    "test_simple_text": ("This is a simple text response for testing.", [], nothing),
    "test_error_handling": (ServerError("for testing"), [], nothing),
    "test_tool_with_progress": (calling("work"), [work], nothing),
    "test_elicitation": (ASKING, asks(("Who are you?", User)), message),
    "test_elicitation_sep1034_defaults": (ASKING, asks(("Who are you?", Defaults)), nothing),
    "test_elicitation_sep1330_enums": (ASKING, asks(("Which?", Enums)), nothing),
    "test_streaming_elicitation": (ASKING, asks(("What is your name?", Name)), nothing),
    "test_header": ("Hi.", [], in_header),
    "test_logging_tool": ("Hi.", [], nothing),
    "test_input_required_result_elicitation": (ASKING, asks(("What is your name?", Name)), nothing),
    "test_input_required_result_request_state": (ASKING, asks(("Please confirm", Ok)), nothing),
    "test_input_required_result_tampered_state": (ASKING, asks(("Please confirm", Ok)), nothing),
    "test_input_required_result_multi_round": (ASKING, asks(("Your name?", Name), ("Your color?", Color)), nothing),
    "test_input_required_result_capabilities": (ASKING, asks(("Please confirm", Ok)), nothing),
}


def server() -> McpServer:
    """The server, not yet served."""
    agents = {
        name: Agent(ScriptedModel(*[turn] * 50), tools=tools, thoughts=False, name=name)
        for name, (turn, tools, _) in AGENTS.items()
    }
    runtime = Runtime(agents, log=MemoryEventLog())
    return mcp_server(runtime, agents={name: AgentTool(prompt=prompt) for name, (_, _, prompt) in AGENTS.items()})


async def main() -> None:
    """Serve until somebody ends the process."""
    door = server()
    async with door.gateway.runtime, serve_app(door) as url:
        print(f"{url}/mcp", flush=True)
        await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main())
