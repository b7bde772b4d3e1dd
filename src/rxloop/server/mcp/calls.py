"""Tool call execution."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import anyio
import mcp_types as types
from mcp.server import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from starlette.datastructures import Headers

from rxloop.errors import ConfigurationError, RxloopError, ToolError
from rxloop.pipeline.log_retry import process_events
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import WAITING, ContentCompleteEvent, Event, StatusUpdateEvent, ToolCompleteEvent
from rxloop.protocol.finish import explain_incomplete
from rxloop.protocol.ids import read_cursor
from rxloop.recorded.questions import read_status
from rxloop.server.core.adapter import OnDisconnect
from rxloop.server.core.caller_trace import use_trace_context
from rxloop.server.core.errors import Refused, find_refusal, make_not_found_error
from rxloop.server.core.existing_runs import answer_run
from rxloop.server.core.gateway import ANONYMOUS, Gateway, Principal
from rxloop.server.core.runs import cancel_abandoned_run, start_run
from rxloop.server.mcp import results
from rxloop.server.mcp.questions import Elicitation, Questions, check_credential
from rxloop.server.mcp.results import Answer, Progress, RunIds, make_progress_view
from rxloop.server.mcp.tools import CONTINUE, ExposedAgent, make_continue_tool, parse_continue_arguments

log = logging.getLogger("rxloop")

Context = ServerRequestContext[Any, Any]
ToolResult = types.CallToolResult | types.InputRequiredResult

KEY = "rxloop/key"
"""Metadata key for an idempotency key. Repeated calls with the same key refer to the same run."""
_MAX_KEY_LENGTH = 200
PRINCIPAL = "rxloop.principal"
"""Scope key for the authenticated principal."""
ON_WAIT = "rxloop.on_wait"
"""Scope key for functions to call when a request only waits for a run or a client from now on."""

_PROGRESS_INTERVAL = 0.1
"""Minimum interval in seconds between optional progress messages."""
_RECENT_EVENTS = 16
"""Number of recent events to search first for an answer."""
_MAX_TRIES = 3
"""Maximum number of attempts for a question with invalid answers."""


def note_wait(scope: Mapping[str, Any]) -> None:
    """Release the slot of a request, because it only waits for a run or a client from now on."""
    for release in scope.get(ON_WAIT, ()):
        release()


@dataclass(slots=True)
class Call:
    """Tool call and the state of its run."""

    ctx: Context
    principal: Principal
    agent: ExposedAgent
    run: RunIds | None = None
    starting: asyncio.Task[RunRecord] | None = None
    steps: int = 0
    last: float = -math.inf
    answered_ids: set[str] = field(default_factory=set[str])
    """Ids of the questions answered during this call."""

    @property
    def run_ids(self) -> RunIds:
        """Ids of the started run."""
        assert self.run is not None
        return self.run

    @property
    def is_modern(self) -> bool:
        """True if the client receives questions in the call's result and repeats the call with answers."""
        return self.ctx.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def elicitation(self) -> Elicitation:
        """Elicitation modes supported by the client."""
        if not (self.is_modern or self.ctx.session.can_send_request):
            return Elicitation()
        return Elicitation.from_capabilities(self.ctx.session.client_capabilities)

    async def report(self, progress: Progress) -> None:
        """Report progress to the client with an increasing step number."""
        now = asyncio.get_running_loop().time()
        if progress.is_optional:
            if now - self.last < _PROGRESS_INTERVAL:
                return
            self.last = now
        self.steps += 1
        await self.ctx.session.report_progress(self.steps, message=progress.message)


