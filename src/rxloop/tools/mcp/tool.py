"""MCP tools and multi-round tool calls."""

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
from rxloop.support.json_schema import find_mismatch_off_loop
from rxloop.tools.mcp.calls import Call, Connect, Link, tool_result
from rxloop.tools.mcp.client_requests import answer_sampling, forward_question, make_roots
from rxloop.tools.mcp.options import ServerOptions
from rxloop.tools.result import ToolResult

_KEY = "mcp"
"""Internal metadata key for call state in questions. Not visible to clients."""

_STATE = 256_000
"""Maximum number of characters of the state."""

_MAX_REQUESTS = 20
"""Maximum number of requests per round."""

Responses = dict[str, Any]

_requests: TypeAdapter[dict[str, types.InputRequest]] = TypeAdapter(dict[str, types.InputRequest])


class Rounds:
    """Multi-round request handling for a single call."""

    def __init__(self, link: Link, call: Call) -> None:
        self._link = link
        self._call = call

    async def load_earlier(self) -> tuple[Responses | None, str | None]:
        """Load answers and state of an interrupted call."""
        ctx = self._call.ctx
        note = thaw(get_host(ctx).earlier.notes.get((ctx.step or "", ctx.index), {}).get(_KEY))
        if note is None:
            return None, None
        return await self._answers(_requests.validate_python(note["requests"]), note), note["state"]

    async def answer(self, result: types.InputRequiredResult) -> Responses:
        """Answer server requests for one round.

        Raises:
            Paused: Pending answer.
            ToolError: Too many requests or rejected request.
        """
        requests = result.input_requests or {}
        if len(requests) > _MAX_REQUESTS or len(result.request_state or "") > _STATE:
            raise ToolError(f"The MCP server {self._link.name} sent too many or too large requests.")
        dumped = _requests.dump_python(requests, by_alias=True, mode="json", exclude_none=True)
        return await self._answers(requests, {"requests": dumped, "state": result.request_state})

    async def _answers(self, requests: dict[str, types.InputRequest], note: dict[str, Any]) -> Responses:
        ctx = self._attach_note(self._call.ctx, note)
        responses: Responses = {}
        paused: Paused | None = None
        # Ask the person first, and start expensive requests only after all answers are available.
        for key, request in requests.items():
            if isinstance(request, types.ElicitRequest):
                try:
                    responses[key] = await forward_question(ctx, self._link.name, request.params)
                except Paused as error:
                    paused = error
        if paused is not None:
            raise paused
        for key, request in requests.items():
            if isinstance(request, types.ListRootsRequest):
                responses[key] = make_roots(self._link.options)
            elif isinstance(request, types.CreateMessageRequest):
                answer = await answer_sampling(self._call, request.params, self._link.options)
                if isinstance(answer, types.ErrorData):
                    raise ToolError(answer.message)
                responses[key] = answer
        return responses

    def _attach_note(self, ctx: RunContext[Any], note: dict[str, Any]) -> RunContext[Any]:
        """Create a call context that attaches resume data to published questions."""
        out = ctx.out

        def publish_with_note(event: Event) -> None:
            if isinstance(event, QuestionEvent):
                event = event.model_copy(update={"metadata": {**event.metadata, _KEY: note}})
            (out or ctx.port.publish)(event)

        return ctx.bind(out=cast("Any", publish_with_note))


_ROUNDS = 20
"""Maximum number of rounds before the server must return a result."""

_MAX_TEXT = 1_000
"""Maximum number of characters of a progress message."""

_UNLIMITED_REPORTS = 1_000
"""Maximum progress notifications per call without rate limiting. Further notifications are limited to one per second.
"""

_PAUSES = 50
"""Maximum number of server delays per call without a request."""

_answers: TypeAdapter[types.CallToolResult | types.InputRequiredResult] = TypeAdapter(
    types.CallToolResult | types.InputRequiredResult
)


