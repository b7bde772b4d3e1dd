"""Differences between two runs over HTTP, and forks with another model or other settings."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, ModelSettings, Runtime, SqliteEventLog, diff, tool
from rxloop.client import Client
from rxloop.errors import ApiError, ConfigurationError
from rxloop.recorded import RunDiff
from rxloop.recorded.diff import compare_runs
from rxloop.server import Principal, api, bearer
from rxloop.server.core import computations
from rxloop.server.http import comparison
from rxloop.testing import ScriptedModel, call
from support.api_server import TOKENS, make_client, serve_api
from support.hidden_tools import MARK, fail, peek

DEVELOPER = {**TOKENS, "developer-key": Principal("ann", frozenset({"effects"}))}


@tool
async def look(place: str) -> str:
    """Look at a place."""
    return f"seen {place}"


def make_clerk(*turns: Any, **options: Any) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), name="clerk", tools=[look, peek, fail], thoughts=False, **options)


async def find_seq(client: Client, task_id: str, kind: str) -> int:
    return next(each.seq for each in await client.events(task_id) if each.kind == kind)


async def test_first_difference_of_a_fork_is_its_changed_result() -> None:
    clerk = make_clerk(call("look", place="Oslo"), "It is fine.", "It is closed.")
    async with (
        serve_api(clerk, auth=bearer(DEVELOPER)) as served,
        Client(served.url, token="developer-key") as ann,
    ):
        run = await ann.start(None, "Look", wait=10)
        at = await find_seq(ann, run.task_id, "tool-complete")
        forked = await ann.fork(run.task_id, at, results={"1/0": "closed"})
        forked = await ann.record(forked.task_id, wait=10)
        found = await ann.diff(run.task_id, forked.task_id)
        kinds = {each.seq: each.kind for each in await ann.events(run.task_id)}
        expected = await diff(served.runtime.log, run.task_id, forked.task_id)
    assert found.at == (at, at)
    assert found.shared == expected.shared
    first, *rest = found.pairs
    assert (first.change, first.a, first.b, first.count) == ("same", 1, 1, found.shared)
    assert [each.change for each in rest] == ["changed", "same", "changed", "changed"]
    assert [kinds[each.a or 0] for each in rest] == ["tool-complete", "llm-call", "content-complete", "status-update"]
    assert (found.a.cost.model_calls, found.a.cost.tool_calls, found.a.cost.dollars) == (2, 1, None)
    assert (found.a.cost_since.model_calls, found.b.cost_since.tool_calls) == (1, 0)
    assert (found.a.state, found.b.state, found.b.seq) == ("completed", "completed", forked.seq)


async def test_equal_runs_have_no_difference() -> None:
    clerk = make_clerk(call("look", place="Oslo"), "Fine.", call("look", place="Oslo"), "Fine.")
    async with serve_api(clerk) as served, Client(served.url, token="ann-key") as ann:
        a = await ann.start(None, "Look", wait=10)
        b = await ann.start(None, "Look", wait=10)
        found = await ann.diff(a.task_id, b.task_id)
        itself = await ann.diff(a.task_id, a.task_id)
    assert (found.at, itself.at) == (None, None)
    [pair] = found.pairs
    assert (pair.change, pair.count, pair.a, pair.last) == ("same", found.shared, 1, (a.seq, b.seq))


async def test_events_that_only_one_run_has_have_no_counterpart() -> None:
    both = [call("look", place="Oslo"), call("look", place="Bergen")]
    clerk = make_clerk(both, "Fine.", call("look", place="Oslo"), "Fine.")
    async with serve_api(clerk) as served, Client(served.url, token="ann-key") as ann:
        a = await ann.start(None, "Look", wait=10)
        b = await ann.start(None, "Look", wait=10)
        found = await ann.diff(a.task_id, b.task_id)
        back = await ann.diff(b.task_id, a.task_id)
        events = {each.seq: each for each in await ann.events(a.task_id)}
    missing = [each for each in found.pairs if each.change == "only"]
    assert [(events[each.a or 0].kind, each.b) for each in missing] == [("tool-start", None), ("tool-complete", None)]
    assert {getattr(events[each.a or 0], "index", None) for each in missing} == {1}
    assert sorted(each.b or 0 for each in back.pairs if each.change == "only") == [each.a for each in missing]
    assert sum(each.count for each in found.pairs) == sum(each.count for each in back.pairs)


async def test_foreign_runs_cannot_be_compared() -> None:
    async with serve_api(make_clerk("A.", "B.")) as served, Client(served.url, token="ann-key") as ann:
        mine = await ann.start(None, "Ask", wait=10)
        async with Client(served.url, token="bob-key") as bob:
            other = await bob.start(None, "Ask", wait=10)
        for pair in ((mine.task_id, other.task_id), (other.task_id, mine.task_id), (mine.task_id, "unknown")):
            with pytest.raises(ApiError) as refused:
                await ann.diff(*pair)
            assert refused.value.status == 404
        async with Client(served.url, token="root-key") as root:
            assert (await root.diff(mine.task_id, other.task_id)).at is not None
        async with make_client(served.url) as client:
            assert (await client.get(f"/runs/{mine.task_id}/diff")).status_code == 422


async def test_public_comparison_contains_no_internal_data() -> None:
    clerk = make_clerk(call(f"peek_{MARK}", at="x"), "Done.", call(f"peek_{MARK}", at="y"), "Done.")
    async with serve_api(clerk) as served, Client(served.url, token="root-key") as root:
        a = await root.start(None, "Look", wait=10)
        b = await root.start(None, "Look", wait=10)
        public = await root.diff(a.task_id, b.task_id)
        internal = await root.diff(a.task_id, b.task_id, internal=True)
    assert public.at is None
    assert (public.a.cost.tool_calls, internal.a.cost.tool_calls) == (0, 1)
    assert internal.at is not None


async def test_internal_comparison_requires_the_scope() -> None:
    async with serve_api(make_clerk("A.")) as served, Client(served.url, token="ann-key") as ann:
        run = await ann.start(None, "Ask", wait=10)
        with pytest.raises(ApiError) as refused:
            await ann.diff(run.task_id, run.task_id, internal=True)
    assert refused.value.status == 403


@pytest.mark.parametrize("limit", ["MAX_EVENTS", "MAX_BYTES"])
async def test_runs_that_are_too_large_are_refused(limit: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = SqliteEventLog(tmp_path / "runs.db")
    async with serve_api(make_clerk("A."), log=log) as served, Client(served.url, token="ann-key") as ann:
        run = await ann.start(None, "Ask", wait=10)
        if limit == "MAX_EVENTS":
            monkeypatch.setattr(comparison, limit, run.seq)
        else:
            monkeypatch.setattr(computations, limit, 3_000)
        with pytest.raises(ApiError) as refused:
            await ann.diff(run.task_id, run.task_id)
    await log.aclose()
    assert (refused.value.status, refused.value.code) == (422, "too_large")


async def test_long_list_of_pairs_is_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "MAX_PAIRS", 2)
    clerk = make_clerk(call("look", place="Oslo"), "A.", call("look", place="Bergen"), "B.")
    async with serve_api(clerk) as served, Client(served.url, token="ann-key") as ann:
        a = await ann.start(None, "Look", wait=10)
        b = await ann.start(None, "Look", wait=10)
        found = await ann.diff(a.task_id, b.task_id)
    assert len(found.pairs) == 2
    assert found.more == 5


async def test_comparison_is_computed_outside_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[int] = set()

    def compare(*args: Any, **options: Any) -> RunDiff:
        threads.add(threading.get_ident())
        return compare_runs(*args, **options)

    monkeypatch.setattr(comparison, "compare_runs", compare)
    async with serve_api(make_clerk("A.")) as served, Client(served.url, token="ann-key") as ann:
        run = await ann.start(None, "Ask", wait=10)
        await ann.diff(run.task_id, run.task_id)
    assert len(threads) == 1
    assert threading.get_ident() not in threads


async def test_fork_uses_an_allowed_model_and_settings() -> None:
    clerk, cheap = make_clerk("It is 4.", settings=ModelSettings(temperature=0.5)), ScriptedModel("It is four.")
    clerk.definition.resources.providers["cheap:m"] = cheap
    options: dict[str, Any] = {"models": ("cheap:m",), "settings": ("max_tokens",)}
    async with serve_api(clerk, **options) as served, Client(served.url, token="ann-key") as ann:
        [agent] = await ann.agents()
        run = await ann.start(None, "2 + 2", wait=10)
        forked = await ann.fork(run.task_id, 1, model="cheap:m", settings={"maxTokens": 9})
        forked = await ann.record(forked.task_id, wait=10)
    assert (agent.models, agent.settings) == (["cheap:m"], ["maxTokens"])
    assert forked.content == "It is four."
    [request] = cheap.requests
    assert (request.settings.max_tokens, request.settings.temperature) == (9, 0.5)


@pytest.mark.parametrize(
    ("change", "field"), [({"model": "dear:m"}, "model"), ({"settings": {"maxTokens": 9}}, "settings.maxTokens")]
)
async def test_fork_refuses_other_models_and_settings(change: dict[str, Any], field: str) -> None:
    async with serve_api(make_clerk("A.", "B.")) as served, Client(served.url, token="ann-key") as ann:
        run = await ann.start(None, "Ask", wait=10)
        with pytest.raises(ApiError) as refused:
            await ann.fork(run.task_id, 1, **change)
        runs = await ann.runs()
    assert (refused.value.status, refused.value.code) == (422, "invalid")
    assert [*refused.value.fields] == [field]
    assert len(runs.runs) == 1


async def test_fork_with_a_model_that_the_server_cannot_create_is_refused() -> None:
    async with serve_api(make_clerk("A."), models=("unknown-preset:m",)) as served:
        async with Client(served.url, token="ann-key", retries=0) as ann:
            run = await ann.start(None, "Ask", wait=10)
            with pytest.raises(ApiError) as refused:
                await ann.fork(run.task_id, 1, model="unknown-preset:m")
    assert (refused.value.status, refused.value.code) == (503, "model")


@pytest.mark.parametrize("models", ["zai:glm-4.7", [""], [7]])
def test_models_must_be_model_strings(models: Any) -> None:
    with pytest.raises(ConfigurationError, match="models must be model strings"):
        api(Runtime({}, log=MemoryEventLog()), models=models)