class Calls:
    """Execution of tool calls."""

    def __init__(
        self, gateway: Gateway, tools: Mapping[str, ExposedAgent], *, wait: float | None, on_disconnect: OnDisconnect
    ) -> None:
        if wait is not None and not wait > 0:
            raise ConfigurationError(f"wait must be a positive number of seconds or None, got {wait!r}")
        self._gateway, self._tools, self._wait, self._on_disconnect = gateway, tools, wait, on_disconnect
        self._by_agent = {each.agent_name: each for each in tools.values()}

    def has(self, name: str) -> bool:
        """Return True if the tool exists."""
        return name in self._tools or (name == CONTINUE and self.has_agents)

    @property
    def has_agents(self) -> bool:
        """True if at least one agent is exposed as a tool."""
        return bool(self._tools)

    def list_tools(self) -> list[types.Tool]:
        """Return the tool definitions."""
        return [*(each.tool for each in self._tools.values()), *([make_continue_tool()] if self._tools else ())]

    async def call(self, ctx: Context, params: types.CallToolRequestParams) -> ToolResult:
        """Execute a tool call, returning failures as results for the model.

        Raises:
            MCPError: If the tool does not exist.
        """
        if not self.has(params.name):
            raise MCPError(types.INVALID_PARAMS, f"the tool {params.name!r} does not exist")
        try:
            return await self._execute(ctx, self._get_principal(ctx), params)
        except ToolError as error:
            return results.make_tool_error_result(error)
        except MCPError:
            raise
        except Exception as error:
            refused = find_refusal(error)
            if refused is None:
                log.error("Tool %s failed", params.name, exc_info=error)
                return results.make_error_result("the server failed")
            return results.make_error_result(str(refused))

    def _get_principal(self, ctx: Context) -> Principal:
        if ctx.request is not None:
            principal = ctx.request.scope.get(PRINCIPAL)
            if isinstance(principal, Principal):
                return principal
        if self._gateway.requires_auth:
            raise Refused(401, "unauthorized", "auth= requires HTTP, because clients over pipes do not authenticate")
        return ANONYMOUS

    async def _execute(self, ctx: Context, principal: Principal, params: types.CallToolRequestParams) -> ToolResult:
        arguments = params.arguments or {}
        if params.request_state is not None:
            call, record = await self._reopen_call(ctx, principal, params.name, params.request_state)
            execution = self._repeat(call, record, params.input_responses or {})
        elif params.name == CONTINUE:
            task_id, answers = parse_continue_arguments(arguments)
            call, record = await self._open_call(ctx, principal, task_id)
            execution = self._continue(call, record, answers)
        else:
            call = Call(ctx, principal, self._tools[params.name])
            execution = self._start(call, arguments)
        try:
            return await execution
        except asyncio.CancelledError:
            if self._should_cancel_run(ctx):
                self._gateway.spawn(self._cancel(call))
            raise

    async def _open_call(self, ctx: Context, principal: Principal, task_id: str) -> tuple[Call, RunRecord]:
        """Create a call that continues an existing run.

        Raises:
            Refused: If the run is missing, inaccessible, or belongs to an agent that is not exposed.
        """
        record = await self._gateway.find_run(principal, task_id)
        agent = self._by_agent.get(record.agent_name)
        if agent is None:
            raise make_not_found_error()
        return Call(ctx, principal, agent, RunIds(record.task_id, record.context_id)), record

    async def _reopen_call(self, ctx: Context, principal: Principal, name: str, state: str) -> tuple[Call, RunRecord]:
        """Create a call from request state, a cursor for pending questions.

        Request state is not signed, because any principal with access to the run may know it.

        Raises:
            MCPError: If the run is inaccessible, or belongs to a different tool.
        """
        with suppress(ConfigurationError, Refused):
            call, record = await self._open_call(ctx, principal, read_cursor(state).task_id)
            if name in (CONTINUE, call.agent.tool.name):
                return call, record
        raise MCPError(types.INVALID_PARAMS, "the requestState is unknown")

    def _should_cancel_run(self, ctx: Context) -> bool:
        """Return True if cancelling the call should also cancel its run."""
        if self._gateway.is_draining or self._gateway.has_signal:
            return False
        # The SDK has no public API to distinguish a cancellation from a lost connection.
        outbound = ctx.session._request_outbound  # pyright: ignore[reportPrivateUsage]
        return outbound.cancel_requested.is_set() or self._on_disconnect == "cancel"

    async def _cancel(self, call: Call) -> None:
        with suppress(RxloopError, Refused):
            if call.run is None and call.starting is not None:
                record = await call.starting
                call.run = RunIds(record.task_id, record.context_id)
            if call.run is not None:
                await cancel_abandoned_run(self._gateway, call.run.task_id)

    # -- runs

    async def _start(self, call: Call, arguments: Mapping[str, Any]) -> ToolResult:
        gateway, name = self._gateway, call.agent.agent_name
        prompt, context_id = await call.agent.make_prompt(arguments)
        if context_id is not None and not await gateway.has_conversation(call.principal, context_id):
            # Do not create a conversation for an id invented by a model.
            raise Refused(404, "not_found", "the conversation does not exist")
        key, request = (call.ctx.meta or {}).get(KEY), json.dumps(dict(arguments), sort_keys=True).encode()
        if key is not None and not (isinstance(key, str) and 0 < len(key) <= _MAX_KEY_LENGTH):
            raise ToolError(f"{KEY} in the metadata must be a string of 1 to {_MAX_KEY_LENGTH} characters")
        http = call.ctx.request
        # Calls are executed by the task of the session, which has the context of an earlier request.
        with use_trace_context(http.headers if http is not None else Headers(), call.ctx.meta):
            call.starting = asyncio.ensure_future(
                start_run(gateway, call.principal, name, prompt, key=key, request=request, context_id=context_id)
            )
        # The run id must be known even if the call is cancelled during the start.
        record = await asyncio.shield(call.starting)
        call.run = RunIds(record.task_id, record.context_id)
        await call.report(Progress(f"{call.agent.tool.name} is at work (run {record.task_id})"))
        if record.state == "submitted":
            return await self._follow_to_result(call, None, None)
        return await self._follow_to_result(call, await self._find_end(record), record.cursor)

    async def _continue(self, call: Call, record: RunRecord, answers: Mapping[str, Any]) -> ToolResult:
        """Handle a `continue_run` call."""
        end = await self._find_end(record)
        if not answers:
            return await self._follow_to_result(call, end, record.cursor)
        questions = Questions(() if end is None else end.pending)
        for each in questions.unanswered:
            if each.input_id in answers:
                check_credential(each, answers[each.input_id])
        await answer_run(self._gateway, call.principal, record, answers)
        call.answered_ids.update(answers)
        questions.mark_answered(answers)
        if questions.unanswered:
            return results.make_waiting_result(call.run_ids, "input-required", questions.unanswered)
        return await self._follow_to_result(call, None, record.cursor)

    async def _repeat(self, call: Call, record: RunRecord, responses: Mapping[str, Any]) -> ToolResult:
        """Handle a repeated call with answers to earlier questions."""
        return await self._follow_to_result(call, await self._find_end(record), record.cursor, responses)

    async def _follow_to_result(
        self, call: Call, end: StatusUpdateEvent | None, after: str | None, responses: Mapping[str, Any] | None = None
    ) -> ToolResult:
        """Follow a run until it has a result, eliciting answers to its questions.

        Args:
            call: Current call.
            end: Final event of the last attempt, if the run is idle.
            after: Cursor to follow the run from.
            responses: Client responses to the questions in `end`.
        """
        while True:
            end = end or await self._follow(call, after)
            if end is None:
                return results.make_working_result(call.run_ids)
            if end.state not in WAITING:
                return results.make_final_result(call.run_ids, end, call.agent, await self._load_answer(end))
            if end.pending and call.answered_ids.issuperset(each.input_id for each in end.pending):
                # The run paused before receiving these answers and will now continue.
                end, after = None, end.cursor
                continue
            questions = Questions(end.pending, call.principal.may_answer)
            for _ in range(_MAX_TRIES):
                if responses is None:
                    requests = questions.make_requests(call.elicitation, with_id=not call.is_modern)
                    if not requests:
                        break
                    if call.is_modern:
                        input_requests = cast("dict[str, types.InputRequest]", requests)
                        return types.InputRequiredResult(input_requests=input_requests, request_state=end.cursor)
                    note_wait(call.ctx.request.scope if call.ctx.request is not None else {})
                    responses = await _elicit(call, requests)
                answers, responses = questions.parse_responses(responses), None
                try:
                    if answers:
                        record = await self._gateway.find_run(call.principal, call.run_ids.task_id)
                        await answer_run(self._gateway, call.principal, record, answers)
                    questions.mark_answered(answers)
                    call.answered_ids.update(answers)
                except Refused as error:
                    if error.code not in ("invalid_input", "forbidden"):
                        raise
                    questions.reject_answers(answers, str(error))
                if not questions.unanswered:
                    break
            if questions.unanswered:
                return results.make_waiting_result(call.run_ids, end.state, questions.unanswered)
            end, after = None, end.cursor

    async def _follow(self, call: Call, after: str | None) -> StatusUpdateEvent | None:
        """Follow a run and report progress until it is idle, returning None on timeout."""
        gateway, task_id = self._gateway, call.run_ids.task_id
        note_wait(call.ctx.request.scope if call.ctx.request is not None else {})
        with gateway.reserve_stream(call.principal) as slot, slot.scope:
            if self._wait is not None:
                slot.scope.deadline = anyio.current_time() + self._wait
            async for each in gateway.runtime.follow(task_id, after=after).pipe(make_progress_view()):
                if isinstance(each, StatusUpdateEvent):
                    return each
                await call.report(each)
        return None

    async def _find_end(self, record: RunRecord) -> StatusUpdateEvent | None:
        """Return the public end of the last attempt, or None if the run is active."""
        last = (await read_status(self._gateway.runtime.log, record)).last
        end = None if last is None else last.to_public()
        return end if isinstance(end, StatusUpdateEvent) else None

    async def _load_answer(self, end: StatusUpdateEvent) -> Answer:
        """Load the answer's files, and an explanation if the answer is incomplete."""
        if end.state != "completed":
            return Answer()
        # The answer is usually among the last events, so read all events only if it is not.
        for after in (max(0, end.seq - _RECENT_EVENTS), 0):
            answer = await process_events(self._gateway.runtime.log, end.task_id, _find_answer, after)
            if answer is not None:
                return answer
        return Answer()


def _find_answer(events: Sequence[Event]) -> Answer | None:
    for event in reversed(events):
        if event.branch is not None or event.parent_task_id is not None:
            continue
        if isinstance(event, ContentCompleteEvent):
            return Answer(event.files, explain_incomplete(event))
        if isinstance(event, ToolCompleteEvent) and event.answer and event.success:
            return Answer(event.parts if event.public else ())
    return None


async def _elicit(call: Call, requests: Mapping[str, types.ElicitRequest]) -> dict[str, types.ElicitResult]:
    """Elicit answers sequentially, for clients with protocol versions before 2026."""
    session, responses = call.ctx.session, dict[str, types.ElicitResult]()
    metadata = ServerMessageMetadata(related_request_id=call.ctx.request_id)
    for input_id, request in requests.items():
        try:
            responses[input_id] = await session.send_request(request, types.ElicitResult, metadata=metadata)
        except (MCPError, ValidationError) as error:
            log.info("Client failed to ask a question: %s", error)
            responses[input_id] = types.ElicitResult(action="cancel")
    return responses
