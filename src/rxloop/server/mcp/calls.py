"""Tool call execution."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Mapping
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

from rxloop.errors import ConfigurationError, RxloopError, ToolError
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import WAITING, ContentCompleteEvent, StatusUpdateEvent, ToolCompleteEvent
from rxloop.protocol.finish import explain_incomplete
from rxloop.protocol.ids import read_cursor
from rxloop.server.core.adapter import OnDisconnect
from rxloop.server.core.errors import Refused, not_found, refusal_of
from rxloop.server.core.gateway import ANYBODY, Gateway, Principal
from rxloop.server.core.runs import answer_run, cancel_abandoned_run, find_last_update, start_run
from rxloop.server.mcp import results
from rxloop.server.mcp.questions import Asks, Questions, check_credential
from rxloop.server.mcp.results import Answer, Progress, Told, heard
from rxloop.server.mcp.tools import CONTINUE, Offered, continuing, to_continue

log = logging.getLogger("rxloop")

Context = ServerRequestContext[Any, Any]
Given = types.CallToolResult | types.InputRequiredResult

KEY = "rxloop/key"
"""Metadata key for an idempotency key. Repeated calls with the same key refer to the same run."""
_LONGEST_KEY = 200
PRINCIPAL = "rxloop.principal"
"""Scope key for the authenticated principal."""

_BETWEEN = 0.1
"""Minimum interval in seconds between optional progress messages."""
_NEAR = 16
"""Number of recent events to search first for an answer."""
_TRIES = 3
"""Maximum number of attempts for a question with invalid answers."""


@dataclass(slots=True)
class Call:
    """A tool call and its run."""

    ctx: Context
    principal: Principal
    agent: Offered
    run: Told | None = None
    starting: asyncio.Task[RunRecord] | None = None
    steps: int = 0
    last: float = -math.inf
    given: set[str] = field(default_factory=set[str])
    """Ids of the questions answered during this call."""

    @property
    def told(self) -> Told:
        """Run of the call, required to exist."""
        assert self.run is not None
        return self.run

    @property
    def modern(self) -> bool:
        """True if the client receives questions in the call's result and repeats the call with answers."""
        return self.ctx.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def asks(self) -> Asks:
        """The client's elicitation capabilities."""
        if not (self.modern or self.ctx.session.can_send_request):
            return Asks()
        return Asks.of(self.ctx.session.client_capabilities)

    async def tell(self, step: Progress) -> None:
        """Report progress to the client with an increasing step number."""
        now = asyncio.get_running_loop().time()
        if step.passing:
            if now - self.last < _BETWEEN:
                return
            self.last = now
        self.steps += 1
        await self.ctx.session.report_progress(self.steps, message=step.message)


