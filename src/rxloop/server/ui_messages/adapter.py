"""The AI SDK adapter."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, cast

import orjson
from reactivex import operators as ops
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rxloop.errors import ConfigurationError, ConflictError
from rxloop.operators.views import EventView
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event, ends_attempt
from rxloop.protocol.visibility import PUBLIC_METADATA
from rxloop.runtime.runtime import Runtime
from rxloop.server.core.adapter import Adapter, OnDisconnect, id_in_path
from rxloop.server.core.chat_fold import chat
from rxloop.server.core.errors import Refused, refusal_of
from rxloop.server.core.gateway import Auth, Host, Principal, ServerLimits
from rxloop.server.core.request_body import read_body
from rxloop.server.core.runs import AT_REST, REQUEST, agent_of, cancelling, digest_of, start
from rxloop.server.core.stream import EventStream, Format
from rxloop.server.ui_messages.chats import NOTE, Chat, answer, check_chat_id, note_of
from rxloop.server.ui_messages.fold import chunks
from rxloop.server.ui_messages.frames import encode, with_done
from rxloop.server.ui_messages.requests import Answers, Asked, Post, messages_of, new_of

log = logging.getLogger("rxloop")

_GOES_AWAY = {"type": "error", "errorText": "The server goes away, and the answer goes on: come back in a moment."}
_FORM = Format("text/event-stream", encode, b"", b": heartbeat\n\n", encode(_GOES_AWAY))
_HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
_NEVER_STORED = {"cache-control": "no-store"}


class UiStream(Adapter):
    """The AI SDK's UI message stream of a runtime; see `ui_stream`."""

    def __init__(
        self, host: Host, path: str, agent: str | None, heartbeat: float | None, on_disconnect: OnDisconnect
    ) -> None:
        """Serve a host; nothing is opened before the application is."""
        self._agent, self._heartbeat, self._on_disconnect = agent, heartbeat, on_disconnect
        routes = [
            Route(path or "/", self._endpoint(self._post), methods=["POST"]),
            # The SDK writes the id of a chat into an address as it is: it may have slashes.
            Route(f"{path}/{{chat_id:rxloop_id}}/stream", self._endpoint(self._resume), methods=["GET"]),
            Route(f"{path}/{{chat_id:rxloop_id}}/stop", self._endpoint(self._stop), methods=["POST"]),
            Route(f"{path}/{{chat_id:rxloop_id}}", self._endpoint(self._messages), methods=["GET"]),
        ]
        super().__init__(host, routes, _on_error)

    def _endpoint(
        self, handler: Callable[[Request, Principal], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                return await handler(request, await self._host.principal(request))
            except Exception as error:
                return await _on_error(request, error)

        return endpoint

    # -- the routes

    async def _post(self, request: Request, principal: Principal) -> Response:
        """Start a run, make its answer anew, or answer its questions; give what is new of its message."""
        body = await read_body(Post, request, self._host.limits)
        self._host.check_stream(principal)
        found = await Chat(self._host, principal, body.id).find()
        new = new_of(body)
        if isinstance(new, Answers):
            return await self._answered(principal, found, body, new)
        async with self._host.in_context(body.id, everywhere=True):
            # Anew: another request may have begun a run of the chat meanwhile.
            found = await Chat(self._host, principal, body.id).find()
            record = await self._asked(principal, found, body, new)
        return self._streamed(principal, record)

    async def _messages(self, request: Request, principal: Principal) -> Response:
        """Give all messages of a chat, for a page that is loaded anew."""
        found = await self._chat(request, principal)
        made = await found.messages() if found is not None else []
        return Response(orjson.dumps(made), media_type="application/json", headers=_NEVER_STORED)

    async def _resume(self, request: Request, principal: Principal) -> Response:
        """Give the run that goes on, from its first event."""
        record = await self._newest(request, principal)
        if record is None or record.state in AT_REST:
            return Response(status_code=204, headers=_NEVER_STORED)
        return self._streamed(principal, record)

    async def _stop(self, request: Request, principal: Principal) -> Response:
        """Cancel the run that goes on or waits."""
        record = await self._newest(request, principal)
        if record is not None:
            with suppress(ConflictError):
                # In its mail, where it stays until somebody has time for it.
                await self._host.runtime.cancel(record.task_id, "The user stopped it.")
        return Response(status_code=204, headers=_NEVER_STORED)

    # -- what they share

    async def _chat(self, request: Request, principal: Principal) -> Chat | None:
        """The chat in the address; None if there is none, or it is somebody else's."""
        chat_id = id_in_path(request, "chat_id")
        try:
            check_chat_id(chat_id)
            found = await Chat(self._host, principal, chat_id).find()
        except Refused as refused:
            if refused.status != 404:
                raise
            return None
        return found if found.begun else None

    async def _newest(self, request: Request, principal: Principal) -> RunRecord | None:
        found = await self._chat(request, principal)
        if found is None:
            return None
        context_id = found.conversations[-1]
        runs = await read_log(self._host.runtime.log.list_runs, context_id=context_id, newest_first=True, limit=1)
        return runs[0] if runs else None

    async def _asked(self, principal: Principal, found: Chat, body: Post, asked: list[Asked]) -> RunRecord:
        """The run that answers what a person has asked; one that there is already is not begun again."""
        agent, newest = self._agent or agent_of(self._host, body.agent), asked[-1]
        place = await found.run_of(agent, newest.id)
        if place is None:
            new = await found.not_begun(agent, asked)
            return await self._started(principal, found, body, agent, new)
        record = place.record
        note = note_of(record)
        anew = body.trigger == "regenerate-message"
        # The first one of a conversation that was begun for it: the same request, posted once more.
        under_way = place.newest and "replaces" in note and record.state not in AT_REST
        if record.metadata.get(REQUEST) == digest_of(newest.written()) and (not anew or under_way):
            return record
        return await self._started(principal, found, body, agent, [newest], instead_of=record)

    async def _started(
        self,
        principal: Principal,
        found: Chat,
        body: Post,
        agent: str,
        asked: list[Asked],
        instead_of: RunRecord | None = None,
    ) -> RunRecord:
        context_id = found.conversations[-1] if instead_of is None else found.next_id()
        own = self._host.runtime.agents[agent].client_tool_names
        note: dict[str, Any] = {"new": len(asked), "tools": [*own, *(each.name for each in body.tools)]}
        before = []
        if instead_of is not None:
            note["replaces"] = instead_of.task_id
            before = await found.before(instead_of)
        public = {PUBLIC_METADATA: body.metadata} if body.metadata else {}
        return await start(
            self._host,
            principal,
            agent,
            [*before, *messages_of(asked)],
            key=found.key(asked[-1].id, context_id),
            request=asked[-1].written(),
            context_id=context_id,
            metadata={**public, NOTE: note},
            client_tools=[each.model_dump() for each in body.tools] or None,
            locked=True,
        )

    async def _answered(self, principal: Principal, found: Chat, body: Post, answers: Answers) -> Response:
        record = await self._host.record(principal, answers.task_id)
        if record.context_id not in found.conversations:
            raise Refused(404, "not_found", "there is no such run in this conversation")
        new = await answer(self._host, record, answers, body.inputs)
        return self._streamed(principal, record, after=record.seq if new else answers.seen, goes_on=new)

    def _streamed(
        self, principal: Principal, record: RunRecord, *, after: int = 0, goes_on: bool = False
    ) -> EventStream:
        """Answer with the message of a run, up to the end of its attempt.

        Args:
            principal: Who reads.
            record: The run as it stands, before it was given any answers.
            after: The `seq` of the last event that the client has.
            goes_on: It was given answers.
        """
        host, task_id = self._host, record.task_id
        over = record.state in AT_REST and not goes_on
        tools = note_of(record).get("tools", ())

        return EventStream(
            host,
            principal,
            host.runtime.follow(task_id).pipe(
                _until(record.seq - 1 if over else record.seq),
                chat(),
                chunks(task_id, record.context_id, client_tools=tools, after=after, known=record.seq),
                with_done(),
            ),
            _FORM,
            heartbeat=self._heartbeat,
            on_disconnect=cancelling(host, task_id) if self._on_disconnect == "cancel" else None,
            headers=_HEADERS,
        )


def _until(seq: int) -> EventView:
    """Complete with the end of the attempt that comes after an event: those before it are what the run has been."""

    def goes_on(event: Event) -> bool:
        return not (ends_attempt(event) and event.seq > seq)

    return cast("EventView", ops.take_while(goes_on, inclusive=True))


async def _on_error(request: Request, error: Exception) -> Response:
    """Say what is wrong in one sentence, since a page shows it as it comes."""
    refused = refusal_of(error)
    if refused is None:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        refused = Refused(500, "internal", "the server failed")
    fields = "".join(f"; {name}: {said}" for name, said in (refused.fields or {}).items())
    headers = {**_NEVER_STORED, **refused.headers}
    return PlainTextResponse(f"{refused}{fields}", refused.status, headers)


def ui_stream(
    runtime: Runtime,
    *,
    auth: Auth | None = None,
    limits: ServerLimits | None = None,
    agent: str | None = None,
    path: str = "/api/chat",
    heartbeat: float | None = 15.0,
    on_disconnect: OnDisconnect = "keep",
) -> UiStream:
    """Serve a runtime to `useChat` of the AI SDK 6.

    `POST /api/chat` starts a run, or answers its questions, and streams its message; `GET /api/chat/{id}/stream` goes
    on with the run that is under way, 204 if there is none; `GET /api/chat/{id}` gives the messages of a chat, for a
    page that is loaded anew; `POST /api/chat/{id}/stop` cancels. The id of a chat is that of a conversation.

    Args:
        runtime: Has the agents, and the log.
        auth: Tells who asks; `bearer({...})` knows people by tokens. Without it everybody sees all chats.
        limits: How much clients may take.
        agent: The name of the agent that answers. Without it, it is the only one, or the one that the body names.
        path: Where it is served; the default is where `useChat` looks for it.
        heartbeat: Seconds of silence after which a stream gives a sign of life; None for none.
        on_disconnect: What becomes of a run whose page leaves before its end: `keep` lets it go on, so that the page
            can come back; `cancel` cancels it, also where `stop()` of the page does no more than leave.

    Raises:
        ConfigurationError: An argument is wrong.

    Example:
        >>> app = ui_stream(Runtime({"support": support}, log=SqliteEventLog("app.db")), auth=session)
        >>> uvicorn.run(app)
    """
    if agent is not None and agent not in runtime.agents:
        raise ConfigurationError(f"there is no agent {agent!r}: the runtime has {', '.join(runtime.agents)}")
    if path and (not path.startswith("/") or path.endswith("/") or "{" in path):
        raise ConfigurationError(f"path must begin with / and not end with it, such as '/api/chat', not {path!r}")
    if heartbeat is not None and not heartbeat > 0:
        raise ConfigurationError(f"heartbeat must be more than 0 seconds, or None for none, not {heartbeat!r}")
    if on_disconnect not in ("keep", "cancel"):
        raise ConfigurationError(f"on_disconnect must be 'keep' or 'cancel', not {on_disconnect!r}")
    return UiStream(Host(runtime, auth, limits or ServerLimits()), path, agent, heartbeat, on_disconnect)
