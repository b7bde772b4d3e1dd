"""The AG-UI adapter."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from ag_ui.core import RunAgentInput, ToolMessage
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rxloop.errors import ConfigurationError
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.messages import Message
from rxloop.recorded.follow import OVER
from rxloop.recorded.replay import history
from rxloop.run.sending import wait_stored
from rxloop.runtime.runtime import Runtime, StartOptions
from rxloop.server.agui.frames import FORM, frame, refusal
from rxloop.server.agui.messages import Telling
from rxloop.server.agui.questions import Abandoned, answers_to, questions_of
from rxloop.server.agui.requests import check_ids, client_tools, messages_of, new_messages, reasoning_of, said_messages
from rxloop.server.agui.threads import agui_frames, last_run_of, restated, runs_of
from rxloop.server.core.adapter import Adapter, OnDisconnect
from rxloop.server.core.errors import Refused, on_error, refusal_of
from rxloop.server.core.gateway import Auth, Host, Principal, ServerLimits
from rxloop.server.core.request_body import read_body
from rxloop.server.core.runs import AT_REST, REQUEST, answer, cancelling, digest_of, known, start
from rxloop.server.core.stream import EventStream

log = logging.getLogger("rxloop")

OptionsOf = Callable[[RunAgentInput, Principal], StartOptions | Awaitable[StartOptions]]
"""Gives what a run is started with, plain or async, of what the client sends, such as its `state`."""
_WAITING = ("input-required", "auth-required")


@dataclass(frozen=True, slots=True)
class _Options:
    agent: str
    options: OptionsOf | None
    state: str | None
    heartbeat: float | None
    on_disconnect: OnDisconnect


class AgUi(Adapter):
    """AG-UI over a runtime; see `agui`."""

    def __init__(self, host: Host, options: _Options) -> None:
        """Serve a host; nothing is opened before the application is."""
        self._options = options
        routes = [
            Route("/", self._endpoint(host, _Call.run), methods=["POST"]),
            Route("/connect", self._endpoint(host, _Call.connect), methods=["POST"]),
        ]
        super().__init__(host, routes, on_error)

    def _endpoint(
        self, host: Host, handler: Callable[[_Call], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                principal = await host.principal(request)
                asked = await read_body(RunAgentInput, request, host.limits)
                check_ids(asked)
                return await handler(_Call(host, self._options, principal, asked))
            except Exception as error:
                return _refused(request, error)

        return endpoint


def agui(
    runtime: Runtime,
    *,
    auth: Auth | None = None,
    limits: ServerLimits | None = None,
    agent: str | None = None,
    options: OptionsOf | None = None,
    state: str | None = None,
    heartbeat: float | None = 15.0,
    on_disconnect: OnDisconnect = "cancel",
) -> AgUi:
    """Serve an agent to user interfaces that speak AG-UI, such as CopilotKit or `HttpAgent` of @ag-ui/client.

    `POST /` starts a run or goes on with one; `POST /connect` tells a client that comes back all that it has missed.
    Served by itself it enters the runtime and leaves it; mounted in another application, that one does.

    Args:
        runtime: Has the agents, and the log.
        auth: Tells who asks; `bearer({...})` knows people by tokens. Without it everybody sees all threads.
        limits: How much clients may take.
        agent: Which one is served; it may be left out if there is only one.
        options: Gives options for each run that is started, of what the client sends.
        state: The name of the custom event by which a run says what the state of the application is now:
            `ctx.emit(CustomEvent(name=state, data=...))`. Without it a run has no state.
        heartbeat: Seconds of silence after which a stream gives a sign of life, so that proxies keep it; None for none.
        on_disconnect: What becomes of a run whose client leaves before its end: `cancel`, since this is how clients of
            AG-UI stop a run, or `keep`, for those that reconnect.

    Raises:
        ConfigurationError: An argument is wrong.

    Example:
        >>> app = agui(Runtime({"support": support}, log=SqliteEventLog("app.db")), auth=bearer({"secret": "ann"}))
        >>> uvicorn.run(app)
    """
    names = ", ".join(runtime.agents)
    if agent is None and len(runtime.agents) == 1:
        [agent] = runtime.agents
    if agent is None:
        raise ConfigurationError(
            f"agui(agent=...) has to name one of the agents {names}: make one door for each of them"
        )
    if agent not in runtime.agents:
        raise ConfigurationError(f"agui(agent={agent!r}): there is no such agent; the runtime has {names}")
    if heartbeat is not None and not heartbeat > 0:
        raise ConfigurationError(f"heartbeat must be more than 0 seconds, or None for none, not {heartbeat!r}")
    if on_disconnect not in ("keep", "cancel"):
        raise ConfigurationError(f"on_disconnect must be 'keep' or 'cancel', not {on_disconnect!r}")
    return AgUi(
        Host(runtime, auth, limits or ServerLimits()), _Options(agent, options, state, heartbeat, on_disconnect)
    )


def _refused(request: Request, error: Exception) -> Response:
    """A refusal is a run that never began: clients read it as they read every other failure."""
    refused = refusal_of(error)
    if refused is None:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        refused = Refused(500, "internal", "the server failed")
    return _answer(refusal(refused), refused.headers)


def _answer(frames: bytes, headers: dict[str, str] | None = None) -> Response:
    return Response(frames, 200, {"cache-control": "no-store", **(headers or {})}, media_type="text/event-stream")


class _Call:
    """One request of a client."""

    def __init__(self, host: Host, options: _Options, principal: Principal, asked: RunAgentInput) -> None:
        self._host, self._runtime = host, host.runtime
        self._options, self._principal, self._asked = options, principal, asked

    async def run(self) -> Response:
        """Start a run, go on with one that waits for what the client has, or attach to one that it has started."""
        self._host.check_stream(self._principal)
        last = await last_run_of(self._host, self._principal, self._asked.thread_id)
        if last is not None and (last.agent_name != self._options.agent):
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
            records = await runs_of(self._host, self._principal, asked.thread_id)
        except Refused:
            # Somebody else's is as if it were not there.
            records = ()
        if not records:
            ids = {"threadId": asked.thread_id, "runId": asked.run_id}
            return _answer(frame("RUN_STARTED", ids) + frame("RUN_FINISHED", ids))
        named = {each.tool_call_id: each.id for each in asked.messages if isinstance(each, ToolMessage)}
        messages = await restated(self._host, records[:-1], named)
        messages.had = bool(asked.messages)
        return self._told(await self._runtime.get_record(records[-1].task_id), lambda: messages, activities=True)

    # -- going on with a run

    def _may_answer(self, last: RunRecord) -> bool:
        """Tell whether the request may have an answer to the last run of the thread."""
        if self._asked.resume or last.attempt > 1 or last.state in _WAITING:
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
        self._host.check_open()
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
        await answer(self._host, last, answers, self._new(await self._stored()))
        return self._stream(last, Telling(**self._ids(), messages=lambda: messages_of(self._asked), after=after))

    async def _answer_early(self, last: RunRecord, answers: dict[str, Any]) -> Response:
        """Answer questions that a run asks while its other calls are at work."""
        await answer(self._host, last, answers, self._new(await self._stored()))
        return self._restated(await self._runtime.get_record(last.task_id))

    async def _answered_before(self, last: RunRecord, answers: dict[str, Any]) -> Response:
        """A request that was sent again, since its stream broke off: the answers are there, if they are the same."""
        await answer(self._host, last, answers)
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
        options, agent = await self._start_options(), self._options.agent
        record = await start(self._host, self._principal, agent, said, key=key, request=request, again=True, **options)
        if record.task_id != self._runtime.id_of(agent, key, self._principal.id or None):
            # Another request has brought these messages, and their run goes on.
            return self._restated(record)
        return self._stream(record, Telling(**self._ids(), messages=lambda: messages_of(self._asked)))

    async def _start_options(self) -> StartOptions:
        asked, given = self._asked, StartOptions()
        if self._options.options is not None:
            made = self._options.options(asked, self._principal)
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
        record = await known(self._host, self._principal, self._options.agent, key)
        if record is None or record.state == "submitted":
            return None
        if request is not None and record.metadata.get(REQUEST) != digest_of(request):
            raise Refused(422, "key_used", "this runId stands for another request")
        return self._restated(record)

    # -- what they share

    async def _stored(self) -> Sequence[Message]:
        return await history(self._runtime.log, self._asked.thread_id, public=True)

    def _new(self, stored: Sequence[Message]) -> list[Message]:
        return new_messages(self._asked, stored)

    def _ids(self) -> dict[str, Any]:
        return {"thread_id": self._asked.thread_id, "run_id": self._asked.run_id, "state": self._options.state}

    def _restated(self, record: RunRecord) -> Response:
        """Tell of a run from where it stands; the client may have any part of it."""
        return self._told(record, lambda: messages_of(self._asked), activities=False)

    def _told(self, record: RunRecord, messages: Any, *, activities: bool) -> EventStream:
        # Of a run at rest its last event is told, which says how it has ended.
        after = record.seq - 1 if record.state in AT_REST else record.seq
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
        cancels = self._options.on_disconnect == "cancel" and not leaves
        return EventStream(
            self._host,
            self._principal,
            self._runtime.follow(record.task_id).pipe(agui_frames(telling)),
            FORM,
            heartbeat=self._options.heartbeat,
            on_disconnect=cancelling(self._host, record.task_id) if cancels else None,
        )
