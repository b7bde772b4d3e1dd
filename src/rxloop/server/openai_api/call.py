"""One request, and how the door behaves."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from rxloop.pipeline.values import RunRecord
from rxloop.protocol.visibility import PUBLIC_METADATA
from rxloop.runtime.runtime import Runtime
from rxloop.server.access import Principal
from rxloop.server.host import Host
from rxloop.server.openai_api.items import Json
from rxloop.server.openai_api.response import About

Instructions = Literal["data", "ignore", "refuse"]

OPENAI = "openai"
"""In the metadata of a run: what its responses say of themselves beside what has happened."""


@dataclass(frozen=True, slots=True)
class Options:
    """How the door behaves."""

    heartbeat: float | None
    instructions: Instructions
    reasoning_content: bool


@dataclass(frozen=True, slots=True)
class Call:
    """One request, of somebody who is known."""

    host: Host
    options: Options
    request: Request
    principal: Principal


Handler = Callable[[Call], Coroutine[Any, Any, Response]]


def about_of(record: RunRecord, runtime: Runtime) -> About:
    """What the responses of a run say of themselves; of one that was started by another door, too."""
    agent = runtime.agents.get(record.agent_name)
    said: Json = dict(record.metadata.get(OPENAI) or {})
    public = record.metadata.get(PUBLIC_METADATA)
    metadata = {key: value for key, value in public.items() if isinstance(value, str)} if public else {}
    known = {name: said[name] for name in ("background", "previous", "tools", "text") if name in said}
    client = frozenset[str]() if agent is None else frozenset(agent.client_tool_names)
    return About(record.agent_name, record.context_id, record.created, metadata=metadata, client=client, **known)
