"""The rounds of a call since 2026-07-28: the server answers with questions, and is called again with the answers.

What it needs to go on, an opaque state, is kept in the metadata of the question that the run puts. So the run may end
there, and another process goes on with the answer, as long as the server knows its state.
"""

from __future__ import annotations

from typing import Any, cast

import mcp_types as types
from pydantic import TypeAdapter

from rxloop.errors import Paused, ToolError
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import Event
from rxloop.protocol.frozen import thawed
from rxloop.protocol.run_events import AskingEvent
from rxloop.tools.mcp._asking import roots_of, sampled
from rxloop.tools.mcp._forms import elicited
from rxloop.tools.mcp._link import Call, Link

_KEY = "mcp"
"""Under which it stands in the metadata of a question, which is not for clients."""
_STATE = 256_000
"""Characters of a state."""
_MOST = 20
"""Questions of one round."""

Responses = dict[str, Any]
_requests: TypeAdapter[dict[str, types.InputRequest]] = TypeAdapter(dict[str, types.InputRequest])


class Rounds:
    """The rounds of one call."""

    def __init__(self, link: Link, call: Call) -> None:
        self._link = link
        self._call = call

    async def earlier(self) -> tuple[Responses | None, str | None]:
        """What to begin with: the answers to the questions at which an earlier attempt of the run left the call."""
        ctx = self._call.ctx
        note = thawed(ctx.host.noted((ctx.step or "", ctx.index)).get(_KEY))
        if note is None:
            return None, None
        return await self._answers(_requests.validate_python(note["requests"]), note), note["state"]

    async def answer(self, asked: types.InputRequiredResult) -> Responses:
        """Answer the questions of a round.

        Raises:
            Paused: There is no answer yet.
            ToolError: The server asks too much, or for what it may not have.
        """
        requests = asked.input_requests or {}
        if len(requests) > _MOST or len(asked.request_state or "") > _STATE:
            raise ToolError(f"The MCP server {self._link.name} asks for too much at once.")
        shown = _requests.dump_python(requests, by_alias=True, mode="json", exclude_none=True)
        return await self._answers(requests, {"requests": shown, "state": asked.request_state})

    async def _answers(self, requests: dict[str, types.InputRequest], note: dict[str, Any]) -> Responses:
        ctx = self._noting(self._call.ctx, note)
        given: Responses = {}
        paused: Paused | None = None
        # First all that is for the person, so that it is asked at once; what costs something comes after the answers.
        for key, request in requests.items():
            if isinstance(request, types.ElicitRequest):
                try:
                    given[key] = await elicited(ctx, self._link.name, request.params)
                except Paused as error:
                    paused = error
        if paused is not None:
            raise paused
        for key, request in requests.items():
            if isinstance(request, types.ListRootsRequest):
                given[key] = roots_of(self._link.taken)
            elif isinstance(request, types.CreateMessageRequest):
                answer = await sampled(self._call, request.params, self._link.taken)
                if isinstance(answer, types.ErrorData):
                    raise ToolError(answer.message)
                given[key] = answer
        return given

    def _noting(self, ctx: RunContext[Any], note: dict[str, Any]) -> RunContext[Any]:
        """The context of the call, whose questions carry what the next attempt needs."""
        out = ctx.out

        def noted(event: Event) -> None:
            if isinstance(event, AskingEvent):
                event = event.model_copy(update={"metadata": {**event.metadata, _KEY: note}})
            (out or ctx.host.publish)(event)

        return ctx.bind(out=cast("Any", noted))
