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

from rxloop.pipeline.log_retry import process_events
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import WAITING
from rxloop.protocol.messages import Message
from rxloop.recorded.follow import FINAL_STATES
from rxloop.recorded.questions import IDLE_STATES
from rxloop.recorded.replay import history
from rxloop.run.ownership import wait_stored
from rxloop.runtime.runtime import Runtime
from rxloop.runtime.validation import StartOptions
from rxloop.server.agui.frames import WRITER, encode_refusal, frame
from rxloop.server.agui.messages import Messages, StreamOptions
from rxloop.server.agui.requests import (
    Abandoned,
    Questions,
    client_tools,
    collect_questions,
    copy_messages,
    is_legacy_client,
    list_new_messages,
    list_reasoning,
    list_user_messages,
    match_answers,
)
from rxloop.server.agui.threads import agui_frames, find_last_run, fold_messages, list_thread_runs
from rxloop.server.core import runs
from rxloop.server.core.adapter import Adapter, AdapterOptions, Call, Endpoint, OnDisconnect, check_id, find_only_agent
from rxloop.server.core.errors import Refused
from rxloop.server.core.errors import write_problem as problem_response
from rxloop.server.core.existing_runs import answer_run
from rxloop.server.core.gateway import Principal
from rxloop.server.core.stream import EventStream

MakeOptions = Callable[[RunAgentInput, Principal], StartOptions | Awaitable[StartOptions]]
"""Sync or async function that creates run options from client input, such as its `state`."""


