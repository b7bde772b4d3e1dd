"""The AI SDK's UI message stream: what `useChat` of a page speaks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import orjson
from reactivex import operators as ops
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, Response
from typing_extensions import Unpack, override

from rxloop.errors import ConfigurationError
from rxloop.operators.views import EventView
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord
from rxloop.protocol.events import Event, ends_attempt
from rxloop.protocol.visibility import PUBLIC_METADATA
from rxloop.runtime.runtime import Runtime
from rxloop.server.core import runs
from rxloop.server.core.adapter import Adapter, AdapterOptions, Call, Endpoint, OnDisconnect, id_in_path
from rxloop.server.core.chat_fold import chat
from rxloop.server.core.errors import Refused
from rxloop.server.core.stream import EventStream, FrameWriter
from rxloop.server.ui_messages.chats import NOTE, Chat, answer, check_chat_id, note_of
from rxloop.server.ui_messages.fold import chunks
from rxloop.server.ui_messages.frames import DONE, encode
from rxloop.server.ui_messages.requests import Answers, Asked, Post, messages_of, new_of

_GOES_AWAY = {"type": "error", "errorText": "The server goes away, and the answer goes on: come back in a moment."}
_WRITER = FrameWriter(
    "text/event-stream", encode, heartbeat=b": heartbeat\n\n", closing=DONE, draining=encode(_GOES_AWAY)
)
_HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
_NEVER_STORED = {"cache-control": "no-store"}


class UiStream(Adapter):
    """Adapter for the AI SDK's UI message stream; see `ui_stream`."""

    def __init__(
        self, runtime: Runtime, path: str, agent: str | None, on_disconnect: OnDisconnect, options: AdapterOptions
    ) -> None:
        """Initialize the adapter; see `ui_stream`."""
        super().__init__(runtime, agent=agent, on_disconnect=on_disconnect, **options)
        if path and (not path.startswith("/") or path.endswith("/") or "{" in path):
            raise ConfigurationError(f"path must begin with / and not end with it, such as '/api/chat', not {path!r}")
        self._path = path

    @override
    def endpoints(self) -> Sequence[Endpoint]:
        # The SDK does not encode chat ids in URLs, so they may contain slashes.
        chat_path = f"{self._path}/{{chat_id:rxloop_id}}"
        return [
            Endpoint("POST", self._path or "/", self._post, Post),
            Endpoint("GET", f"{chat_path}/stream", self._resume),
            Endpoint("POST", f"{chat_path}/stop", self._stop),
            Endpoint("GET", chat_path, self._messages),
        ]

    @override
    def write_error(self, refused: Refused, request: HTTPConnection) -> Response:
        # Return plain text, because pages display it unchanged.
        fields = "".join(f"; {name}: {said}" for name, said in (refused.fields or {}).items())
        headers = {**_NEVER_STORED, **refused.headers}
        return PlainTextResponse(f"{refused}{fields}", refused.status, headers)

    # -- routes

    async def _post(self, call: Call[Post, None]) -> Response:
        """Start or regenerate a run or answer its questions, streaming new message content."""
        self.gateway.check_stream(call.principal)
        found = await Chat(self.gateway, call.principal, call.body.id).find()
        new = new_of(call.body)
        if isinstance(new, Answers):
            return await self._answered(call, found, new)
        async with self.gateway.lock_context(call.body.id, everywhere=True):
            # Repeat the lookup, because another request may have started a run.
            found = await Chat(self.gateway, call.principal, call.body.id).find()
            record = await self._asked(call, found, new)
        return self._streamed(call, record)

    async def _messages(self, call: Call[None, None]) -> Response:
        """Return all chat messages for a page reload."""
        found = await self._chat(call)
        made = await found.messages() if found is not None else []
        return Response(orjson.dumps(made), media_type="application/json", headers=_NEVER_STORED)

    async def _resume(self, call: Call[None, None]) -> Response:
        """Stream the active run from its first event."""
        record = await self._newest(call)
        if record is None or record.state in runs.AT_REST:
            return Response(status_code=204, headers=_NEVER_STORED)
        return self._streamed(call, record)

    async def _stop(self, call: Call[None, None]) -> Response:
        """Cancel the active or waiting run."""
        record = await self._newest(call)
        if record is not None:
            await runs.cancel_run(self.gateway, record.task_id, "The user stopped it.")
        return Response(status_code=204, headers=_NEVER_STORED)

    # -- helpers

    async def _chat(self, call: Call[None, None]) -> Chat | None:
        """Return the chat in the path, or None if it is missing or belongs to another principal."""
        chat_id = id_in_path(call.request, "chat_id")
        try:
            check_chat_id(chat_id)
            found = await Chat(self.gateway, call.principal, chat_id).find()
        except Refused as refused:
            if refused.status != 404:
                raise
            return None
        return found if found.begun else None

    async def _newest(self, call: Call[None, None]) -> RunRecord | None:
        found = await self._chat(call)
        if found is None:
            return None
        context_id = found.conversations[-1]
        found_runs = await read_log(
            self.gateway.runtime.log.list_runs, context_id=context_id, newest_first=True, limit=1
        )
        return found_runs[0] if found_runs else None

    async def _asked(self, call: Call[Post, None], found: Chat, asked: list[Asked]) -> RunRecord:
        """Return the run for a posted message, starting it unless it already exists."""
        agent, newest = self.agent or runs.resolve_agent(self.gateway, call.body.agent), asked[-1]
        place = await found.run_of(agent, newest.id)
        if place is None:
            new = await found.not_begun(agent, asked)
            return await self._started(call, found, agent, new)
        record = place.record
        note = note_of(record)
        anew = call.body.trigger == "regenerate-message"
        # A regenerated answer is the first run of its conversation, so this is a repeated request.
        under_way = place.newest and "replaces" in note and record.state not in runs.AT_REST
        if record.metadata.get(runs.REQUEST) == runs.digest_request(newest.written()) and (not anew or under_way):
            return record
        return await self._started(call, found, agent, [newest], instead_of=record)

    async def _started(
        self,
        call: Call[Post, None],
        found: Chat,
        agent: str,
        asked: list[Asked],
        instead_of: RunRecord | None = None,
    ) -> RunRecord:
        body, context_id = call.body, found.conversations[-1] if instead_of is None else found.next_id()
        own = self.gateway.runtime.agents[agent].definition.client_tool_names
        note: dict[str, Any] = {"new": len(asked), "tools": [*own, *(each.name for each in body.tools)]}
        before = []
        if instead_of is not None:
            note["replaces"] = instead_of.task_id
            before = await found.before(instead_of)
        public = {PUBLIC_METADATA: body.metadata} if body.metadata else {}
        return await runs.start_run(
            self.gateway,
            call.principal,
            agent,
            [*before, *messages_of(asked)],
            key=found.key(asked[-1].id, context_id),
            request=asked[-1].written(),
            context_id=context_id,
            metadata={**public, NOTE: note},
            client_tools=[each.model_dump() for each in body.tools] or None,
            locked=True,
        )

    async def _answered(self, call: Call[Post, None], found: Chat, answers: Answers) -> Response:
        record = await self.gateway.find_run(call.principal, answers.task_id)
        if record.context_id not in found.conversations:
            raise Refused(404, "not_found", "there is no such run in this conversation")
        new = await answer(self.gateway, record, answers, call.body.inputs)
        return self._streamed(call, record, after=record.seq if new else answers.seen, goes_on=new)

    def _streamed(
        self, call: Call[Any, Any], record: RunRecord, *, after: int = 0, goes_on: bool = False
    ) -> EventStream:
        """Stream a run's message until its attempt ends.

        Args:
            call: Current request.
            record: Record of the run, read before any answers were sent.
            after: Sequence number of the last event that the client has.
            goes_on: True if the run received answers.
        """
        task_id, known = record.task_id, record.seq
        over = record.state in runs.AT_REST and not goes_on
        tools = note_of(record).get("tools", ())
        return call.stream(
            self.gateway.runtime.follow(task_id).pipe(
                _until(known - 1 if over else known),
                chat(),
                chunks(task_id, record.context_id, client_tools=tools, after=after, known=known),
            ),
            _WRITER,
            on_disconnect=partial(runs.cancel_abandoned_run, self.gateway, task_id)
            if self.on_disconnect == "cancel"
            else None,
            headers=_HEADERS,
        )


