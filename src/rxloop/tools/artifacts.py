"""Artifact tools and storage of long results."""

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
from rxloop.tools.result import decode_range

T = TypeVar("T")

READ_ARTIFACT = "read_artifact"

MAX_READ_BYTES = 50_000
"""Maximum number of bytes per read call."""

_MAX_LISTED = 200

_Id = Annotated[str, Field(description="The name of the file, such as report.md.")]


@tool(idempotent=True)
async def create_artifact(
    ctx: RunContext[Any],
    artifact_id: _Id,
    content: Annotated[str, Field(description="First part of the content; append the rest.")] = "",
    media_type: Annotated[str, Field(description="Such as text/markdown.")] = "text/plain",
    override: Annotated[bool, Field(description="Replace an existing file; its version is kept.")] = False,
    last: Annotated[bool, Field(description="The file is complete.")] = False,
) -> str:
    """Create a file for the user, such as a report, a table or a program.

    Write a long file in parts of a few thousand words: create it with the first part, and append the others.
    """
    draft = await _raise_tool_error(ctx.artifacts.create(artifact_id, media_type=media_type, override=override))
    await _raise_tool_error(draft.append(content, last=last))
    return f"Created {draft.artifact_id}, version {draft.version}, {len(content.encode())} bytes."


@tool(idempotent=True)
async def append_to_artifact(
    ctx: RunContext[Any],
    artifact_id: _Id,
    content: Annotated[str, Field(description="Text to append exactly; start with a line end if needed.")],
    last: Annotated[bool, Field(description="The file is complete.")] = False,
) -> str:
    """Append to a file."""
    await _raise_tool_error(ctx.artifacts.append(artifact_id, content, last=last))
    record = await _raise_tool_error(ctx.artifacts.record(artifact_id))
    return f"Appended; {record.artifact_id} has {record.size} bytes now{' and is complete' if last else ''}."


@tool(name=READ_ARTIFACT, idempotent=True, read_only=True, max_result=None)
async def read_artifact(
    ctx: RunContext[Any],
    artifact_id: _Id,
    offset: Annotated[int, Field(description="Position of the first byte.", ge=0)] = 0,
    limit: Annotated[int, Field(description="Maximum number of bytes.", ge=1, le=MAX_READ_BYTES)] = 20_000,
    version: Annotated[int | None, Field(description="Version to read. Default: the newest.")] = None,
) -> str:
    """Read a file of this conversation, or a part of it."""
    record = await _raise_tool_error(ctx.artifacts.record(artifact_id, version=version))
    data = await _raise_tool_error(ctx.artifacts.read(artifact_id, offset=offset, limit=limit, version=record.version))
    decoded = decode_range(data, first=offset == 0, last=offset + len(data) >= record.size)
    if decoded is None:
        raise ToolError(f"{record.artifact_id} is not text but {record.media_type}, of {record.size} bytes.")
    begin, shown = decoded
    start = offset + begin
    end = start + len(shown.encode())
    if start == 0 and end >= record.size:
        return shown
    more = f"; read on with offset={end}" if end < record.size else ""
    return f"[bytes {start} to {end} of {record.size} of {record.artifact_id}{more}]\n{shown}"


@tool(idempotent=True, read_only=True)
async def list_artifacts(ctx: RunContext[Any]) -> list[dict[str, Any]]:
    """List the files of this conversation."""
    records = await _raise_tool_error(ctx.artifacts.list())
    entries: list[dict[str, Any]] = [
        {
            "artifact_id": record.artifact_id,
            "media_type": record.media_type,
            "bytes": record.size,
            "version": record.version,
            "complete": record.complete,
        }
        for record in records[:_MAX_LISTED]
    ]
    return [*entries, {"not_listed": len(records) - _MAX_LISTED}] if len(records) > _MAX_LISTED else entries


def artifact_tools() -> list[FunctionTool[Any, ..., Any]]:
    """Return tools for creating, appending, reading and listing artifacts.

    Example:
        >>> agent = Agent("zai:glm-4.7", tools=artifact_tools(), artifacts=FolderArtifacts("files"))
    """
    return [create_artifact, append_to_artifact, read_artifact, list_artifacts]


async def _raise_tool_error(work: Awaitable[T]) -> T:
    """Await an operation on artifacts. Artifact errors are raised as `ToolError`, so that the model can read them."""
    try:
        return await work
    except ArtifactError as error:
        raise ToolError(str(error)) from error


log = logging.getLogger("rxloop")


async def store_long_result(content: str, ctx: RunContext[Any]) -> str | None:
    """Store a long result as an artifact.

    Requires an artifact store or a model with access to the read tool.

    Args:
        content: Full result text.
        ctx: Context of the tool call.

    Returns:
        Note with the artifact location, or None if the result was not stored.
    """
    readable = get_host(ctx).tools.offers(READ_ARTIFACT)
    # Results of hidden calls must not become readable artifacts.
    if ctx.call is None or ctx.hidden or not (readable or ctx.port.artifact_writes().is_configured):
        return None
    if ctx.until_requested is not None:
        await ctx.until_requested()
    slot = re.sub(r"[^a-zA-Z0-9]", "-", f"{ctx.step}-{ctx.index}")[:32]
    artifact_id = f"{ctx.call.name}-{ctx.task_id[-12:]}-{slot}.txt"
    try:
        await limit_time(ctx, lambda: _store(artifact_id, content, ctx), "the artifact store")
    except Exception as error:
        log.warning("Cannot store the full result of %s as an artifact: %s", ctx.call.name, error)
        return None
    reads = f"{READ_ARTIFACT} reads" if readable else "the user has"
    return f"{reads} the whole in the artifact {artifact_id}"


async def _store(artifact_id: str, content: str, ctx: RunContext[Any]) -> None:
    draft = await ctx.artifacts.create(artifact_id)
    # Skip inline publishing, because the result value was already published.
    await ctx.artifacts.append(artifact_id, content, last=True, version=draft.version, inline=False)
