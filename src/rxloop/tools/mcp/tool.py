"""One MCP tool and its call, with repeated rounds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from math import isfinite
from typing import Any, cast

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter, ValidationError

from rxloop.errors import Paused, ToolError
from rxloop.pipeline.host import get_host
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import Event
from rxloop.protocol.model import thaw
from rxloop.protocol.run_events import QuestionEvent
from rxloop.support.json_schema import find_mismatch
from rxloop.tools.mcp.calls import Call, Connect, Link, tool_result
from rxloop.tools.mcp.client_requests import elicited, roots_of, sampled
from rxloop.tools.mcp.options import Taken
from rxloop.tools.result import ToolResult

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
        note = thaw(get_host(ctx).earlier.notes.get((ctx.step or "", ctx.index), {}).get(_KEY))
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
            if isinstance(event, QuestionEvent):
                event = event.model_copy(update={"metadata": {**event.metadata, _KEY: note}})
            (out or ctx.port.publish)(event)

        return ctx.bind(out=cast("Any", noted))


_ROUNDS = 20
"""How often a server may ask before it gives the result of a call."""

_LONGEST = 1_000
"""Characters of a progress message."""

_PROGRESS = 1_000
"""How often a server may tell of its progress in one call; beyond that it is told once a second."""

_PAUSES = 50
"""How often a server may put off a call without a question."""

_answers: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


class MCPTool:
    """A tool of a server, as the model sees it."""

    asks = False
    """Nobody decides in each run whether it is offered: what the server lists is."""
    asks_in_rounds = True
    """True if a repeated call sends the recorded answers to the server."""

    def __init__(
        self,
        connect: Connect,
        taken: Taken,
        name: str,
        definition: ToolDefinition,
        annotations: types.ToolAnnotations,
        output: Mapping[str, Any] | None = None,
    ) -> None:
        self._connect = connect
        self._name = name
        self._output = output
        """The JSON Schema of its structured content, if the server has given one that can be checked."""
        self.definition = definition
        self.timeout = taken.timeout
        reads = annotations.read_only_hint is True
        # To look something up out in the world tells somebody what is sought: never before a guard has seen the call.
        self.read_only = reads and annotations.open_world_hint is False
        self.idempotent = reads or annotations.idempotent_hint is True
        harmless = reads or annotations.destructive_hint is False
        self.approve = not harmless if taken.approve == "destructive" else taken.approve

    def __repr__(self) -> str:
        return f"<tool {self.definition.name}>"

    def enabled(self, ctx: RunContext[Any]) -> bool:
        """Whether it is offered in this run now."""
        return True

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> ToolResult:
        """Have the server carry out one call.

        Raises:
            ToolError: It failed, or the server is gone.
        """
        link = await self._connect(ctx)
        try:
            return await self._called(link, arguments, ctx)
        except _Lost as lost:
            if not (self.idempotent or lost.unheard):
                raise ToolError(
                    f"The connection to the MCP server {link.name} broke during the call: it is not known "
                    "whether it took effect. The next call connects again."
                ) from None
        try:
            return await self._called(await self._connect(ctx), arguments, ctx)
        except _Lost:
            raise ToolError(f"The connection to the MCP server {link.name} broke twice.") from None

    async def _called(self, link: Link, arguments: dict[str, Any], ctx: RunContext[Any]) -> ToolResult:
        call = Call(ctx)
        link.calls.add(call)
        try:
            result = await self._asked(link, arguments, call)
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED and (link.closed or _local(error)):
                raise _Lost(unheard=False) from None
            if link.sessions and (error.code, str(error)) == (types.INVALID_REQUEST, "Session terminated"):
                # The server has forgotten the session, and has not looked at the call.
                link.closed = True
                raise _Lost(unheard=True) from None
            raise ToolError(link.shown(f"The MCP server {link.name} refused: {error}")) from None
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_context=False)[0]
            where = ".".join(map(str, wrong["loc"]))
            raise ToolError(
                link.shown(
                    f"The MCP server {link.name} returned a malformed result: {where}: {wrong['msg']}. "
                    "The call may have taken effect."
                )
            ) from None
        finally:
            link.calls.discard(call)
            call.over()
        made = tool_result(result, link)
        wrong = self._violation(result)
        if wrong is not None:
            why = (
                f"The MCP server {link.name} executed the call, so do not repeat it. "
                f"The result failed validation against the output schema of the tool: {wrong}"
            )
            raise ToolError(link.shown(why), value=made)
        return made

    def _violation(self, result: types.CallToolResult) -> str | None:
        """Return how the structured content differs from the output schema, or None.

        The SDK does not validate it, because a pattern such as `^(a+)+$` would block the event loop.
        """
        if self._output is None:
            return None
        if result.structured_content is None and find_mismatch(None, self._output) is not None:
            return "there is no structured content, although the tool has an output schema"
        return find_mismatch(result.structured_content, self._output)

    async def _asked(self, link: Link, arguments: dict[str, Any], call: Call) -> types.CallToolResult:
        """Call the tool, and answer what the server asks on the way."""
        rounds = Rounds(link, call)
        responses, state = await rounds.earlier()
        over = False
        times, next_time = 0, 0.0

        async def told(progress: float, total: float | None, message: str | None) -> None:
            nonlocal times, next_time
            times += 1
            now = asyncio.get_running_loop().time()
            # It may come after the result, when nobody is told any more.
            if not over and (times <= _PROGRESS or now >= next_time):
                next_time = now + 1.0
                text = message or (f"{progress:g}" if total is None else f"{progress:g} of {total:g}")
                part = progress / total if total else None
                call.ctx.progress(
                    link.shown(text, _LONGEST),
                    min(max(part, 0.0), 1.0) if part is not None and isfinite(part) else None,
                )

        try:
            for turn in range(_ROUNDS + _PAUSES):
                params = types.CallToolRequestParams(
                    name=self._name, arguments=arguments, input_responses=responses, request_state=state
                )
                result = await link.client.session.send_request(
                    types.CallToolRequest(params=params), _answers, progress_callback=told
                )
                if not isinstance(result, types.InputRequiredResult):
                    return result
                state = result.request_state
                if result.input_requests:
                    responses = await rounds.answer(result)
                else:
                    responses = None
                    await asyncio.sleep(min(0.05 * 2**turn, 1.0))
        finally:
            over = True
        raise ToolError(f"The MCP server {link.name} asks again and again, and gives no result.")


class _Lost(Exception):
    """The connection broke during a call."""

    def __init__(self, *, unheard: bool) -> None:
        super().__init__()
        self.unheard = unheard
        """Whether the server is known not to have begun."""


def _local(error: MCPError) -> bool:
    """Whether the SDK says so itself, of a connection that has ended, and not the server of one answer."""
    return str(error) == "Connection closed"