class MCPTool:
    """MCP server tool."""

    is_conditional = False
    """Always False, because all listed tools are offered."""
    asks_in_rounds = True
    """True if a repeated call sends the recorded answers to the server."""

    def __init__(
        self,
        connect: Connect,
        options: ServerOptions,
        name: str,
        definition: ToolDefinition,
        annotations: types.ToolAnnotations,
        output: Mapping[str, Any] | None = None,
    ) -> None:
        self._connect = connect
        self._name = name
        self._output = output
        """JSON Schema of the structured content, or None if the server has none that can be validated."""
        self.definition = definition
        self.timeout = options.timeout
        reads = annotations.read_only_hint is True
        # Open-world requests can expose search terms, so wait for guard approval before execution.
        self.read_only = reads and annotations.open_world_hint is False
        self.idempotent = reads or annotations.idempotent_hint is True
        harmless = reads or annotations.destructive_hint is False
        self.approve = not harmless if options.approve == "destructive" else options.approve

    def __repr__(self) -> str:
        return f"<tool {self.definition.name}>"

    def enabled(self, ctx: RunContext[Any]) -> bool:
        """Return True, because every listed tool is offered."""
        return True

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> ToolResult:
        """Execute a call on the server.

        Raises:
            ToolError: If the call failed or the connection broke.
        """
        link = await self._connect(ctx)
        try:
            return await self._call_once(link, arguments, ctx)
        except _ConnectionLost as failure:
            if not (self.idempotent or failure.is_unprocessed):
                raise ToolError(
                    f"The connection to the MCP server {link.name} broke during the call: it is not known "
                    "whether it took effect. The next call connects again."
                ) from None
        try:
            return await self._call_once(await self._connect(ctx), arguments, ctx)
        except _ConnectionLost:
            raise ToolError(f"The connection to the MCP server {link.name} broke twice.") from None

    async def _call_once(self, link: Link, arguments: dict[str, Any], ctx: RunContext[Any]) -> ToolResult:
        call = Call(ctx)
        link.calls.add(call)
        try:
            result = await self._call_in_rounds(link, arguments, call)
        except MCPError as error:
            if error.code == types.CONNECTION_CLOSED and (link.closed or _is_local(error)):
                raise _ConnectionLost(is_unprocessed=False) from None
            if link.sessions and (error.code, str(error)) == (types.INVALID_REQUEST, "Session terminated"):
                # The server terminated the session before executing the call.
                link.closed = True
                raise _ConnectionLost(is_unprocessed=True) from None
            raise ToolError(link.redact(f"The MCP server {link.name} refused: {error}")) from None
        except ValidationError as error:
            wrong = error.errors(include_url=False, include_context=False)[0]
            path = ".".join(map(str, wrong["loc"]))
            raise ToolError(
                link.redact(
                    f"The MCP server {link.name} returned a malformed result: {path}: {wrong['msg']}. "
                    "The call may have taken effect."
                )
            ) from None
        finally:
            link.calls.discard(call)
            call.cancel_requests()
        converted = tool_result(result, link)
        wrong = await self._find_violation(result)
        if wrong is not None:
            text = (
                f"The MCP server {link.name} executed the call, so do not repeat it. "
                f"The result failed validation against the output schema of the tool: {wrong}"
            )
            raise ToolError(link.redact(text), value=converted)
        return converted

    async def _find_violation(self, result: types.CallToolResult) -> str | None:
        """Return how the structured content differs from the output schema, or None.

        The SDK does not validate it, because a pattern such as `^(a+)+$` would block the process.
        """
        if self._output is None:
            return None
        mismatch = await find_mismatch_off_loop(result.structured_content, self._output)
        if result.structured_content is None and mismatch is not None:
            return "there is no structured content, although the tool has an output schema"
        return mismatch

    async def _call_in_rounds(self, link: Link, arguments: dict[str, Any], call: Call) -> types.CallToolResult:
        """Call the tool, handling server requests across multiple rounds."""
        rounds = Rounds(link, call)
        responses, state = await rounds.load_earlier()
        is_over = False
        report_count, next_time = 0, 0.0

        async def report_progress(progress: float, total: float | None, message: str | None) -> None:
            nonlocal report_count, next_time
            report_count += 1
            now = asyncio.get_running_loop().time()
            # Notifications may arrive after the result, when progress must not be published.
            if not is_over and (report_count <= _UNLIMITED_REPORTS or now >= next_time):
                next_time = now + 1.0
                text = message or (f"{progress:g}" if total is None else f"{progress:g} of {total:g}")
                part = progress / total if total else None
                call.ctx.progress(
                    link.redact(text, _MAX_TEXT),
                    min(max(part, 0.0), 1.0) if part is not None and isfinite(part) else None,
                )

        try:
            for turn in range(_ROUNDS + _PAUSES):
                params = types.CallToolRequestParams(
                    name=self._name, arguments=arguments, input_responses=responses, request_state=state
                )
                result = await link.client.session.send_request(
                    types.CallToolRequest(params=params), _answers, progress_callback=report_progress
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
            is_over = True
        raise ToolError(f"The MCP server {link.name} asks again and again, and gives no result.")


class _ConnectionLost(Exception):
    """Raised if the connection is lost during a call."""

    def __init__(self, *, is_unprocessed: bool) -> None:
        super().__init__()
        self.is_unprocessed = is_unprocessed
        """True if the server has certainly not started the call."""


def _is_local(error: MCPError) -> bool:
    """Return True if the SDK reports a closed connection, rather than the server an error of one call."""
    return str(error) == "Connection closed"
