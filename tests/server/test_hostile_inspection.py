"""Inspection of runs with very many values, and of experiments with the same name."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from rxloop import Agent, MemoryEventLog
from rxloop.evals import experiment, score
from rxloop.protocol.events import CustomEvent
from rxloop.recorded import problems as problem_folds
from rxloop.recorded import search
from rxloop.recorded.search import make_pattern, search_events
from rxloop.server.http import inspection, summaries
from rxloop.server.http.experiments import METADATA_KEY
from rxloop.server.http.summaries import Summaries
from rxloop.testing import ScriptedModel, call
from support.api_server import make_client, serve_api
from support.capitals import CASES, agent
from support.hidden_tools import fail


def make_event(data: Any) -> CustomEvent:
    return CustomEvent(task_id="a", context_id="c", seq=1, attempt=1, timestamp=0, name="page", data=data)


def search_text(data: Any, text: str) -> list[Any]:
    return list(search_events([make_event(data)], make_pattern(text), "a", kinds=None, internal=False))


def test_search_finds_a_limited_number_of_values_in_an_event() -> None:
    hits = search_text(["needle"] * 100_000, "needle")
    assert (len(hits), hits[-1].field) == (search.MAX_HITS, f"data.{search.MAX_HITS - 1}")


@pytest.mark.parametrize("position", range(4, 12))
def test_search_finds_a_text_between_two_slices(position: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_STEPS", 120)
    text = "." * position + "NEE(DLE"
    [hit] = search_text(text, "nee(dle")
    assert hit.marks == [(position, position + 7)]
    assert search_text(text, "needle") == []


@pytest.mark.parametrize("length", [1, 7, 200])
def test_search_can_be_interrupted_after_a_number_of_comparisons(length: int) -> None:
    spans = list[int]()

    class Pattern:
        pattern = "x" * length

        def search(self, text: str, start: int, end: int) -> None:
            spans.append((end - start) * length)

    event = make_event("a" * 3_000_000)
    assert [*search_events([event], cast("Any", Pattern()), "a", kinds=None, internal=False)] == []
    assert max(spans) <= search.MAX_STEPS
    assert sum(spans) >= 3_000_000 * length


async def test_summaries_in_memory_have_a_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    clerk = Agent(ScriptedModel(*([call("fail")] * 3, "Done.") * 4), name="clerk", tools=[fail])
    async with serve_api(clerk) as served, make_client(served.url) as ann:
        log = served.runtime.log
        ids = [(await ann.post("/runs?wait=10", json={"input": "Go"})).json()["taskId"] for _ in range(4)]
        records = [await log.get_record(task_id) for task_id in ids]
        await ann.get(f"/runs/{ids[0]}/problems")
        size = log.local.get(Summaries)._size
        monkeypatch.setattr(summaries, "MAX_SIZE", 2 * size)
        for task_id in (*ids, ids[3]):
            await ann.get(f"/runs/{task_id}/problems")
        known = [log.local.get(Summaries).find(record) is not None for record in records]
    assert size > 3
    assert known == [False, False, True, True]


async def test_problems_are_collected_outside_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def watch(module: Any, name: str) -> None:
        function = getattr(module, name)

        def call_function(*args: Any, **options: Any) -> Any:
            threads.append(threading.current_thread())
            return function(*args, **options)

        monkeypatch.setattr(module, name, call_function)

    watch(problem_folds.ProblemFold, "collect")
    watch(inspection, "encode_response")
    clerk = Agent(ScriptedModel(call("fail"), "Done."), name="clerk", tools=[fail])
    async with serve_api(clerk) as served, make_client(served.url) as ann:
        task_id = (await ann.post("/runs?wait=10", json={"input": "Go"})).json()["taskId"]
        [problem] = (await ann.get(f"/runs/{task_id}/problems")).json()["problems"]
    assert problem["code"] == "tool_failed"
    assert len(threads) == 2
    assert threading.current_thread() not in threads


async def test_report_of_another_owner_with_the_same_name_is_hidden() -> None:
    log = MemoryEventLog()
    await experiment(CASES, {"good": agent()}, [score.exact()], name="capitals", log=log).run()
    labels = {METADATA_KEY: "capitals", f"{METADATA_KEY}.variant": "good", f"{METADATA_KEY}.case": CASES[0].id}
    async with serve_api(agent(), log=log) as served, make_client(served.url) as ann:
        [name] = served.runtime.agents
        run = await served.runtime.start(name, "Hi", owner="ann", metadata=labels)
        await ann.get(f"/runs/{run.task_id}?wait=10")
        info = (await ann.get("/experiments/capitals")).json()
    assert info["hasReport"] is False
    assert info["variants"][0]["scores"] == []
    assert [list(case["cells"]) for case in info["cases"]] == [["good"]]


async def test_event_loop_runs_between_the_pages_of_an_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryEventLog()
    await experiment(CASES, {"good": agent(), "bad": agent()}, [score.exact()], name="capitals", log=log).run()
    monkeypatch.setattr("rxloop.server.http.experiments._PAGE_SIZE", 2)
    pages: list[int] = []
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    list_runs = log.list_runs

    async def watch_list(**query: Any) -> Any:
        if query.get("metadata"):
            pages.append(turns)
        return await list_runs(**query)

    monkeypatch.setattr(log, "list_runs", watch_list)
    async with serve_api(agent(), log=log) as served, make_client(served.url, "root-key") as root:
        task = asyncio.create_task(count())
        info = (await root.get("/experiments/capitals")).json()
        task.cancel()
    assert len(info["cases"]) == len(CASES)
    assert len(pages) == len(set(pages)) == len(CASES) + 1
