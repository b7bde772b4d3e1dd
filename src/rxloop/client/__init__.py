"""The typed client of the HTTP API: runs elsewhere, as streams that any view works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

import httpx
from pydantic import ValidationError

from rxloop.client.connection import Requests, followed
from rxloop.errors import ConfigurationError
from rxloop.protocol.events import AnyEvent, State
from rxloop.protocol.http_api import (
    AgentInfo,
    AgentList,
    CancelRun,
    ContextInfo,
    ContextPage,
    ForkRun,
    MessageList,
    ResumeRun,
    RunInfo,
    RunPage,
    SendMessage,
    StartRun,
    StateInfo,
)
from rxloop.protocol.messages import Message
from rxloop.stream.stream import Stream
from rxloop.support.http_environment import name_variables

__all__ = ["Client", "ContextInfo", "RunInfo", "StateInfo"]


_SILENCE = 60.0
"""Seconds after which a stream without a sign of life counts as broken; the server gives one every 15."""


class Client:
    """A server with the HTTP API, and its runs.

    Example:
        >>> async with Client("https://agents.example.com", token="...") as client:
        ...     run = await client.start("support", "Refund order A1")
        ...     async for text in client.follow(run.task_id).pipe(op.text()):
        ...         print(text, end="")
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        retries: int = 8,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        """Describe a server; nothing is sent yet.

        Args:
            url: Where the API is, with the prefix that it is mounted under.
            token: Says who asks.
            retries: How often in a row what may pass is tried again.
            http: A client of httpx to send over, such as one with certificates or a proxy; it stays open, and `url` and
                `token` are put on each request.
        """
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._own = http is None
        with name_variables():
            self._http = http or httpx.AsyncClient(timeout=httpx.Timeout(_SILENCE, connect=10))
        self._http.base_url = url
        self._http.headers.update(headers)
        self._requests = Requests(self._http, retries)

    async def start(
        self,
        agent: str | None,
        input: str | Sequence[str | Mapping[str, Any]],
        *,
        key: str | None = None,
        context_id: str | None = None,
        when_busy: Literal["wait", "refuse"] = "wait",
        tools: Sequence[Mapping[str, Any]] | None = None,
        settings: Mapping[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None,
        wait: float | None = None,
    ) -> RunInfo:
        """Start a run; it is durable when this returns.

        Args:
            agent: Its name; None where the server has one.
            input: A text, or parts as the API has them, such as `{"type": "image", "url": ...}`.
            key: The same key is the same run; a new one by default, so that trying again starts no second run.
            context_id: The conversation to go on with.
            when_busy: What to do while the conversation has a run under way.
            tools: What this client carries out: `name`, `description` and `parameters` of each tool.
            settings: Of its model calls, such as `{"temperature": 0}`; the server says which it takes.
            metadata: Comes back with the run.
            wait: Seconds to wait for the run to come to rest.

        Raises:
            ApiError: It was refused, or the server is out of reach.
            ConfigurationError: An argument does not fit.
        """
        # Few programs need it, and it takes time to import.
        import uuid6

        given = {
            "input": _said(input),
            "agent": agent,
            "contextId": context_id,
            "whenBusy": when_busy,
            "tools": tools,
            "settings": settings,
            "metadata": metadata,
        }
        body = _body(StartRun, given)
        return await self._requests.post(RunInfo, "runs", body, query={"wait": wait}, key=key or str(uuid6.uuid7()))

    def follow(
        self,
        task_id: str,
        *,
        after: str | None = None,
        kinds: Sequence[str] | None = None,
        branch: str | None = None,
        nested: bool = True,
        until: Literal["attempt", "end"] = "end",
        speed: float | None = None,
        internal: bool = False,
    ) -> Stream[AnyEvent]:
        """The events of a run from the first one, over pauses, attempts and broken connections, until it is over.

        Any view works on it. Each subscriber and each iterator asks the server for itself.

        Args:
            task_id: The run.
            after: The cursor of the last event that the reader has.
            kinds: Only events of these kinds.
            branch: Only this line of a strategy; the empty text is the main line.
            nested: Whether the events of nested agents come, too.
            until: `attempt` ends at a pause.
            speed: Replay what there is; 1 is the recorded pace.
            internal: With what is not for clients, where that is allowed.

        Returns:
            A stream. `ApiError` ends it if the server refuses, or stays out of reach.
        """
        query = {
            "kinds": None if kinds is None else ",".join(kinds),
            "branch": branch,
            "nested": None if nested else "0",
            "until": None if until == "end" else until,
            "speed": speed,
            "visibility": "all" if internal else None,
        }
        given = {name: value for name, value in query.items() if value is not None}
        return followed(self._http, task_id, after, given, self._requests.retries)

    async def record(self, task_id: str, *, wait: float | None = None) -> RunInfo:
        """Where a run stands; with `wait`, once it has come to rest, or after so many seconds.

        Raises:
            ApiError: There is no such run, or the server is out of reach.
        """
        return await self._requests.get(RunInfo, _run(task_id), {"wait": wait})

    async def state(self, task_id: str, seq: int | None = None, *, internal: bool = False) -> StateInfo:
        """How a run stood after one of its events, the newest one by default: its messages, open calls and questions.

        Args:
            task_id: The run.
            seq: The last event that counts.
            internal: With what is not for clients, where that is allowed.

        Raises:
            ApiError: There is no such run or event, or the server is out of reach.
        """
        query = {"seq": seq, "visibility": "all" if internal else None}
        return await self._requests.get(StateInfo, f"{_run(task_id)}/state", query)

    async def graph(self, task_id: str, form: Literal["json", "mermaid", "html"] = "json") -> str:
        """The thoughts of a run, drawn.

        Raises:
            ApiError: There is no such run, or the server is out of reach.
        """
        return await self._requests.text(f"{_run(task_id)}/graph", {"form": form})

    async def runs(
        self,
        *,
        context_id: str | None = None,
        state: State | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> RunPage:
        """One's own runs, newest first, a page at a time.

        Args:
            context_id: Of this conversation.
            state: In this state.
            after: `next` of the page before.
            limit: How many.

        Raises:
            ApiError: There is no such conversation, or the server is out of reach.
        """
        path = "runs" if context_id is None else f"{_context(context_id)}/runs"
        return await self._requests.get(RunPage, path, {"state": state, "after": after, "limit": limit})

    async def contexts(self, *, after: str | None = None, limit: int | None = None) -> ContextPage:
        """One's own conversations, those with the newest runs first, a page at a time.

        Args:
            after: `next` of the page before.
            limit: How many.

        Raises:
            ApiError: It was refused, or the server is out of reach.
        """
        return await self._requests.get(ContextPage, "contexts", {"after": after, "limit": limit})

    async def messages(self, context_id: str) -> list[Message]:
        """The messages of a conversation, oldest first.

        Raises:
            ApiError: There is no such conversation, or the server is out of reach.
        """
        return (await self._requests.get(MessageList, f"{_context(context_id)}/messages")).messages

    async def agents(self) -> list[AgentInfo]:
        """The agents of the server.

        Raises:
            ApiError: It was refused, or the server is out of reach.
        """
        return (await self._requests.get(AgentList, "agents")).agents

    async def answer(self, task_id: str, inputs: Mapping[str, Any], *, wait: float | None = None) -> RunInfo:
        """Answer questions of a run, by their `input_id`; it goes on.

        Raises:
            ApiError: With the code `not_waiting` if the run does not wait for that, `invalid_input` if it does not fit.
        """
        body = _body(ResumeRun, {"inputs": inputs})
        return await self._requests.post(RunInfo, f"{_run(task_id)}/resume", body, query={"wait": wait})

    async def send(
        self, task_id: str, input: str | Sequence[str | Mapping[str, Any]], *, interrupt: bool = False
    ) -> RunInfo:
        """Put a message into a run that goes on; `interrupt` cuts off the answer that is being written.

        Raises:
            ApiError: With the code `run_over` if nobody goes on with the run.
        """
        body = _body(SendMessage, {"input": _said(input), "interrupt": interrupt})
        return await self._requests.post(RunInfo, f"{_run(task_id)}/say", body)

    async def cancel(self, task_id: str, reason: str | None = None) -> RunInfo:
        """Cancel a run that goes on or waits; one that is over stays as it is.

        Raises:
            ApiError: There is no such run, or the server is out of reach.
        """
        body = _body(CancelRun, {"reason": reason})
        return await self._requests.post(RunInfo, f"{_run(task_id)}/cancel", body)

    async def fork(
        self,
        task_id: str,
        at: int,
        *,
        input: str | Sequence[str | Mapping[str, Any]] | None = None,
        results: Mapping[str, Any] | None = None,
    ) -> RunInfo:
        """Begin a new run with a part of another one.

        Args:
            task_id: The run to begin with.
            at: The `seq` of the last event to take over.
            input: In the place of the question for `at=1`, else a new message.
            results: What tools have answered, by the id of the call or by its slot.

        Raises:
            ApiError: There is no such run, event or call.
        """
        said = None if input is None else _said(input)
        body = _body(ForkRun, {"at": at, "results": results, "input": said})
        return await self._requests.post(RunInfo, f"{_run(task_id)}/fork", body)

    async def aclose(self) -> None:
        """Close the connections; a client of httpx that was given stays open."""
        if self._own:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _run(task_id: str) -> str:
    return f"runs/{quote(task_id, safe='')}"


def _context(context_id: str) -> str:
    return f"contexts/{quote(context_id, safe='')}"


def _said(given: str | Sequence[str | Mapping[str, Any]]) -> Any:
    if isinstance(given, str):
        return given
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in given]


def _body(model: Any, fields: Mapping[str, Any]) -> Any:
    try:
        return model.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{where or 'the request'} does not fit: {first['msg']}") from error