class Calls:
    """Execution of tool calls."""

    def __init__(
        self, gateway: Gateway, tools: Mapping[str, Offered], *, wait: float | None, on_disconnect: OnDisconnect
    ) -> None:
        if wait is not None and not wait > 0:
            raise ConfigurationError(f"wait must be more than 0 seconds, or None for the end of the run, not {wait!r}")
        self._gateway, self._tools, self._wait, self._on_disconnect = gateway, tools, wait, on_disconnect
        self._by_agent = {each.agent_name: each for each in tools.values()}

    def has(self, name: str) -> bool:
        """True if the tool exists."""
        return name in self._tools or (name == CONTINUE and self.has_agents)

    @property
    def has_agents(self) -> bool:
        """True if at least one agent is exposed as a tool."""
        return bool(self._tools)

    def list_tools(self) -> list[types.Tool]:
        """Return the tool definitions."""
        return [*(each.tool for each in self._tools.values()), *([continuing()] if self._tools else ())]

    async def call(self, ctx: Context, params: types.CallToolRequestParams) -> Given:
        """Execute a tool call, returning failures as results for the model.

        Raises:
            MCPError: If the tool does not exist.
        """
        if not self.has(params.name):
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r}")
        try:
            return await self._carry_out(ctx, self._principal(ctx), params)
        except ToolError as error:
            return results.failed_with(error)
        except MCPError:
            raise
        except Exception as error:
            refused = refusal_of(error)
            if refused is None:
                log.error("the tool %s failed", params.name, exc_info=error)
                return results.failed("the server failed")
            return results.failed(str(refused))

    def _principal(self, ctx: Context) -> Principal:
        if ctx.request is not None:
            found = ctx.request.scope.get(PRINCIPAL)
            if isinstance(found, Principal):
                return found
        if self._gateway.secured:
            raise Refused(401, "unauthorized", "over pipes nobody says who asks: serve it by HTTP, or without auth=")
        return ANYBODY

    async def _carry_out(self, ctx: Context, principal: Principal, params: types.CallToolRequestParams) -> Given:
        arguments = params.arguments or {}
        if params.request_state is not None:
            call, record = await self._known(ctx, principal, params.name, params.request_state)
            going_on = self._retried(call, record, params.input_responses or {})
        elif params.name == CONTINUE:
            task_id, answers = to_continue(arguments)
            call, record = await self._of(ctx, principal, task_id)
            going_on = self._continue(call, record, answers)
        else:
            call = Call(ctx, principal, self._tools[params.name])
            going_on = self._begin(call, arguments)
        try:
            return await going_on
        except asyncio.CancelledError:
            if self._is_given_up(ctx):
                self._gateway.spawn(self._cancel(call))
            raise

    async def _of(self, ctx: Context, principal: Principal, task_id: str) -> tuple[Call, RunRecord]:
        """Create a call for an existing run.

        Raises:
            Refused: If the run is missing, inaccessible, or belongs to an agent that is not exposed.
        """
        record = await self._gateway.find_run(principal, task_id)
        agent = self._by_agent.get(record.agent_name)
        if agent is None:
            raise not_found()
        return Call(ctx, principal, agent, Told(record.task_id, record.context_id)), record

    async def _known(self, ctx: Context, principal: Principal, name: str, state: str) -> tuple[Call, RunRecord]:
        """Create a call from request state, a cursor for pending questions.

        Request state is not signed, because any principal with access to the run may know it.

        Raises:
            MCPError: If the run is inaccessible, or belongs to a different tool.
        """
        with suppress(ConfigurationError, Refused):
            call, record = await self._of(ctx, principal, read_cursor(state).task_id)
            if name in (CONTINUE, call.agent.tool.name):
                return call, record
        raise MCPError(types.INVALID_PARAMS, "there is no such requestState")

    def _is_given_up(self, ctx: Context) -> bool:
        """True if cancelling the call should also cancel its run."""
        if self._gateway.is_draining:
            return False
        # The SDK has no public API to distinguish a cancellation from a lost connection.
        outbound = ctx.session._request_outbound  # pyright: ignore[reportPrivateUsage]
        return outbound.cancel_requested.is_set() or self._on_disconnect == "cancel"

    async def _cancel(self, call: Call) -> None:
        with suppress(RxloopError, Refused):
            if call.run is None and call.starting is not None:
                record = await call.starting
                call.run = Told(record.task_id, record.context_id)
            if call.run is not None:
                await cancel_abandoned_run(self._gateway, call.run.task_id)

    # -- runs

    async def _begin(self, call: Call, arguments: Mapping[str, Any]) -> Given:
        gateway, name = self._gateway, call.agent.agent_name
        prompt, context_id = await call.agent.prompt(arguments)
        if context_id is not None and not await gateway.find_context(call.principal, context_id):
            # Do not create a conversation for an id invented by a model.
            raise Refused(404, "not_found", "there is no such conversation")
        key, said = (call.ctx.meta or {}).get(KEY), json.dumps(dict(arguments), sort_keys=True).encode()
        if key is not None and not (isinstance(key, str) and 0 < len(key) <= _LONGEST_KEY):
            raise ToolError(f"{KEY} in the metadata of a call is a text of up to {_LONGEST_KEY} characters")
        call.starting = asyncio.ensure_future(
            start_run(gateway, call.principal, name, prompt, key=key, request=said, context_id=context_id)
        )
        # The run id must be known even if the call is cancelled during the start.
        record = await asyncio.shield(call.starting)
        call.run = Told(record.task_id, record.context_id)
        await call.tell(Progress(f"{call.agent.tool.name} is at work (run {record.task_id})"))
        if record.state == "submitted":
            return await self._on(call, None, None)
        return await self._on(call, await self._end(record), _cursor(record))

    async def _continue(self, call: Call, record: RunRecord, answers: Mapping[str, Any]) -> Given:
        """Handle a `continue_run` call."""
        end = await self._end(record)
        if not answers:
            return await self._on(call, end, _cursor(record))
        questions = Questions(() if end is None else end.pending)
        for each in questions.left:
            if each.input_id in answers:
                check_credential(each, answers[each.input_id])
        await answer_run(self._gateway, record, answers)
        call.given.update(answers)
        questions.taken(answers)
        if questions.left:
            return results.waiting(call.told, "input-required", questions.left)
        return await self._on(call, None, _cursor(record))

    async def _retried(self, call: Call, record: RunRecord, said: Mapping[str, Any]) -> Given:
        """Handle a repeated call with answers to earlier questions."""
        return await self._on(call, await self._end(record), _cursor(record), said)

    async def _on(
        self, call: Call, end: StatusUpdateEvent | None, after: str | None, said: Mapping[str, Any] | None = None
    ) -> Given:
        """Follow a run, eliciting answers to its questions, until there is a result.

        Args:
            call: Current call.
            end: Final event of the last attempt, if the run is idle.
            after: Cursor to follow the run from.
            said: Client responses to the questions in `end`.
        """
        while True:
            end = end or await self._follow(call, after)
            if end is None:
                return results.going_on(call.told)
            if end.state not in WAITING:
                return results.over(call.told, end, call.agent, await self._answer(end))
            if end.pending and call.given.issuperset(each.input_id for each in end.pending):
                # The run paused before receiving these answers and will now continue.
                end, after = None, end.cursor
                continue
            questions = Questions(end.pending)
            for _ in range(_TRIES):
                if said is None:
                    requests = questions.requests(call.asks, by_id=not call.modern)
                    if not requests:
                        break
                    if call.modern:
                        asked = cast("dict[str, types.InputRequest]", requests)
                        return types.InputRequiredResult(input_requests=asked, request_state=end.cursor)
                    said = await _elicit(call, requests)
                answers, said = questions.read(said), None
                try:
                    if answers:
                        record = await self._gateway.find_run(call.principal, call.told.task_id)
                        await answer_run(self._gateway, record, answers)
                    questions.taken(answers)
                    call.given.update(answers)
                except Refused as error:
                    if error.code != "invalid_input":
                        raise
                    questions.misfit(answers, str(error))
                if not questions.left:
                    break
            if questions.left:
                return results.waiting(call.told, end.state, questions.left)
            end, after = None, end.cursor

    async def _follow(self, call: Call, after: str | None) -> StatusUpdateEvent | None:
        """Follow a run and report progress until it is idle, returning None on timeout."""
        gateway, task_id = self._gateway, call.told.task_id
        with gateway.reserve_stream(call.principal) as slot, slot.scope:
            if self._wait is not None:
                slot.scope.deadline = anyio.current_time() + self._wait
            async for each in gateway.runtime.follow(task_id, after=after).pipe(heard()):
                if isinstance(each, StatusUpdateEvent):
                    return each
                await call.tell(each)
        return None

    async def _end(self, record: RunRecord) -> StatusUpdateEvent | None:
        """Return the public end of the last attempt, or None if the run is active."""
        last = await find_last_update(self._gateway, record)
        shown = None if last is None else last.to_public()
        return shown if isinstance(shown, StatusUpdateEvent) else None

    async def _answer(self, end: StatusUpdateEvent) -> Answer:
        """Load the answer's files, and the explanation if it is incomplete."""
        if end.state != "completed":
            return Answer()
        # The answer is usually among the last events, so read all events only if it is not.
        for after in (max(0, end.seq - _NEAR), 0):
            events = await read_log(self._gateway.runtime.log.read, end.task_id, after_seq=after)
            for event in reversed(events):
                if event.branch is not None or event.parent_task_id is not None:
                    continue
                if isinstance(event, ContentCompleteEvent):
                    return Answer(event.files, explain_incomplete(event))
                if isinstance(event, ToolCompleteEvent) and event.answer and event.success:
                    return Answer(event.parts if event.public else ())
        return Answer()


async def _elicit(call: Call, requests: Mapping[str, types.ElicitRequest]) -> dict[str, types.ElicitResult]:
    """Elicit answers sequentially, for clients with protocol versions before 2026."""
    session, said = call.ctx.session, dict[str, types.ElicitResult]()
    belongs = ServerMessageMetadata(related_request_id=call.ctx.request_id)
    for input_id, request in requests.items():
        try:
            said[input_id] = await session.send_request(request, types.ElicitResult, metadata=belongs)
        except (MCPError, ValidationError) as error:
            log.info("a client could not put a question: %s", error)
            said[input_id] = types.ElicitResult(action="cancel")
    return said


def _cursor(record: RunRecord) -> str:
    return f"{record.task_id}/{record.attempt}.{record.seq}.0"
