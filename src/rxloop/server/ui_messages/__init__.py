"""UI message stream adapter, for pages with `useChat` of the AI SDK."""

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
from rxloop.recorded.questions import IDLE_STATES
from rxloop.runtime.runtime import Runtime
from rxloop.server.core import runs
from rxloop.server.core.adapter import Adapter, AdapterOptions, Call, Endpoint, OnDisconnect, read_path_id
from rxloop.server.core.chat_fold import chat
from rxloop.server.core.errors import Refused
from rxloop.server.core.stream import EventStream, FrameWriter
from rxloop.server.ui_messages.chats import NOTE, Chat, answer_questions, check_chat_id, read_note
from rxloop.server.ui_messages.fold import chunks
from rxloop.server.ui_messages.frames import DONE, encode
from rxloop.server.ui_messages.requests import Answers, Post, UserMessage, parse_new, to_messages

_DRAINING = {"type": "error", "errorText": "The server is shutting down. The answer continues; please reconnect."}
_WRITER = FrameWriter(
    "text/event-stream", encode, heartbeat=b": heartbeat\n\n", closing=DONE, draining=encode(_DRAINING)
)
_HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}
_NO_STORE = {"cache-control": "no-store"}


class UiStream(Adapter):
    """Adapter for the AI SDK's UI message stream; see `ui_stream`."""

    def __init__(
        self, runtime: Runtime, path: str, agent: str | None, on_disconnect: OnDisconnect, options: AdapterOptions
    ) -> None:
        """Initialize the adapter; see `ui_stream`."""
        super().__init__(runtime, agent=agent, on_disconnect=on_disconnect, **options)
        if path and (not path.startswith("/") or path.endswith("/") or "{" in path):
            raise ConfigurationError(f"path must start with / and not end with /, such as '/api/chat', got {path!r}")
        self._path = path

    @override
    def endpoints(self) -> Sequence[Endpoint]:
        # The SDK does not encode chat ids in URLs, so they may contain slashes.
        chat_path = f"{self._path}/{{chat_id:rxloop_id}}"
        return [
            Endpoint("POST", self._path or "/", self._post, Post),
            Endpoint("GET", f"{chat_path}/stream", self._resume),
            Endpoint("POST", f"{chat_path}/stop", self._stop),
            Endpoint("GET", chat_path, self._list_messages),
        ]

    @override
    def write_error(self, refused: Refused, request: HTTPConnection) -> Response:
        # Return plain text, because pages display it unchanged.
        fields = "".join(f"; {name}: {text}" for name, text in (refused.fields or {}).items())
        headers = {**_NO_STORE, **refused.headers}
        return PlainTextResponse(f"{refused}{fields}", refused.status, headers)

    # -- routes

    async def _post(self, call: Call[Post, None]) -> Response:
        """Start or regenerate a run or answer its questions, streaming new message content."""
        self.gateway.check_stream(call.principal)
        ui_chat = await Chat(self.gateway, call.principal, call.body.id).load()
        new = parse_new(call.body)
        if isinstance(new, Answers):
            return await self._answer(call, ui_chat, new)
        key = call.principal.get_conversation(call.body.id)
        async with self.gateway.lock_conversation(key, across_processes=True):
            # Repeat the lookup after locking, because another request may have started a run.
            ui_chat = await Chat(self.gateway, call.principal, call.body.id).load()
            record = await self._find_or_start(call, ui_chat, new)
        return self._stream(call, record)

    async def _list_messages(self, call: Call[None, None]) -> Response:
        """Return all chat messages for a page reload."""
        ui_chat = await self._find_chat(call)
        messages = await ui_chat.list_messages() if ui_chat is not None else []
        return Response(orjson.dumps(messages), media_type="application/json", headers=_NO_STORE)

    async def _resume(self, call: Call[None, None]) -> Response:
        """Stream the active run from its first event.

        With `after`, an idle run is also streamed, unless the page already has its end. A run may end between the
        requests for the messages and for the stream.
        """
        record, after = await self._find_latest_run(call), call.request.query_params.get("after")
        if record is None or (record.state in IDLE_STATES and after in (None, record.cursor)):
            return Response(status_code=204, headers=_NO_STORE)
        return self._stream(call, record)

    async def _stop(self, call: Call[None, None]) -> Response:
        """Cancel the active or waiting run."""
        record = await self._find_latest_run(call)
        if record is not None:
            await runs.cancel_run(self.gateway, record.task_id, "The user stopped it.")
        return Response(status_code=204, headers=_NO_STORE)

    # -- helpers

    async def _find_chat(self, call: Call[None, None]) -> Chat | None:
        """Return the chat in the path, or None if it is missing or belongs to another principal."""
        chat_id = read_path_id(call.request, "chat_id")
        try:
            check_chat_id(chat_id)
            ui_chat = await Chat(self.gateway, call.principal, chat_id).load()
        except Refused as refused:
            if refused.status != 404:
                raise
            return None
        return ui_chat if ui_chat.exists else None

    async def _find_latest_run(self, call: Call[None, None]) -> RunRecord | None:
        ui_chat = await self._find_chat(call)
        if ui_chat is None:
            return None
        key = call.principal.get_conversation(ui_chat.conversations[-1])
        latest = await read_log(self.gateway.runtime.log.list_conversation, key, newest_first=True, limit=1)
        return latest[0] if latest else None

    async def _find_or_start(self, call: Call[Post, None], ui_chat: Chat, messages: list[UserMessage]) -> RunRecord:
        """Return the run for a posted message, starting it unless it already exists."""
        agent, newest = self.agent or runs.resolve_agent(self.gateway, call.body.agent), messages[-1]
        chat_run = await ui_chat.find_run(agent, newest.id)
        if chat_run is None:
            new = await ui_chat.select_new(agent, messages)
            return await self._start(call, ui_chat, agent, new)
        record = chat_run.record
        note = read_note(record)
        regenerate = call.body.trigger == "regenerate-message"
        # A regenerated answer is the first run of its conversation, so this is a repeated request.
        is_retry = chat_run.newest and "replaces" in note and record.state not in IDLE_STATES
        if record.metadata.get(runs.REQUEST) == runs.digest_request(newest.to_bytes()) and (not regenerate or is_retry):
            return record
        return await self._start(call, ui_chat, agent, [newest], replaced=record)

    async def _start(
        self,
        call: Call[Post, None],
        ui_chat: Chat,
        agent: str,
        messages: list[UserMessage],
        replaced: RunRecord | None = None,
    ) -> RunRecord:
        body, context_id = call.body, ui_chat.conversations[-1] if replaced is None else ui_chat.next_id()
        own_tools = self.gateway.runtime.agents[agent].definition.client_tool_names
        note: dict[str, Any] = {"new": len(messages), "tools": [*own_tools, *(each.name for each in body.tools)]}
        history = []
        if replaced is not None:
            note["replaces"] = replaced.task_id
            history = await ui_chat.load_history(replaced)
        public = {PUBLIC_METADATA: body.metadata} if body.metadata else {}
        return await runs.start_run(
            self.gateway,
            call.principal,
            agent,
            [*history, *to_messages(messages)],
            key=ui_chat.make_key(messages[-1].id, context_id),
            request=messages[-1].to_bytes(),
            context_id=context_id,
            metadata={**public, NOTE: note},
            client_tools=[dict(each) for each in body.tools] or None,
            locked=True,
        )

    async def _answer(self, call: Call[Post, None], ui_chat: Chat, answers: Answers) -> Response:
        record = await self.gateway.find_run(call.principal, answers.task_id)
        if record.context_id not in ui_chat.conversations:
            raise Refused(404, "not_found", "there is no such run in this conversation")
        new = await answer_questions(self.gateway, call.principal, record, answers, call.body.inputs)
        return self._stream(call, record, after=record.seq if new else answers.seen, resumed=new)

    def _stream(self, call: Call[Any, Any], record: RunRecord, *, after: int = 0, resumed: bool = False) -> EventStream:
        """Stream a run's message until its attempt ends.

        Args:
            call: Current request.
            record: Record of the run, read before any answers were sent.
            after: Sequence number of the last event that the client has.
            resumed: True if the run received answers.
        """
        task_id, known = record.task_id, record.seq
        is_idle = record.state in IDLE_STATES and not resumed
        tools = read_note(record).get("tools", ())
        return call.stream(
            self.gateway.runtime.follow(task_id).pipe(
                _take_until_end(known - 1 if is_idle else known),
                chat(),
                chunks(task_id, record.context_id, client_tools=tools, after=after, known=known),
            ),
            _WRITER,
            on_disconnect=partial(runs.cancel_abandoned_run, self.gateway, task_id)
            if self.on_disconnect == "cancel"
            else None,
            headers=_HEADERS,
        )


def _take_until_end(seq: int) -> EventView:
    """Complete at the next end of an attempt after `seq`, ignoring earlier attempts."""

    def is_before_end(event: Event) -> bool:
        return not (ends_attempt(event) and event.seq > seq)

    return cast("EventView", ops.take_while(is_before_end, inclusive=True))


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
    continues the stream of the active run, or returns 204. With `?after=`, it also streams a run that has ended since
    this cursor. `GET /api/chat/{id}` returns the messages of a chat, for a page reload. `POST /api/chat/{id}/stop`
    cancels the run. A chat id is a conversation id.

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
