"""Experiments over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop import MemoryEventLog, SqliteEventLog
from rxloop.client import Client
from rxloop.errors import ApiError, ArtifactError
from rxloop.evals import experiment, score
from rxloop.evals.stored_reports import read_report
from rxloop.server.http import experiments
from rxloop.support.tasks import CLOCK
from support.api_server import make_client, serve_api
from support.capitals import CASES, agent, make_capital_model
from support.fake_clock import FakeClock


def make_experiment(log: Any, name: str = "capitals", **options: Any) -> Any:
    variants = {"good": agent(), "bad": agent(make_capital_model("Malta"))}
    return experiment(CASES, variants, [score.exact(), score.tokens()], name=name, log=log, **options)


@pytest.fixture(params=["memory", "sqlite"])
async def log(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    event_log = MemoryEventLog() if request.param == "memory" else SqliteEventLog(tmp_path / "runs.db")
    yield event_log
    await event_log.aclose()


async def test_means_and_cells_equal_the_report(log: Any) -> None:
    report = await make_experiment(log, "a/b c", repeats=2).run()
    async with serve_api(agent(), log=log) as served, Client(served.url, token="root-key") as root:
        info = await root.experiment("a/b c")
        [listed] = (await root.experiments()).experiments
    assert (listed.name, listed.variants, listed.cases, listed.runs) == ("a/b c", ["bad", "good"], len(CASES), 16)
    assert (info.has_report, [each.name for each in info.variants]) == (True, ["good", "bad"])
    for variant in info.variants:
        own = report.of(variant.name)
        assert {each.scorer: each.mean for each in variant.scores} == {
            name: own.mean(name) for name in ("exact", "tokens")
        }
        assert {each.scorer: (each.low, each.high) for each in variant.scores} == {
            name: tuple(own.interval(name)) for name in ("exact", "tokens")
        }
        assert variant.usage.total_tokens == sum(trial.usage.total_tokens for trial in own.trials)
    assert [case.id for case in info.cases] == [case.id for case in CASES]
    assert info.cases[0].title == CASES[0].input
    for trial in report.trials:
        [case] = [each for each in info.cases if each.id == trial.case]
        run = case.cells[trial.variant][trial.repeat - 1]
        assert (run.task_id, run.state) == (trial.task_id, trial.state)
        assert run.scores == {name: each.value for name, each in trial.scores.items()}


async def test_experiment_without_a_report_has_cells_without_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryEventLog()

    async def refuse(*args: Any, **options: Any) -> None:
        raise ArtifactError("the disk is full")

    monkeypatch.setattr(log.artifacts, "create", refuse)
    report = await make_experiment(log).run()
    assert report.of("good").mean("exact") == 1
    assert await read_report(log, "capitals") is None
    async with serve_api(agent(), log=log) as served, Client(served.url, token="root-key") as root:
        info = await root.experiment("capitals")
    assert (info.has_report, [each.scores for each in info.variants]) == (False, [[], []])
    assert info.cases[0].cells["good"][0].scores == {}
    assert info.cases[0].title == CASES[0].input


async def test_latest_report_is_kept() -> None:
    class TickingClock(FakeClock):
        def now(self) -> int:
            self.time += 1
            return self.time

    log, token = MemoryEventLog(), CLOCK.set(TickingClock())
    await make_experiment(log).run()
    report = await make_experiment(log).run()
    CLOCK.reset(token)
    assert await read_report(log, "capitals") == report


async def test_experiments_continue_on_the_next_page(monkeypatch: pytest.MonkeyPatch) -> None:
    log = MemoryEventLog()
    for name in ("one", "two"):
        await make_experiment(log, name).run()
    monkeypatch.setattr(experiments, "SCAN_SECONDS", -1)
    async with serve_api(agent(), log=log) as served, Client(served.url, token="root-key") as root:
        pages = [await root.experiments()]
        while pages[-1].next is not None:
            pages.append(await root.experiments(after=pages[-1].next))
    names = [each.name for page in pages for each in page.experiments]
    assert names == ["two"] * 8 + ["one"] * 8


async def test_experiments_of_other_owners_are_hidden() -> None:
    log = MemoryEventLog()
    await make_experiment(log).run()
    async with serve_api(agent(), log=log) as served, Client(served.url, token="ann-key") as ann:
        assert (await ann.experiments()).experiments == []
        with pytest.raises(ApiError) as hidden:
            await ann.experiment("capitals")
        async with make_client(served.url, "root-key") as root:
            unknown = await root.get("/experiments/unknown")
    assert (hidden.value.status, unknown.status_code) == (404, 404)
