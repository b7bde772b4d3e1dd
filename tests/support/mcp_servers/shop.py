"""MCP server built with the SDK for the latest protocol. As a program, it uses stdio.

It appends its effects to the file named by SHOP_EFFECTS, so that they remain visible after a crash.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import anyio
import mcp_types as types
from mcp.server.mcpserver import Context, Elicit, ListRoots, MCPServer, RequestStateSecurity, Resolve, Sample
from pydantic import BaseModel

EFFECTS = os.environ.get("SHOP_EFFECTS")


def effect(text: str) -> None:
    if EFFECTS is not None:
        with Path(EFFECTS).open("a") as file:
            file.write(f"{text}\n")


class Date(BaseModel):
    day: int
    month: str = "May"


class Sure(BaseModel):
    sure: bool


def which_day(city: str) -> Elicit[Date]:
    return Elicit(f"Which day for {city}?", Date)


def sure(city: str, date: Annotated[Date, Resolve(which_day)]) -> Elicit[Sure]:
    return Elicit(f"{city} on {date.day} {date.month}: sure?", Sure)


def poem() -> Sample:
    said = types.SamplingMessage(role="user", content=types.TextContent(type="text", text="A poem, please."))
    return Sample([said], max_tokens=50, system_prompt="You rhyme.")


def roots() -> ListRoots:
    return ListRoots()


# A fixed key allows the next process to read existing request states.
shop: MCPServer[Any] = MCPServer("shop", request_state_security=RequestStateSecurity(keys=["k" * 32]))


@shop.tool()
def book(city: str, date: Annotated[Date, Resolve(which_day)], certain: Annotated[Sure, Resolve(sure)]) -> str:
    """Books a journey."""
    effect(f"booked {city}")
    return f"{city} on {date.day} {date.month}: {'booked' if certain.sure else 'not booked'}"


@shop.tool()
def rhyme(made: Annotated[types.CreateMessageResult, Resolve(poem)]) -> str:
    """Has a poem made."""
    return made.content.text if isinstance(made.content, types.TextContent) else "?"


@shop.tool()
def display() -> list[types.ContentBlock]:
    """Shows a picture, a sound, a file, and what cannot be shown."""
    files = [("file:///menu.pdf", "application/pdf", "JVBERg=="), ("file:///a", None, "AAAA")]
    return [
        types.TextContent(type="text", text="Our window:"),
        types.ImageContent(type="image", data="iVBORw0=", mime_type="image/png"),
        types.AudioContent(type="audio", data="UklGRg==", mime_type="audio/wav"),
        *(
            types.EmbeddedResource(
                type="resource", resource=types.BlobResourceContents(uri=uri, mime_type=media_type, blob=blob)
            )
            for uri, media_type, blob in files
        ),
        types.ImageContent(type="image", data="not base64", mime_type="image/png"),
        types.ImageContent(type="image", data="iVBORw0=", mime_type="image/png\r\nx: y"),
        types.ImageContent(type="image", data="A" * 40, mime_type="image/png"),
    ]


@shop.tool()
def folders(known: Annotated[types.ListRootsResult, Resolve(roots)]) -> list[str]:
    """Says which folders it knows."""
    return [str(root.uri) for root in known.roots]


@shop.tool()
async def sign_in(ctx: Context[Any, Any]) -> types.InputRequiredResult | str:
    """Wants the person at a page."""
    answers = ctx.input_responses or {}
    answer = answers.get("page")
    if answer is None:
        page = types.ElicitRequestURLParams(message="Sign in.", url="https://shop.example/in", elicitation_id="1")
        return types.InputRequiredResult(input_requests={"page": types.ElicitRequest(params=page)}, request_state="s")
    return f"page: {getattr(answer, 'action', '?')}"


@shop.tool()
async def wait(ctx: Context[Any, Any]) -> None:
    """Works until it is stopped."""
    effect("begun")
    await ctx.report_progress(1, 4, "begun")
    try:
        await anyio.sleep_forever()
    finally:
        effect("stopped")


@shop.tool(annotations=types.ToolAnnotations(read_only_hint=True))
def die(once: str) -> str:
    """Ends the process, the first time."""
    effect("died")
    if Path(once).exists():
        return "alive"
    Path(once).touch()
    os._exit(9)


@shop.tool(annotations=types.ToolAnnotations(destructive_hint=False))
def pay(once: str) -> str:
    """Ends the process in its middle, the first time."""
    effect("paid")
    if Path(once).exists():
        return "paid"
    Path(once).touch()
    os._exit(9)


@shop.tool()
async def grow(ctx: Context[Any, Any], name: str) -> str:
    """Gets one more tool, and says so many times."""

    def grown() -> str:
        return f"{name} has grown"

    shop.add_tool(grown, name=name)
    for _ in range(20):
        await ctx.notify_tools_changed()
    # Notifications use another channel, so wait until they have arrived.
    await anyio.sleep(0.1)
    return "grown"


@shop.tool()
def echo(text: str) -> str:
    """Says it again."""
    return text


if __name__ == "__main__":
    sys.stderr.write("the shop is open\n")
    shop.run()
