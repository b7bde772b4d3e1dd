"""Client methods for inspecting recorded runs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict, cast

from rxloop.client.connection import Requests, make_run_path
from rxloop.protocol.events import AnyEvent
from rxloop.protocol.http_api import AgentInfo, AgentList, StateInfo
from rxloop.protocol.http_api.comparison import RunComparison
from rxloop.protocol.http_api.experiments import AddCase, AddedCase
from rxloop.protocol.http_api.inspection import AccessInfo, Outline, ProblemList, RunProblem, SearchPage
from rxloop.protocol.http_api.requests import RequestList, SentRequest


class RunFilters(TypedDict, total=False):
    """Filters of `Client.runs`."""

    agent: str
    """Agent name."""
    owner: str
    """Owner of the runs, which requires the scope `others`. An empty string means no owner."""
    since: datetime
    """Earliest creation time. Without a time zone, it is in UTC."""
    until: datetime
    """Creation time limit, exclusive."""
    model: str
    """Name of the model with which the run started."""
    unfinished: bool
    """True to exclude completed and failed runs."""
    q: str
    """Text in the questions, answers, tool names or ids of a run, ignoring case."""
    details: bool
    """True to include the title, duration, model, calls and problems of each run."""


def to_query(filters: RunFilters) -> dict[str, Any]:
    """Convert filters to query parameters."""
    return {name: each.isoformat() if isinstance(each, datetime) else each for name, each in filters.items()}


class Inspection:
    """Methods of `Client` that read recorded runs without following them."""

    _requests: Requests

    async def state(
        self,
        task_id: str,
        seq: int | None = None,
        *,
        messages_from: int | None = None,
        max_text: int | None = None,
        internal: bool = False,
    ) -> StateInfo:
        """Return a run's state, including messages, open calls and questions.

        Args:
            task_id: Task id.
            seq: Number of the last event to apply. The default is the newest one.
            messages_from: Index of the first message to include. `message_count` then includes the earlier messages.
            max_text: Number of characters to which long texts, lists and objects are shortened, at least 256.
                `omitted` contains the shortened values.
            internal: Whether to include internal data, if allowed.

        Raises:
            ApiError: If the run or event does not exist, or the request fails.
        """
        visibility = "all" if internal else None
        query = {"seq": seq, "messagesFrom": messages_from, "maxText": max_text, "visibility": visibility}
        return await self._requests.get(StateInfo, f"{make_run_path(task_id)}/state", query)

    async def outline(
        self, task_id: str, *, after: int = 0, limit: int | None = None, internal: bool = False
    ) -> Outline:
        """Return the structure of a run without its texts, in columns with one value for each durable event.

        Args:
            task_id: Task id.
            after: `last` of the previous page.
            limit: Maximum number of events. The default is 20,000.
            internal: Whether to include internal data, if allowed.

        Raises:
            ApiError: If the run does not exist, or the request fails.
        """
        query = {"after": after or None, "limit": limit, "visibility": "all" if internal else None}
        return await self._requests.get(Outline, f"{make_run_path(task_id)}/outline", query)

    async def events(
        self,
        task_id: str,
        first: int = 1,
        last: int | None = None,
        *,
        max_text: int | None = None,
        internal: bool = False,
    ) -> list[AnyEvent]:
        """Return recorded durable events of a run, without waiting for further events.

        The server returns at most 400 events. Request the others with the next `first`. Events that the client must not
        receive are missing.

        Args:
            task_id: Task id.
            first: `seq` of the first event.
            last: `seq` of the last event. By default, the newest one.
            max_text: Number of characters to which long texts, lists and objects are shortened, at least 256.
                `event.metadata["rxloop.omitted"]` contains the shortened values.
            internal: Whether to include internal data, if allowed.

        Raises:
            ApiError: If the run does not exist, or the request fails.
        """
        query = {"from": first, "to": last, "maxText": max_text, "visibility": "all" if internal else None}
        return cast("list[AnyEvent]", await self._requests.events(f"{make_run_path(task_id)}/events", query))

    async def problems(self, task_id: str, *, internal: bool = False) -> list[RunProblem]:
        """Return the problems of a run, such as failures, retries, stalls and open questions.

        Args:
            task_id: Task id.
            internal: Whether to include internal data, if allowed.

        Raises:
            ApiError: If the run does not exist, or the request fails.
        """
        query = {"visibility": "all" if internal else None}
        return (await self._requests.get(ProblemList, f"{make_run_path(task_id)}/problems", query)).problems

    async def model_requests(
        self, task_id: str, *, after: int = 0, limit: int | None = None, internal: bool = False
    ) -> RequestList:
        """Return the sizes of the requests that a run sent to models, and the messages that they contained.

        Args:
            task_id: Task id.
            after: `next` of the previous page.
            limit: Maximum number of requests. The default is 5,000.
            internal: Whether to include requests of nested runs that clients must not receive, if allowed.

        Raises:
            ApiError: If the run does not exist, or the request fails.
        """
        query = {"after": after or None, "limit": limit, "visibility": "all" if internal else None}
        return await self._requests.get(RequestList, f"{make_run_path(task_id)}/requests", query)

    async def model_request(
        self, task_id: str, seq: int, *, max_text: int | None = None, internal: bool = False
    ) -> SentRequest:
        """Return a request as it was sent to the model, after all operators and compressors.

        Args:
            task_id: Task id.
            seq: `seq` of the `llm-call` event.
            max_text: Number of characters to which long texts, lists and objects are shortened, at least 256.
                `omitted` contains the shortened values.
            internal: Whether to include the system prompt, tools and other internal data, if allowed.

        Raises:
            ApiError: If the run or the event does not exist, or the request fails.
        """
        query = {"maxText": max_text, "visibility": "all" if internal else None}
        return await self._requests.get(SentRequest, f"{make_run_path(task_id)}/requests/{seq}", query)

    async def search(
        self,
        task_id: str,
        text: str,
        *,
        kinds: Sequence[str] | None = None,
        after: int = 0,
        limit: int | None = None,
        internal: bool = False,
    ) -> SearchPage:
        """Search the texts of a run, ignoring case.

        The server stops after 0.2 seconds. Continue with `after=page.next` until it is None.

        Args:
            task_id: Task id.
            text: Text to find.
            kinds: Event kinds to search. The default is all.
            after: `next` of the previous page.
            limit: Number of hits after which the search stops. The default is 50.
            internal: Whether to search internal data, if allowed.

        Raises:
            ApiError: If the run does not exist, or the request fails.
        """
        query = {
            "q": text,
            "kinds": None if kinds is None else ",".join(kinds),
            "after": after or None,
            "limit": limit,
            "visibility": "all" if internal else None,
        }
        return await self._requests.get(SearchPage, f"{make_run_path(task_id)}/search", query)

    async def diff(self, task_id: str, other: str, *, internal: bool = False) -> RunComparison:
        """Compare two runs, as `rxloop.diff` does.

        Args:
            task_id: Task id of the first run.
            other: Task id of the second run.
            internal: Whether to compare internal data, if allowed.

        Raises:
            ApiError: If one of the runs does not exist, the runs are too large, or the request fails.
        """
        query = {"with": other, "visibility": "all" if internal else None}
        return await self._requests.get(RunComparison, f"{make_run_path(task_id)}/diff", query)

    async def add_case(self, task_id: str, *, expected: str | None = None) -> AddedCase:
        """Append a run to the cases of the server. Requires the scope `cases`.

        Args:
            task_id: Task id.
            expected: Expected answer. None uses the answer of the run, and an empty string omits it.

        Raises:
            ApiError: If the run does not exist, the server has no file for cases or already has this case, or the
                request fails.
        """
        body = AddCase(expected=expected)
        return await self._requests.post(AddedCase, f"{make_run_path(task_id)}/case", body)

    async def me(self) -> AccessInfo:
        """Return the principal of this client, and its permissions on the server.

        Raises:
            ApiError: If the request fails.
        """
        return await self._requests.get(AccessInfo, "me")

    async def agents(self) -> list[AgentInfo]:
        """Return the available agents.

        Raises:
            ApiError: If the request fails.
        """
        return (await self._requests.get(AgentList, "agents")).agents
