"""The AG-UI adapter."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import orjson
from ag_ui.core import RunAgentInput, ToolMessage
from starlette.requests import HTTPConnection
from starlette.responses import Response
from typing_extensions import Unpack, override

from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import WAITING
from rxloop.protocol.messages import Message
from rxloop.recorded.follow import OVER
from rxloop.recorded.replay import history
from rxloop.run.ownership import wait_stored
from rxloop.runtime.runtime import Runtime, StartOptions
from rxloop.server.agui.frames import WRITER, frame, refusal
from rxloop.server.agui.messages import Telling
from rxloop.server.agui.requests import (
    Abandoned,
    answers_to,
    client_tools,
    messages_of,
    new_messages,
    questions_of,
    reasoning_of,
    said_messages,
)
from rxloop.server.agui.threads import agui_frames, last_run_of, restated, runs_of
from rxloop.server.core import runs
from rxloop.server.core.adapter import Adapter, AdapterOptions, Call, Endpoint, OnDisconnect, check_id, find_only_agent
from rxloop.server.core.errors import Refused
from rxloop.server.core.errors import answer as problem
from rxloop.server.core.gateway import Principal
from rxloop.server.core.stream import EventStream

OptionsOf = Callable[[RunAgentInput, Principal], StartOptions | Awaitable[StartOptions]]
"""Gives what a run is started with, plain or async, of what the client sends, such as its `state`."""


class AgUi(Adapter):
    """AG-UI over a runtime; see `agui`."""

    agent: str

    def __init__(
        self,
        runtime: Runtime,
        agent: str | None,
        options: OptionsOf | None,
        state: str | None,
        on_disconnect: OnDisconnect,
        more: AdapterOptions,
    ) -> None:
        """Create the adapter; see `agui`."""
        super().__init__(runtime, agent=find_only_agent(runtime, agent), on_disconnect=on_disconnect, **more)
        self.options, self.state = options, state

    @override
    def endpoints(self) -> Sequence[Endpoint]:
        return [
            Endpoint("POST", "/", lambda call: _Request(self, call).run(), RunAgentInput),
            Endpoint("POST", "/connect", lambda call: _Request(self, call).connect(), RunAgentInput),
        ]

    @override
    def write_error(self, refused: Refused, request: HTTPConnection) -> Response:
        # A run that never began: clients read it as they read every other failure.
        return _answer(refusal(refused), refused.headers)

    @override
    def write_routing_error(self, refused: Refused, request: HTTPConnection) -> Response:
        return problem(refused)


def agui(
    runtime: Runtime,
    *,
    agent: str | None = None,
    options: OptionsOf | None = None,
    state: str | None = None,
    on_disconnect: OnDisconnect = "cancel",
    **more: Unpack[AdapterOptions],
) -> AgUi:
    """Serve an agent to user interfaces that speak AG-UI, such as CopilotKit or `HttpAgent` of @ag-ui/client.

    `POST /` starts a run or goes on with one; `POST /connect` tells a client that comes back all that it has missed.
    Served by itself it enters the runtime and leaves it; mounted in another application, that one does.

    Args:
        runtime: Has the agents, and the log.
        agent: Which one is served; it may be left out if there is only one.
        options: Gives options for each run that is started, of what the client sends.
        state: The name of the custom event by which a run says what the state of the application is now:
            `ctx.emit(CustomEvent(name=state, data=...))`. Without it a run has no state.
        on_disconnect: What becomes of a run whose client leaves before its end: `cancel`, since this is how clients of
            AG-UI stop a run, or `keep`, for those that reconnect.
        more: `auth`, `limits` and `heartbeat`; see `AdapterOptions`.

    Raises:
        ConfigurationError: An argument is wrong.

    Example:
        >>> app = agui(Runtime({"support": support}, log=SqliteEventLog("app.db")), auth=bearer({"secret": "ann"}))
        >>> uvicorn.run(app)
    """
    return AgUi(runtime, agent, options, state, on_disconnect, more)


def _answer(frames: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(frames, 200, {"cache-control": "no-store", **(headers or {})}, media_type="text/event-stream")


class _Request:
    """One request of a client."""

    def __init__(self, adapter: AgUi, call: Call[RunAgentInput, None]) -> None:
        self._adapter, self._call, self._asked = adapter, call, call.body
        self._gateway, self._runtime, self._principal = call.gateway, call.gateway.runtime, call.principal
        check_id(self._asked.thread_id, "threadId")
        check_id(self._asked.run_id, "runId")

    async def run(self) -> Response:
        """Start a run, go on with one that waits for what the client has, or attach to one that it has started."""
        self._gateway.check_stream(self._principal)
        last = await last_run_of(self._gateway, self._principal, self._asked.thread_id)
        if last is not None and (last.agent_name != self._adapter.agent):
            raise Refused(409, "other_agent", "the thread is one of another agent")
        if last is not None and self._may_answer(last):
            answered = await self._resume(last)
            if answered is not None:
                return answered
        return await self._start()

    async def connect(self) -> Response:
        """Tell a client all of a thread, and how its last run goes on."""
        asked = self._asked
        try:
            records = await runs_of(self._gateway, self._principal, asked.thread_id)
        except Refused:
            # Somebody else's is as if it were not there.
            records = ()
        if not records:
            ids = {"threadId": asked.thread_id, "runId": asked.run_id}
            return _answer(frame("RUN_STARTED", ids) + frame("RUN_FINISHED", ids))
        named = {each.tool_call_id: each.id for each in asked.messages if isinstance(each, ToolMessage)}
        messages = await restated(self._gateway, records[:-1], named)
        messages.had = bool(asked.messages)
        return self._told(await self._runtime.get_record(records[-1].task_id), lambda: messages, activities=True)

    # -- going on with a run

    def _may_answer(self, last: RunRecord) -> bool:
        """Tell whether the request may have an answer to the last run of the thread."""
        if self._asked.resume or last.attempt > 1 or last.state in WAITING:
            return True
        return last.state == "working" and any(isinstance(each, ToolMessage) for each in self._asked.messages)

    async def _resume(self, last: RunRecord) -> Response | None:
        """Answer what a run waits for; None if the client has nothing to say to that."""
        # The client may answer a question that it has read before the log has it.
        await wait_stored(self._runtime.log, last.task_id)
        found = questions_of(await read_log(self._runtime.log.read, last.task_id))
        try:
            answers = answers_to(self._asked, found)
        except Abandoned:
            await self._runtime.cancel(last.task_id, "the client has declined to answer")
            if said_messages(self._asked):
                return None
            return self._restated(await self._runtime.get_record(last.task_id))
        if not answers:
            return None
        self._gateway.check_accepting()
        if answers.keys() & found.early:
            # The questions of the last pause that are left open may be answered with them.
            waiting = found.early | (found.open - found.answered)
            return await self._answer_early(last, {key: value for key, value in answers.items() if key in waiting})
        if not answers.keys() <= found.open:
            if answers.keys() & found.open:
                # Of those that were answered earlier, the results are among the messages for good.
                answers = {key: value for key, value in answers.items() if key in found.open}
            elif last.state in OVER and self._new(await self._stored()):
                # A client does not forget what a run that failed has asked: it answers that with what is new.
                return None
            elif self._asked.resume or self._is_last(answers, found):
                return await self._answered_before(last, answers)
            else:
                return None
        after = max(found.asked_at.values())
        await runs.answer_run(self._gateway, last, answers, self._new(await self._stored()))
        return self._stream(last, Telling(**self._ids(), messages=lambda: messages_of(self._asked), after=after))

    async def _answer_early(self, last: RunRecord, answers: dict[str, Any]) -> Response:
        """Answer questions that a run asks while its other calls are at work."""
        await runs.answer_run(self._gateway, last, answers, self._new(await self._stored()))
        return self._restated(await self._runtime.get_record(last.task_id))

    async def _answered_before(self, last: RunRecord, answers: dict[str, Any]) -> Response:
        """A request that was sent again, since its stream broke off: the answers are there, if they are the same."""
        await runs.answer_run(self._gateway, last, answers)
        return self._restated(await self._runtime.get_record(last.task_id))

    def _is_last(self, answers: dict[str, Any], found: Any) -> bool:
        """Whether the last message of the client is an answer, and not something new behind it."""
        end = self._asked.messages[-1] if self._asked.messages else None
        return isinstance(end, ToolMessage) and end.tool_call_id in found.by_call

    # -- starting a run

    async def _start(self) -> Response:
        said = said_messages(self._asked)
        key = orjson.dumps(["ag-ui", self._asked.thread_id, self._asked.run_id]).decode()
        request = orjson.dumps([message.model_dump(mode="json") for message in said])
        attached = await self._attached(key, request if said else None)
        if attached is not None:
            return attached
        if not said:
            raise Refused(422, "nothing_new", "there is no new message of the user, and nothing waits for an answer")
        options, agent = await self._start_options(), self._adapter.agent
        record = await runs.start_run(
            self._gateway, self._principal, agent, said, key=key, request=request, again=True, **options
        )
        if record.task_id != self._runtime.id_of(agent, key, self._principal.id or None):
            # Another request has brought these messages, and their run goes on.
            return self._restated(record)
        return self._stream(record, Telling(**self._ids(), messages=lambda: messages_of(self._asked)))

    async def _start_options(self) -> StartOptions:
        asked, given = self._asked, StartOptions()
        if self._adapter.options is not None:
            made = self._adapter.options(asked, self._principal)
            given = await made if inspect.isawaitable(made) else made
        sent = {
            "run_id": asked.run_id,
            "state": asked.state,
            "context": [each.model_dump(mode="json") for each in asked.context or ()],
            "forwarded_props": asked.forwarded_props,
        }
        metadata = {**(given.get("metadata") or {}), "agui": {name: each for name, each in sent.items() if each}}
        tools = client_tools(asked)
        return {"client_tools": tools, **given, "context_id": asked.thread_id, "metadata": metadata}

    async def _attached(self, key: str, request: bytes | None) -> Response | None:
        """The run that was started by this request before, if it was.

        Raises:
            Refused: It was another request.
        """
        record = await runs.find_started_run(self._gateway, self._principal, self._adapter.agent, key)
        if record is None or record.state == "submitted":
            return None
        if request is not None and record.metadata.get(runs.REQUEST) != runs.digest_request(request):
            raise Refused(422, "key_used", "this runId stands for another request")
        return self._restated(record)

    # -- what they share

    async def _stored(self) -> Sequence[Message]:
        return await history(self._runtime.log, self._asked.thread_id, public=True)

    def _new(self, stored: Sequence[Message]) -> list[Message]:
        return new_messages(self._asked, stored)

    def _ids(self) -> dict[str, Any]:
        return {"thread_id": self._asked.thread_id, "run_id": self._asked.run_id, "state": self._adapter.state}

    def _restated(self, record: RunRecord) -> Response:
        """Tell of a run from where it stands; the client may have any part of it."""
        return self._told(record, lambda: messages_of(self._asked), activities=False)

    def _told(self, record: RunRecord, messages: Any, *, activities: bool) -> EventStream:
        # Of a run at rest its last event is told, which says how it has ended.
        after = record.seq - 1 if record.state in runs.AT_REST else record.seq
        telling = Telling(
            **self._ids(),
            messages=messages,
            after=after,
            restated=True,
            activities=activities,
            reasoning=reasoning_of(self._asked),
        )
        return self._stream(record, telling, leaves=activities)

    def _stream(self, record: RunRecord, telling: Telling, *, leaves: bool = False) -> EventStream:
        cancels = self._adapter.on_disconnect == "cancel" and not leaves
        return self._call.stream(
            self._runtime.follow(record.task_id).pipe(agui_frames(telling)),
            WRITER,
            on_disconnect=partial(runs.cancel_abandoned_run, self._gateway, record.task_id) if cancels else None,
        )
