"""Keeps the whole of a result that the model reads a part of."""

from __future__ import annotations

import logging
import re
from typing import Any

from rxloop.pipeline.run_context import RunContext
from rxloop.stream.within import within
from rxloop.tools.artifacts import READ_ARTIFACT

log = logging.getLogger("rxloop")


async def kept_whole(content: str, ctx: RunContext[Any]) -> str | None:
    """Keep a result as an artifact, if the model can read it or the agent was given a store.

    Args:
        content: The text of the result.
        ctx: That of its call.

    Returns:
        How the model gets at it; None where it is not kept.
    """
    readable = ctx.host.offers(READ_ARTIFACT)
    # What a hidden call gives is not for clients, and artifacts of the conversation may be.
    if ctx.call is None or ctx.hidden or not (readable or ctx.host.writes.given):
        return None
    if ctx.asked_for is not None:
        await ctx.asked_for()
    place = re.sub(r"[^a-zA-Z0-9]", "-", f"{ctx.step}-{ctx.index}")[:32]
    artifact_id = f"{ctx.call.name}-{ctx.task_id[-12:]}-{place}.txt"
    try:
        await within(ctx, _keep(artifact_id, content, ctx), "the store of artifacts")
    except Exception as error:
        log.warning("the whole result of %s could not be kept as an artifact: %s", ctx.call.name, error)
        return None
    reads = f"{READ_ARTIFACT} reads" if readable else "the user has"
    return f"{reads} the whole in the artifact {artifact_id}"


async def _keep(artifact_id: str, content: str, ctx: RunContext[Any]) -> None:
    draft = await ctx.artifacts.create(artifact_id)
    # The value of the result is on the stream already.
    await ctx.artifacts.append(artifact_id, content, last=True, version=draft.version, inline=False)