class AgUi(Adapter):
    """Adapter for the AG-UI protocol; see `agui`."""

    agent: str

    def __init__(
        self,
        runtime: Runtime,
        agent: str | None,
        options: MakeOptions | None,
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
        return _respond(encode_refusal(refused), refused.headers)

    @override
    def write_routing_error(self, refused: Refused, request: HTTPConnection) -> Response:
        return problem_response(refused)


def agui(
    runtime: Runtime,
    *,
    agent: str | None = None,
    options: MakeOptions | None = None,
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


def _respond(frames: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(frames, 200, {"cache-control": "no-store", **(headers or {})}, media_type="text/event-stream")


class _Request:
    """A single client request."""

    def __init__(self, adapter: AgUi, call: Call[RunAgentInput, None]) -> None:
        self._adapter, self._call, self._body = adapter, call, call.body
        self._gateway, self._runtime, self._principal = call.gateway, call.gateway.runtime, call.principal
        check_id(self._body.thread_id, "threadId")
        check_id(self._body.run_id, "runId")

    async def run(self) -> Response:
        """Start a run, resume a waiting run, or attach to a run that this request started earlier."""
        self._gateway.check_stream(self._principal)
        last = await find_last_run(self._gateway, self._principal, self._body.thread_id)
        if last is not None and (last.agent_name != self._adapter.agent):
            raise Refused(409, "other_agent", "the thread belongs to another agent")
        if last is not None and self._may_answer(last):
            response = await self._resume(last)
            if response is not None:
                return response
        return await self._start()

    async def connect(self) -> Response:
        """Send a complete thread, including updates from its last run."""
        body = self._body
        records = await list_thread_runs(self._gateway, self._principal, body.thread_id)
        if not records:
            ids = {"threadId": body.thread_id, "runId": body.run_id}
            return _respond(frame("RUN_STARTED", ids) + frame("RUN_FINISHED", ids))
        result_ids = {each.tool_call_id: each.id for each in body.messages if isinstance(each, ToolMessage)}
        messages = await fold_messages(self._gateway, records[:-1], result_ids)
        messages.has_client_messages = bool(body.messages)
        record = await self._runtime.get_record(records[-1].task_id)
        return self._stream_snapshot(record, lambda: messages, activities=True)

    # -- resuming a run

    def _may_answer(self, last: RunRecord) -> bool:
        """Return True if the request may contain answers for the last run of the thread."""
        if self._body.resume or last.attempt > 1 or last.state in WAITING:
            return True
        return last.state == "working" and any(isinstance(each, ToolMessage) for each in self._body.messages)

    async def _resume(self, last: RunRecord) -> Response | None:
        """Answer a run's questions, or return None if the request contains no answer."""
        # Clients can answer before the log has stored the question.
        await wait_stored(self._runtime.log, last.task_id)
        questions = await process_events(self._runtime.log, last.task_id, collect_questions)
        try:
            answers = match_answers(self._body, questions)
        except Abandoned:
            await self._runtime.cancel(last.task_id, "The client declined to answer.")
            if list_user_messages(self._body):
                return None
            return self._restate(await self._runtime.get_record(last.task_id))
        if not answers:
            return None
        self._gateway.check_accepting()
        if answers.keys() & questions.early:
            # This request may also answer open questions from the last pause.
            pending = questions.early | (questions.open - questions.answered)
            return await self._answer_early(last, {key: value for key, value in answers.items() if key in pending})
        if not answers.keys() <= questions.open:
            if answers.keys() & questions.open:
                # Skip earlier answers, because their results remain in the client's messages.
                answers = {key: value for key, value in answers.items() if key in questions.open}
            elif last.state in FINAL_STATES and await self._list_new():
                # Clients keep sending the results for a failed run, so start a new run for the new messages.
                return None
            elif self._body.resume or self._is_last(questions):
                return await self._repeat_answer(last, answers)
            else:
                return None
        after = max(questions.asked_at.values())
        await answer_run(self._gateway, self._principal, last, answers, await self._list_new())
        return self._stream(last, StreamOptions(**self._get_options(), make_messages=self._copy_messages, after=after))

    async def _answer_early(self, last: RunRecord, answers: dict[str, Any]) -> Response:
        """Answer questions while other calls are still running."""
        await answer_run(self._gateway, self._principal, last, answers, await self._list_new())
        return self._restate(await self._runtime.get_record(last.task_id))

    async def _repeat_answer(self, last: RunRecord, answers: dict[str, Any]) -> Response:
        """Handle a repeated request, whose answers must match the stored answers."""
        await answer_run(self._gateway, self._principal, last, answers)
        return self._restate(await self._runtime.get_record(last.task_id))

    def _is_last(self, questions: Questions) -> bool:
        """Return True if the last message is an answer."""
        last = self._body.messages[-1] if self._body.messages else None
        return isinstance(last, ToolMessage) and last.tool_call_id in questions.by_call

    # -- starting a run

    async def _start(self) -> Response:
        messages = list_user_messages(self._body)
        key = orjson.dumps(["ag-ui", self._body.thread_id, self._body.run_id]).decode()
        request = orjson.dumps([message.model_dump(mode="json") for message in messages])
        response = await self._attach(key, request if messages else None)
        if response is not None:
            return response
        if not messages:
            raise Refused(422, "nothing_new", "there is no new user message, and no run is waiting for an answer")
        options, agent = await self._start_options(), self._adapter.agent
        record = await runs.start_run(
            self._gateway, self._principal, agent, messages, key=key, request=request, rerun=True, **options
        )
        if record.task_id != self._runtime.derive_run_id(agent, key, self._principal.id or None):
            # Another request already sent these messages, so follow its run.
            return self._restate(record)
        return self._stream(record, StreamOptions(**self._get_options(), make_messages=self._copy_messages))

    async def _start_options(self) -> StartOptions:
        body, start_options = self._body, StartOptions()
        if self._adapter.options is not None:
            result = self._adapter.options(body, self._principal)
            start_options = await result if inspect.isawaitable(result) else result
        client_input = {
            "run_id": body.run_id,
            "state": body.state,
            "context": [each.model_dump(mode="json") for each in body.context or ()],
            "forwarded_props": body.forwarded_props,
        }
        client_input = {name: each for name, each in client_input.items() if each}
        metadata = {**(start_options.get("metadata") or {}), "agui": client_input}
        tools = client_tools(body)
        return {"client_tools": tools, **start_options, "context_id": body.thread_id, "metadata": metadata}

    async def _attach(self, key: str, request: bytes | None) -> Response | None:
        """Attach to the run of an identical earlier request, or return None.

        Raises:
            Refused: If a different request started the run.
        """
        record = await runs.find_started_run(self._gateway, self._principal, self._adapter.agent, key)
        if record is None or record.state == "submitted":
            return None
        if request is not None and record.metadata.get(runs.REQUEST) != runs.digest_request(request):
            raise Refused(422, "key_used", "this runId was already used for a different request")
        return self._restate(record)

    # -- helpers

    async def _list_new(self) -> list[Message]:
        log, thread_id = self._runtime.log, self._body.thread_id
        return list_new_messages(self._body, await history(log, thread_id, owner=self._principal.id, public=True))

    def _copy_messages(self) -> Messages:
        return copy_messages(self._body)

    def _get_options(self) -> dict[str, Any]:
        body = self._body
        is_legacy = is_legacy_client(body.protocol_version)
        return {
            "thread_id": body.thread_id,
            "run_id": body.run_id,
            "state": self._adapter.state,
            "is_legacy": is_legacy,
        }

    def _restate(self, record: RunRecord) -> Response:
        """Follow a run from its current state, starting with a message snapshot."""
        return self._stream_snapshot(record, self._copy_messages, activities=False)

    def _stream_snapshot(self, record: RunRecord, load: Callable[[], Messages], *, activities: bool) -> EventStream:
        # Repeat an idle run's last event, because it contains the outcome.
        after = record.seq - 1 if record.state in IDLE_STATES else record.seq
        options = StreamOptions(
            **self._get_options(),
            make_messages=load,
            after=after,
            snapshot=True,
            activities=activities,
            reasoning=list_reasoning(self._body),
        )
        return self._stream(record, options, keep=activities)

    def _stream(self, record: RunRecord, options: StreamOptions, *, keep: bool = False) -> EventStream:
        should_cancel = self._adapter.on_disconnect == "cancel" and not keep
        return self._call.stream(
            self._runtime.follow(record.task_id).pipe(agui_frames(options)),
            WRITER,
            on_disconnect=partial(runs.cancel_abandoned_run, self._gateway, record.task_id) if should_cancel else None,
        )
