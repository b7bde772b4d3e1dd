"""Client methods for the problems and texts of all runs, and for exports."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Literal
from urllib.parse import quote

from rxloop.client.connection import Requests, make_run_path
from rxloop.protocol.http_api.experiments import ExperimentInfo, ExperimentPage
from rxloop.protocol.http_api.inspection import ProblemPage, SearchResults


class Findings:
    """Methods of `Client` that read all runs to which the client has access, or export a run."""

    _requests: Requests

    async def recent_problems(
        self,
        *,
        since: datetime | None = None,
        after: str | None = None,
        limit: int | None = None,
        internal: bool = False,
    ) -> ProblemPage:
        """Return the runs with problems, newest first.

        The server stops after half a second. Continue with `after=page.next` until it is None.

        Args:
            since: Earliest creation time of the runs. Without a time zone, it is in UTC.
            after: `next` of the previous page.
            limit: Maximum number of runs. The default is 20.
            internal: Whether to include internal data, if allowed.

        Raises:
            ApiError: If the request fails.
        """
        query = {
            "since": None if since is None else since.isoformat(),
            "after": after,
            "limit": limit,
            "visibility": "all" if internal else None,
        }
        return await self._requests.get(ProblemPage, "problems", query)

    async def search_runs(
        self,
        text: str,
        *,
        kinds: Sequence[str] | None = None,
        since: datetime | None = None,
        after: str | None = None,
        limit: int | None = None,
        internal: bool = False,
    ) -> SearchResults:
        """Search the texts of all runs, ignoring case, newest runs first.

        The server stops after 0.2 seconds. Continue with `after=results.next` until it is None.

        Args:
            text: Text to find.
            kinds: Event kinds to search. The default is all.
            since: Earliest creation time of the runs. Without a time zone, it is in UTC.
            after: `next` of the previous results.
            limit: Number of hits after which the search stops. The default is 50.
            internal: Whether to search internal data, if allowed.

        Raises:
            ApiError: If the request fails.
        """
        query = {
            "q": text,
            "kinds": None if kinds is None else ",".join(kinds),
            "since": None if since is None else since.isoformat(),
            "after": after,
            "limit": limit,
            "visibility": "all" if internal else None,
        }
        return await self._requests.get(SearchResults, "search", query)

    async def experiments(self, *, after: str | None = None) -> ExperimentPage:
        """Return the experiments with runs in the log, by their newest runs.

        The server stops after half a second. Continue with `after=page.next` until it is None.

        Args:
            after: `next` of the previous page.

        Raises:
            ApiError: If the request fails.
        """
        return await self._requests.get(ExperimentPage, "experiments", {"after": after})

    async def experiment(self, name: str) -> ExperimentInfo:
        """Return an experiment with its variants, cases and scores.

        Args:
            name: Name of the experiment.

        Raises:
            ApiError: If the experiment does not exist, or the request fails.
        """
        return await self._requests.get(ExperimentInfo, f"experiments/{quote(name, safe='')}")

    async def export(
        self,
        task_id: str,
        form: Literal["html", "jsonl", "otlp", "pytest", "case", "markdown"] = "jsonl",
        *,
        until: int | None = None,
        internal: bool = False,
    ) -> str:
        """Return a file made from a run, see `rxloop export`.

        Args:
            task_id: Task id.
            form: Form of the file.
            until: `seq` of the last event to include.
            internal: Whether to include internal data, if allowed. `rxloop import` requires it.

        Raises:
            ApiError: If the run does not exist, the form does not support it, or the request fails.
        """
        query = {"form": form, "until": until, "visibility": "all" if internal else None}
        return await self._requests.text(f"{make_run_path(task_id)}/export", query)

    async def graph(self, task_id: str, form: Literal["json", "mermaid", "html"] = "json") -> str:
        """Return the thought graph of a run.

        Raises:
            ApiError: If the run does not exist, or the request fails.
        """
        return await self._requests.text(f"{make_run_path(task_id)}/graph", {"form": form})
