"""A tool call as a run: started or continued, reported while it goes on, and answered."""

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
"""In the metadata of a call: the same call with the same key is the same run, however often it is sent."""
_LONGEST_KEY = 200
PRINCIPAL = "rxloop.principal"
"""Where the scope of a request has who asks."""

_BETWEEN = 0.1
"""Seconds between two messages of progress that may be left out."""
_NEAR = 16
"""How many of the last events of a run are read to find the message with its answer."""
_TRIES = 3
"""How often a person is asked the same question when the answer does not fit."""


@dataclass(slots=True)
class Call:
    """One call of a tool, and the run that it is about."""

    ctx: Context
    principal: Principal
    agent: Offered
    run: Told | None = None
    starting: asyncio.Task[RunRecord] | None = None
    steps: int = 0
    last: float = -math.inf
    given: set[str] = field(default_factory=set[str])
    """The questions that this call has brought an answer to."""

    @property
    def told(self) -> Told:
        """The run, once there is one."""
        assert self.run is not None
        return self.run

    @property
    def modern(self) -> bool:
        """Whether the client is told what is asked by the result of the call, and calls again with the answers."""
        return self.ctx.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def asks(self) -> Asks:
        """Which questions the client can put to a person."""
        if not (self.modern or self.ctx.session.can_send_request):
            return Asks()
        return Asks.of(self.ctx.session.client_capabilities)

    async def tell(self, step: Progress) -> None:
        """Tell the client of a step forward, if it wants to know; the number only ever rises."""
        now = asyncio.get_running_loop().time()
        if step.passing:
            if now - self.last < _BETWEEN:
                return
            self.last = now
        self.steps += 1
        await self.ctx.session.report_progress(self.steps, message=step.message)


class Calls:
    """Carries out the calls of a server's clients."""

    def __init__(
        self, gateway: Gateway, tools: Mapping[str, Offered], *, wait: float | None, on_disconnect: OnDisconnect
    ) -> None:
        if wait is not None and not wait > 0:
            raise ConfigurationError(f"wait must be more than 0 seconds, or None for the end of the run, not {wait!r}")
        self._gateway, self._tools, self._wait, self._on_disconnect = gateway, tools, wait, on_disconnect
        self._by_agent = {each.agent_name: each for each in tools.values()}

    def has(self, name: str) -> bool:
        """Whether there is a tool of that name."""
        return name in self._tools or (name == CONTINUE and self.has_agents)

    @property
    def has_agents(self) -> bool:
        """True if at least one agent is a tool."""
        return bool(self._tools)

    def list_tools(self) -> list[types.Tool]:
        """The tools, as clients see them."""
        return [*(each.tool for each in self._tools.values()), *([continuing()] if self._tools else ())]

    async def call(self, ctx: Context, params: types.CallToolRequestParams) -> Given:
        """Carry out a call; whatever goes wrong becomes a result that a model can read.

        Raises:
            MCPError: There is no such tool.
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
        """A call that is about a run that there is.

        Raises:
            Refused: There is none of these agents, or it is somebody else's.
        """
        record = await self._gateway.find_run(principal, task_id)
        agent = self._by_agent.get(record.agent_name)
        if agent is None:
            raise not_found()
        return Call(ctx, principal, agent, Told(record.task_id, record.context_id)), record

    async def _known(self, ctx: Context, principal: Principal, name: str, state: str) -> tuple[Call, RunRecord]:
        """The run that a client was told to come back to: its state is the cursor of the questions.

        Whoever may see the run may have that state, so there is nothing in it to be sealed.

        Raises:
            MCPError: It is none of this principal's, or not of this tool.
        """
        with suppress(ConfigurationError, Refused):
            call, record = await self._of(ctx, principal, read_cursor(state).task_id)
            if name in (CONTINUE, call.agent.tool.name):
                return call, record
        raise MCPError(types.INVALID_PARAMS, "there is no such requestState")

    def _is_given_up(self, ctx: Context) -> bool:
        """Whether a call that is cancelled takes its run with it."""
        if self._gateway.is_draining:
            return False
        # The SDK has no public way to tell a cancel of the client from a connection that is gone.
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
            # A model may make one up: nothing begins under that name.
            raise Refused(404, "not_found", "there is no such conversation")
        key, said = (call.ctx.meta or {}).get(KEY), json.dumps(dict(arguments), sort_keys=True).encode()
        if key is not None and not (isinstance(key, str) and 0 < len(key) <= _LONGEST_KEY):
            raise ToolError(f"{KEY} in the metadata of a call is a text of up to {_LONGEST_KEY} characters")
        call.starting = asyncio.ensure_future(
            start_run(gateway, call.principal, name, prompt, key=key, request=said, context_id=context_id)
        )
        # A call that is cancelled meanwhile has to know which run is its own.
        record = await asyncio.shield(call.starting)
        call.run = Told(record.task_id, record.context_id)
        await call.tell(Progress(f"{call.agent.tool.name} is at work (run {record.task_id})"))
        if record.state == "submitted":
            return await self._on(call, None, None)
        return await self._on(call, await self._end(record), _cursor(record))

    async def _continue(self, call: Call, record: RunRecord, answers: Mapping[str, Any]) -> Given:
        """Go on with a run by the tool for that."""
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
        """Go on with a run whose caller has been told what is asked."""
        return await self._on(call, await self._end(record), _cursor(record), said)

    async def _on(
        self, call: Call, end: StatusUpdateEvent | None, after: str | None, said: Mapping[str, Any] | None = None
    ) -> Given:
        """Follow a run, and put its questions to the client, until there is a result.

        Args:
            call: The call.
            end: The end of its last attempt, if it is at rest.
            after: Where to read on.
            said: What the client has said to the questions of that end.
        """
        while True:
            end = end or await self._follow(call, after)
            if end is None:
                return results.going_on(call.told)
            if end.state not in WAITING:
                return results.over(call.told, end, call.agent, await self._answer(end))
            if end.pending and call.given.issuperset(each.input_id for each in end.pending):
                # It had come to rest without these answers, and goes on with them.
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
        """Tell the client of a run until it comes to rest; None if it takes longer than a call waits."""
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
        """The end of the last attempt of a run as clients may see it; None if it is not at rest."""
        last = await find_last_update(self._gateway, record)
        shown = None if last is None else last.to_public()
        return shown if isinstance(shown, StatusUpdateEvent) else None

    async def _answer(self, end: StatusUpdateEvent) -> Answer:
        """Find the files of the answer of a run, and why it is incomplete, in the event of the answer."""
        if end.state != "completed":
            return Answer()
        # Nearly always it is one of the last events: all of them are read only if it is not.
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
    """Put questions to whoever sits before a client of a protocol before 2026, one after the other."""
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