def _until(seq: int) -> EventView:
    """Complete at the next end of an attempt after `seq`, ignoring earlier attempts."""

    def goes_on(event: Event) -> bool:
        return not (ends_attempt(event) and event.seq > seq)

    return cast("EventView", ops.take_while(goes_on, inclusive=True))


def ui_stream(
    runtime: Runtime,
    *,
    agent: str | None = None,
    path: str = "/api/chat",
    on_disconnect: OnDisconnect = "keep",
    **options: Unpack[AdapterOptions],
) -> UiStream:
    """Serve a runtime to `useChat` of the AI SDK 6.

    `POST /api/chat` starts a run or answers its questions, and streams its message. `GET /api/chat/{id}/stream`
    continues the stream of the active run, or returns 204. `GET /api/chat/{id}` returns the messages of a chat, for a
    page reload. `POST /api/chat/{id}/stop` cancels the run. A chat id is a conversation id.

    Args:
        runtime: Runtime with the agents and the event log.
        agent: Name of the agent. Defaults to the agent named in the request, or the runtime's only agent.
        path: URL path of the chat endpoint. The default matches `useChat`.
        on_disconnect: Either `keep` or `cancel`, for runs whose page disconnects before the end. With `keep`, the page
            can reconnect. With `cancel`, `stop()` on the page also cancels the run if it only disconnects.
        options: `auth`, `limits` and `heartbeat`; see `AdapterOptions`.

    Raises:
        ConfigurationError: If an argument is invalid.

    Example:
        >>> app = ui_stream(Runtime({"support": support}, log=SqliteEventLog("app.db")), auth=session)
        >>> uvicorn.run(app)
    """
    return UiStream(runtime, path, agent, on_disconnect, options)
