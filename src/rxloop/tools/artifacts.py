"""Tools that read and write artifacts, and long results kept as artifacts."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable
from typing import Annotated, Any, TypeVar

from pydantic import Field

from rxloop.errors import ArtifactError, ToolError
from rxloop.pipeline.host import get_host
from rxloop.pipeline.run_context import RunContext
from rxloop.pipeline.time_limits import limit_time
from rxloop.tools.function import FunctionTool, tool
from rxloop.tools.result import text_of

T = TypeVar("T")

READ_ARTIFACT = "read_artifact"

MOST_READ = 50_000
"""Bytes that one call reads."""

_LISTED = 200

_Id = Annotated[str, Field(description="The name of the file, such as report.md.")]


@tool(idempotent=True)
async def create_artifact(
    ctx: RunContext[Any],
    artifact_id: _Id,
    content: Annotated[str, Field(description="What it begins with; append the rest.")] = "",
    media_type: Annotated[str, Field(description="Such as text/markdown.")] = "text/plain",
    override: Annotated[bool, Field(description="Begin it anew if it is there; the old version is kept.")] = False,
    last: Annotated[bool, Field(description="It is complete: nothing will be appended.")] = False,
) -> str:
    """Creates a file that the user gets, such as a report, a table or a program.

    Write a long file in parts of a few thousand words: create it with the first one, and append the others.
    """
    draft = await _or_told(ctx.artifacts.create(artifact_id, media_type=media_type, override=override))
    await _or_told(draft.append(content, last=last))
    return f"Created {draft.artifact_id}, version {draft.version}, {len(content.encode())} bytes."


@tool(idempotent=True)
async def append_to_artifact(
    ctx: RunContext[Any],
    artifact_id: _Id,
    content: Annotated[str, Field(description="What is appended, word for word: begin with a line end if needed.")],
    last: Annotated[bool, Field(description="It is complete: nothing else will be appended.")] = False,
) -> str:
    """Appends to a file that was created before."""
    await _or_told(ctx.artifacts.append(artifact_id, content, last=last))
    record = await _or_told(ctx.artifacts.record(artifact_id))
    return f"Appended; {record.artifact_id} has {record.size} bytes now{' and is complete' if last else ''}."


@tool(name=READ_ARTIFACT, idempotent=True, read_only=True, max_result=None)
async def read_artifact(
    ctx: RunContext[Any],
    artifact_id: _Id,
    offset: Annotated[int, Field(description="The first byte to read.", ge=0)] = 0,
    limit: Annotated[int, Field(description="How many bytes to read at most.", ge=1, le=MOST_READ)] = 20_000,
    version: Annotated[int | None, Field(description="An older version than the newest.")] = None,
) -> str:
    """Reads a file of this conversation, or a part of it."""
    record = await _or_told(ctx.artifacts.record(artifact_id, version=version))
    data = await _or_told(ctx.artifacts.read(artifact_id, offset=offset, limit=limit, version=record.version))
    text = text_of(data, first=offset == 0, whole=offset + len(data) >= record.size)
    if text is None:
        raise ToolError(f"{record.artifact_id} is not text but {record.media_type}, of {record.size} bytes.")
    begin, shown = text
    start = offset + begin
    end = start + len(shown.encode())
    if start == 0 and end >= record.size:
        return shown
    more = f"; read on with offset={end}" if end < record.size else ""
    return f"[bytes {start} to {end} of {record.size} of {record.artifact_id}{more}]\n{shown}"


@tool(idempotent=True, read_only=True)
async def list_artifacts(ctx: RunContext[Any]) -> list[dict[str, Any]]:
    """Lists the files of this conversation."""
    found = await _or_told(ctx.artifacts.list())
    listed: list[dict[str, Any]] = [
        {
            "artifact_id": record.artifact_id,
            "media_type": record.media_type,
            "bytes": record.size,
            "version": record.version,
            "complete": record.complete,
        }
        for record in found[:_LISTED]
    ]
    return [*listed, {"not_listed": len(found) - _LISTED}] if len(found) > _LISTED else listed


def artifact_tools() -> list[FunctionTool[Any, ..., Any]]:
    """Make the tools by which a model creates, appends to, reads and lists the files of its conversation.

    Example:
        >>> agent = Agent("zai:glm-4.7", tools=artifact_tools(), artifacts=FolderArtifacts("files"))
    """
    return [create_artifact, append_to_artifact, read_artifact, list_artifacts]


async def _or_told(work: Awaitable[T]) -> T:
    """Wait for some work with artifacts; its refusal is for the model."""
    try:
        return await work
    except ArtifactError as error:
        raise ToolError(str(error)) from error


log = logging.getLogger("rxloop")


async def kept_whole(content: str, ctx: RunContext[Any]) -> str | None:
    """Keep a result as an artifact, if the model can read it or the agent was given a store.

    Args:
        content: The text of the result.
        ctx: That of its call.

    Returns:
        How the model gets at it; None where it is not kept.
    """
    readable = get_host(ctx).tools.offers(READ_ARTIFACT)
    # What a hidden call gives is not for clients, and artifacts of the conversation may be.
    if ctx.call is None or ctx.hidden or not (readable or ctx.port.artifact_writes().given):
        return None
    if ctx.asked_for is not None:
        await ctx.asked_for()
    place = re.sub(r"[^a-zA-Z0-9]", "-", f"{ctx.step}-{ctx.index}")[:32]
    artifact_id = f"{ctx.call.name}-{ctx.task_id[-12:]}-{place}.txt"
    try:
        await limit_time(ctx, lambda: _keep(artifact_id, content, ctx), "the store of artifacts")
    except Exception as error:
        log.warning("the whole result of %s could not be kept as an artifact: %s", ctx.call.name, error)
        return None
    reads = f"{READ_ARTIFACT} reads" if readable else "the user has"
    return f"{reads} the whole in the artifact {artifact_id}"


async def _keep(artifact_id: str, content: str, ctx: RunContext[Any]) -> None:
    draft = await ctx.artifacts.create(artifact_id)
    # The value of the result is on the stream already.
    await ctx.artifacts.append(artifact_id, content, last=True, version=draft.version, inline=False)
