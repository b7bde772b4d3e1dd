"""Typed client for the HTTP API, with runs as streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self
from urllib.parse import quote

import httpx
from pydantic import ValidationError
from typing_extensions import Unpack

from rxloop.client.connection import Requests, ResponseBounds, Server, follow_run, make_run_path
from rxloop.client.findings import Findings
from rxloop.client.inspection import Inspection, RunFilters, to_query
from rxloop.errors import ConfigurationError
from rxloop.protocol.events import AnyEvent, State
from rxloop.protocol.http_api import (
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
    UpdateGoals,
)
from rxloop.protocol.http_api.comparison import RunComparison
from rxloop.protocol.http_api.experiments import ExperimentInfo, ExperimentPage
from rxloop.protocol.http_api.inspection import (
    AccessInfo,
    Outline,
    ProblemPage,
    RunProblem,
    RunProblems,
    SearchPage,
    SearchResults,
)
from rxloop.protocol.http_api.requests import RequestList, SentRequest
from rxloop.protocol.ids import make_id
from rxloop.protocol.messages import Message
from rxloop.protocol.tool_events import GoalChange
from rxloop.stream.stream import Stream
from rxloop.support.http_environment import name_variables

__all__ = [
    "AccessInfo",
    "Client",
    "ContextInfo",
    "ExperimentInfo",
    "ExperimentPage",
    "Outline",
    "ProblemPage",
    "RequestList",
    "ResponseBounds",
    "RunComparison",
    "RunInfo",
    "RunProblem",
    "RunProblems",
    "SearchPage",
    "SearchResults",
    "SentRequest",
    "StateInfo",
]


_READ_TIMEOUT = 60.0
"""Seconds after which a silent stream is considered broken. The server sends a heartbeat every 15 seconds."""


class Client(Inspection, Findings):
    """Client for an rxloop server.

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
        bounds: ResponseBounds | None = None,
    ) -> None:
        """Create a client. No request is sent yet.

        Args:
            url: Base URL of the API, including its path prefix. Redirects are not followed.
            token: Bearer token.
            retries: Maximum number of consecutive retries after temporary failures.
            http: Custom httpx client, for example with certificates or a proxy. It is not closed, and several clients
                can share it. Its own headers, cookies and `auth` are sent with each request, including cookies that
                earlier responses have set. Do not share it between users if a server or proxy sets session cookies.
            bounds: Limits of responses. The default is `ResponseBounds()`.

        Raises:
            ConfigurationError: If the URL is not an absolute HTTP URL.
        """
        self._owns_client = http is None
        with name_variables():
            self._http = http or httpx.AsyncClient(timeout=httpx.Timeout(_READ_TIMEOUT, connect=10))
        self._server = Server(self._http, url, token, bounds or ResponseBounds())
        self._requests = Requests(self._server, retries)

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
        """Start a run. The run is durable when this method returns.

        Args:
            agent: Agent name. Optional if the server has only one agent.
            input: Text, or parts in the API's format, such as `{"type": "image", "url": ...}`.
            key: Idempotency key. The default is a new key, so that retries don't start a second run.
            context_id: Conversation to continue.
            when_busy: Whether to wait or fail if the conversation has an active run.
            tools: Tools that this client executes, each with `name`, `description` and `parameters`.
            settings: Model settings such as `{"temperature": 0}`. The server decides which ones are allowed.
            metadata: Metadata that is returned with the run.
            wait: Time to wait until the run is idle, in seconds.

        Raises:
            ApiError: If the request fails.
            ConfigurationError: If an argument is invalid.
        """
        fields = {
            "input": _convert_input(input),
            "agent": agent,
            "contextId": context_id,
            "whenBusy": when_busy,
            "tools": tools,
            "settings": settings,
            "metadata": metadata,
        }
        body = _make_body(StartRun, fields)
        return await self._requests.post(RunInfo, "runs", body, query={"wait": wait}, key=key or make_id())

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
        """Return the events of a run until it has ended, across pauses, attempts and broken connections.

        Any view can be used. Each subscriber and iterator sends its own requests.

        Args:
            task_id: Task id.
            after: Cursor of the last event that the reader has.
            kinds: Event kinds to include. The default is all.
            branch: Strategy branch to include. An empty string selects the main branch.
            nested: Whether to include events from nested agents.
            until: `attempt` ends the stream at a pause.
            speed: Replay speed for existing events, where 1 is the original speed.
            internal: Whether to include internal data, if allowed.

        Returns:
            Stream of events. It fails with `ApiError` if the server refuses the request or remains unreachable.
        """
        query = {
            "kinds": None if kinds is None else ",".join(kinds),
            "branch": branch,
            "nested": None if nested else "0",
            "until": None if until == "end" else until,
            "speed": speed,
            "visibility": "all" if internal else None,
        }
        query = {name: value for name, value in query.items() if value is not None}
        return follow_run(self._server, task_id, after, query, self._requests.retries)

    async def record(self, task_id: str, *, wait: float | None = None) -> RunInfo:
        """Return a run record. If `wait` is set, wait up to this number of seconds until the run is idle.

        Raises:
            ApiError: If the run does not exist, or the request fails.
        """
        return await self._requests.get(RunInfo, make_run_path(task_id), {"wait": wait})

    async def runs(
        self,
        *,
        context_id: str | None = None,
        state: State | None = None,
        after: str | None = None,
        limit: int | None = None,
        **filters: Unpack[RunFilters],
    ) -> RunPage:
        """Return a page of the caller's runs, newest first.

        Args:
            context_id: Only include runs in this conversation.
            state: Only include runs in this state.
            after: `next` of the previous page.
            limit: Maximum number of runs.
            filters: Further filters, see `RunFilters`. With `q` or `model`, a page can have fewer runs than `limit`,
                although another page follows.

        Raises:
            ApiError: If the conversation does not exist, or the request fails.
        """
        query = {"state": state, "after": after, "limit": limit}
        if filters:
            return await self._requests.get(RunPage, "runs", {**query, "contextId": context_id, **to_query(filters)})
        path = "runs" if context_id is None else f"{_context_path(context_id)}/runs"
        return await self._requests.get(RunPage, path, query)

    async def pending(
        self,
        *,
        context_id: str | None = None,
        agent: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> RunPage:
        """Return a page of the caller's runs with unanswered questions, newest first.

        Args:
            context_id: Only include runs in this conversation.
            agent: Only include runs of this agent.
            after: `next` of the previous page.
            limit: Maximum number of runs.

        Raises:
            ApiError: If the request fails.
        """
        query = {"contextId": context_id, "agent": agent, "after": after, "limit": limit}
        return await self._requests.get(RunPage, "pending", query)

    async def contexts(self, *, after: str | None = None, limit: int | None = None) -> ContextPage:
        """Return a page of the caller's conversations, starting with those that have the newest runs.

        Args:
            after: `next` of the previous page.
            limit: Maximum number of conversations.

        Raises:
            ApiError: If the request fails.
        """
        return await self._requests.get(ContextPage, "contexts", {"after": after, "limit": limit})

    async def messages(self, context_id: str, *, owner: str | None = None) -> list[Message]:
        """Return a conversation's messages in chronological order.

        Args:
            context_id: Conversation of the caller.
            owner: Other owner of the conversation, which requires the scope `others`. An empty string means no owner.

        Raises:
            ApiError: If the conversation does not exist, or the request fails.
        """
        path = f"{_context_path(context_id)}/messages"
        return (await self._requests.get(MessageList, path, {"owner": owner})).messages

    async def answer(self, task_id: str, inputs: Mapping[str, Any], *, wait: float | None = None) -> RunInfo:
        """Answer open questions by `input_id` and resume the run.

        Raises:
            ApiError: `not_waiting` if the run does not wait for this input, or `invalid_input` if an answer is invalid.
        """
        body = _make_body(ResumeRun, {"inputs": inputs})
        return await self._requests.post(RunInfo, f"{make_run_path(task_id)}/resume", body, query={"wait": wait})

    async def resume(self, task_id: str, *, after: str | None = None, wait: float | None = None) -> RunInfo:
        """Resume a run that was canceled, or failed with a retryable error. Active runs are not changed.

        Args:
            task_id: The run.
            after: Cursor of the last known event, `RunInfo.cursor`. If the run has continued since, it is not changed,
                so a repeated request resumes the run once.
            wait: Seconds to wait for the end of the attempt.

        Raises:
            ApiError: `run_over` if the run is completed or its failure is permanent, `context_busy` if another run of
                the conversation is active, or `invalid` if the run waits for answers.
        """
        body = _make_body(ResumeRun, {"after": after})
        return await self._requests.post(RunInfo, f"{make_run_path(task_id)}/resume", body, query={"wait": wait})

    async def send(
        self, task_id: str, input: str | Sequence[str | Mapping[str, Any]], *, interrupt: bool = False
    ) -> RunInfo:
        """Send a message to an active run. `interrupt` stops the current answer.

        Raises:
            ApiError: `run_over` if the run is not active.
        """
        body = _make_body(SendMessage, {"input": _convert_input(input), "interrupt": interrupt})
        return await self._requests.post(RunInfo, f"{make_run_path(task_id)}/say", body)

    async def update_goals(self, task_id: str, *changes: GoalChange) -> RunInfo:
        """Add or change goals of an active or waiting run.

        Raises:
            ApiError: `invalid` if a change is invalid, or `run_over` if the run is not active.
        """
        body = _make_body(UpdateGoals, {"changes": changes})
        return await self._requests.post(RunInfo, f"{make_run_path(task_id)}/goals", body)

    async def cancel(self, task_id: str, reason: str | None = None) -> RunInfo:
        """Cancel an active or waiting run. Finished runs are not affected.

        Raises:
            ApiError: If the run does not exist, or the request fails.
        """
        body = _make_body(CancelRun, {"reason": reason})
        return await self._requests.post(RunInfo, f"{make_run_path(task_id)}/cancel", body)

    async def fork(
        self,
        task_id: str,
        at: int,
        *,
        input: str | Sequence[str | Mapping[str, Any]] | None = None,
        results: Mapping[str, Any] | None = None,
        model: str | None = None,
        settings: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> RunInfo:
        """Start a new run from a prefix of another one.

        Args:
            task_id: Run to fork.
            at: `seq` of the last event to copy.
            input: Replaces the prompt if `at` is 1, and is added as a new message otherwise.
            results: Tool results, by call id or slot.
            model: Model for the new calls, one of `models` of the agent.
            settings: Model settings, as in `start`.
            key: Idempotency key, as in `start`.

        Raises:
            ApiError: If the run, event or call does not exist, or the model or a setting is not allowed.
        """
        converted = None if input is None else _convert_input(input)
        fields = {"at": at, "results": results, "input": converted, "model": model, "settings": settings}
        body = _make_body(ForkRun, fields)
        return await self._requests.post(RunInfo, f"{make_run_path(task_id)}/fork", body, key=key or make_id())

    async def aclose(self) -> None:
        """Close the connections, except for a custom httpx client."""
        if self._owns_client:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


def _context_path(context_id: str) -> str:
    return f"contexts/{quote(context_id, safe='')}"


def _convert_input(input: str | Sequence[str | Mapping[str, Any]]) -> Any:
    if isinstance(input, str):
        return input
    return [{"type": "text", "text": part} if isinstance(part, str) else part for part in input]


def _make_body(model: Any, fields: Mapping[str, Any]) -> Any:
    try:
        return model.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{field or 'the request'} is invalid: {first['msg']}") from error
