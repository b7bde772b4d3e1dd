"""AG-UI adapter."""

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
"""Sync or async function that creates run options from client input, such as its `state`."""


class AgUi(Adapter):
    """Adapter for the AG-UI protocol; see `agui`."""

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
        """Initialize the adapter; see `agui`."""
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
        # The run never started. Clients handle this error like any failed run.
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
    """Serve an agent to AG-UI clients, such as CopilotKit or `HttpAgent` of @ag-ui/client.

    `POST /` starts or resumes a run. `POST /connect` sends a reconnecting client everything it has missed. Standalone,
    the adapter opens and closes the runtime. When mounted, the parent application is responsible for the runtime.

    Args:
        runtime: Runtime with the agents and the event log.
        agent: Name of the agent to serve. Optional if the runtime has only one agent.
        options: Function that creates the options of each new run from the client's input.
        state: Name of the custom event that publishes the application state: `ctx.emit(CustomEvent(name=state,
            data=...))`. By default, runs have no state.
        on_disconnect: Either `cancel` or `keep`, for runs whose client disconnects before the end. AG-UI clients
            disconnect to stop a run, so the default is `cancel`. Use `keep` for clients that reconnect.
        more: `auth`, `limits` and `heartbeat`; see `AdapterOptions`.

    Raises:
        ConfigurationError: If an argument is invalid.

    Example:
        >>> app = agui(Runtime({"support": support}, log=SqliteEventLog("app.db")), auth=bearer({"secret": "ann"}))
        >>> uvicorn.run(app)
    """
    return AgUi(runtime, agent, options, state, on_disconnect, more)


def _answer(frames: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(frames, 200, {"cache-control": "no-store", **(headers or {})}, media_type="text/event-stream")


class _Request:
    """A single client request."""

    def __init__(self, adapter: AgUi, call: Call[RunAgentInput, None]) -> None:
        self._adapter, self._call, self._asked = adapter, call, call.body
        self._gateway, self._runtime, self._principal = call.gateway, call.gateway.runtime, call.principal
        check_id(self._asked.thread_id, "threadId")
        check_id(self._asked.run_id, "runId")

    async def run(self) -> Response:
        """Start a run, resume a waiting run, or attach to a run that this request started earlier."""
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
        """Send a complete thread, including updates from its last run."""
        asked = self._asked
        try:
            records = await runs_of(self._gateway, self._principal, asked.thread_id)
        except Refused:
            # Treat threads of other principals as missing.
            records = ()
        if not records:
            ids = {"threadId": asked.thread_id, "runId": asked.run_id}
            return _answer(frame("RUN_STARTED", ids) + frame("RUN_FINISHED", ids))
        named = {each.tool_call_id: each.id for each in asked.messages if isinstance(each, ToolMessage)}
        messages = await restated(self._gateway, records[:-1], named)
        messages.had = bool(asked.messages)
        return self._told(await self._runtime.get_record(records[-1].task_id), lambda: messages, activities=True)

    # -- resuming a run

    def _may_answer(self, last: RunRecord) -> bool:
        """True if the request may contain answers for the last run of the thread."""
        if self._asked.resume or last.attempt > 1 or last.state in WAITING:
            return True
        return last.state == "working" and any(isinstance(each, ToolMessage) for each in self._asked.messages)

    async def _resume(self, last: RunRecord) -> Response | None:
        """Answer a run's questions, returning None if there is no answer in the request."""
        # The client can answer before the log has stored the question.
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
            # This request may also answer open questions from the last pause.
            waiting = found.early | (found.open - found.answered)
            return await self._answer_early(last, {key: value for key, value in answers.items() if key in waiting})
        if not answers.keys() <= found.open:
            if answers.keys() & found.open:
                # Skip earlier answers, because their results remain in the client's messages.
                answers = {key: value for key, value in answers.items() if key in found.open}
            elif last.state in OVER and self._new(await self._stored()):
                # Clients keep sending the results for a failed run, so start a new run for the new messages.
                return None
            elif self._asked.resume or self._is_last(answers, found):
                return await self._answered_before(last, answers)
            else:
                return None
        after = max(found.asked_at.values())
        await runs.answer_run(self._gateway, last, answers, self._new(await self._stored()))
        return self._stream(last, Telling(**self._ids(), messages=lambda: messages_of(self._asked), after=after))

    async def _answer_early(self, last: RunRecord, answers: dict[str, Any]) -> Response:
        """Answer questions while other calls are still running."""
        await runs.answer_run(self._gateway, last, answers, self._new(await self._stored()))
        return self._restated(await self._runtime.get_record(last.task_id))

    async def _answered_before(self, last: RunRecord, answers: dict[str, Any]) -> Response:
        """Handle a repeated request, whose answers must match the stored answers."""
        await runs.answer_run(self._gateway, last, answers)
        return self._restated(await self._runtime.get_record(last.task_id))

    def _is_last(self, answers: dict[str, Any], found: Any) -> bool:
        """True if an answer is the last message."""
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
            # Another request already sent these messages, so follow its run.
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
        """Return the run started by an identical earlier request, or None.

        Raises:
            Refused: If the run was started by a different request.
        """
        record = await runs.find_started_run(self._gateway, self._principal, self._adapter.agent, key)
        if record is None or record.state == "submitted":
            return None
        if request is not None and record.metadata.get(runs.REQUEST) != runs.digest_request(request):
            raise Refused(422, "key_used", "this runId stands for another request")
        return self._restated(record)

    # -- helpers

    async def _stored(self) -> Sequence[Message]:
        return await history(self._runtime.log, self._asked.thread_id, public=True)

    def _new(self, stored: Sequence[Message]) -> list[Message]:
        return new_messages(self._asked, stored)

    def _ids(self) -> dict[str, Any]:
        return {"thread_id": self._asked.thread_id, "run_id": self._asked.run_id, "state": self._adapter.state}

    def _restated(self, record: RunRecord) -> Response:
        """Follow a run from its current state, starting with a message snapshot."""
        return self._told(record, lambda: messages_of(self._asked), activities=False)

    def _told(self, record: RunRecord, messages: Any, *, activities: bool) -> EventStream:
        # Repeat an idle run's last event, because it contains the outcome.
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
