"""Tests for running, resuming and ending experiments."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import reactivex.operators as rx

from rxloop import Agent, ConfigurationError, Limits, MemoryEventLog, RunContext, RxloopError, SqliteEventLog, op, tool
from rxloop.evals import Case, Variant, experiment, runner, score
from rxloop.pipeline.requests import ModelRequest
from rxloop.strategies import chain_of_thought
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from support.capitals import CAPITALS, CASES, agent, last_country, lookup, make_capital_model, make_lookup_model

EXACT = [score.exact()]


async def test_each_variant_runs_each_case_repeatedly() -> None:
    report = await experiment(CASES[:2], {"a": agent(), "b": agent(make_capital_model())}, EXACT, repeats=2).run()
    assert [(trial.variant, trial.case, trial.repeat) for trial in report.trials] == [
        (variant, case, repeat) for variant in "ab" for case in ("Norway", "Sweden") for repeat in (1, 2)
    ]
    assert report.planned == 8
    assert report.of("a").mean("exact") == 1
    assert report.of("b").mean("exact") == 0


async def test_single_agent_is_a_variant_with_its_name() -> None:
    report = await experiment(CASES, agent(name="guide"), EXACT).run()
    assert report.variants == ["guide"]
    assert report.mean("exact") == 1


async def test_trial_contains_input_and_outcome() -> None:
    case = Case("Capital of Fiji?", "Suva", id="f", metadata={"hard": True})
    [trial] = (await experiment([case], agent(), EXACT).run()).trials
    assert (trial.input, trial.expected, trial.metadata) == ("Capital of Fiji?", "Suva", {"hard": True})
    assert (trial.state, trial.content, trial.error) == ("completed", "Suva", None)
    assert trial.usage.total_tokens == 110


async def test_failed_run_is_reported_without_stopping_the_experiment() -> None:
    report = await experiment(CASES, agent(make_capital_model("Norway", "Malta")), EXACT).run()
    assert report.mean("exact") == 0.5
    assert [trial.case for trial in report.failures] == ["Sweden", "Fiji"]
    assert report.failures[0].state == "failed"
    assert "Sweden is not on the map" in str(report.failures[0].error)


async def test_trial_of_a_limited_run_contains_its_usage() -> None:
    limited = Variant(agent(make_lookup_model(), tools=[lookup]), limits=Limits(iterations=1))
    [trial] = (await experiment(CASES[:1], {"short": limited}, [score.tokens()]).run()).trials
    assert str(trial.error).startswith("max_iterations")
    assert trial.usage.total_tokens == trial.scores["tokens"].value == 110


async def test_rejected_run_is_reported_as_failed_trial() -> None:
    report = await experiment([Case(["", "x"], id="empty"), *CASES[:1]], agent(), EXACT).run()
    assert [trial.error is None for trial in report.trials] == [False, True]
    assert "empty user message" in str(report.trials[0].error)


async def test_question_ends_a_run_unless_the_variant_answers() -> None:
    @tool
    async def ask(ctx: RunContext[Any]) -> str:
        """Ask."""
        return await ctx.ask("Which one?", str)

    def make_agent() -> Agent[None, str]:
        return Agent(ScriptedModel(call("ask"), "Oslo"), tools=[ask], thoughts=False)

    variants = {"alone": make_agent(), "answered": Variant(make_agent(), on_input=lambda question: "the first")}
    report = await experiment(CASES[:1], variants, EXACT).run()
    assert report.of("answered").mean("exact") == 1
    [alone] = report.of("alone").trials
    assert alone.state == "input-required"
    assert alone.error == "the run is waiting for input: Which one?"


async def test_variants_replace_model_strategy_and_prompt() -> None:
    same = agent(make_capital_model())

    def add_please(case: Case) -> str:
        return f"Please: {case.input}"

    other, worded, thinking = make_capital_model("Norway"), make_capital_model("Norway"), ScriptedModel("Hm.", "Oslo")
    variants = {
        "model": Variant(same, model=other),
        "prompt": Variant(same, model=worded, prompt=add_please),
        "strategy": Variant(same, model=thinking, strategy=chain_of_thought()),
    }
    await experiment(CASES[:1], variants, EXACT).run()
    assert other.requests[0].messages[-1].text == "Capital of Norway?"
    assert worded.requests[0].messages[-1].text == "Please: Capital of Norway?"
    assert "step" in thinking.requests[0].messages[-1].text.lower()


@dataclass
class Place:
    name: str


async def test_deps_and_prompt_are_created_from_each_case() -> None:
    used_deps: list[Place] = []

    def answer(request: ModelRequest) -> Any:
        return "ok" if request.messages[-1].role == "tool" else call("where")

    @tool
    async def where(ctx: RunContext[Place]) -> str:
        """Say where."""
        used_deps.append(ctx.deps)
        return ctx.deps.name

    visitor = Agent(ScriptedModel(*[answer] * 9), tools=[where], deps_type=Place, thoughts=False)
    cases = [Case({"at": name}) for name in ("here", "there")]
    report = await experiment(
        cases,
        visitor,
        [score.called("where")],
        prompt=lambda case: f"Where is {case.input['at']}?",
        deps=lambda case: Place(case.input["at"]),
    ).run()
    assert report.mean("called") == 1
    assert sorted(place.name for place in used_deps) == ["here", "there"]
    assert report.trials[0].input == {"at": "here"}


async def test_data_input_without_prompt_is_a_failure() -> None:
    report = await experiment([Case({"at": "here"})], agent(), EXACT).run()
    assert "the prompt must be a string" in str(report.failures[0].error)


async def test_experiment_reads_cases_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "cases.jsonl"
    file.write_text("\n".join(json.dumps({"input": case.input, "expected": case.expected}) for case in CASES))
    assert (await experiment(file, agent(), EXACT).run()).mean("exact") == 1


def test_concurrency_limits_simultaneous_runs() -> None:
    open_counts: list[int] = []
    model: ScriptedModel

    def answer(request: ModelRequest) -> Any:
        open_counts.append(model.open)
        return frames("----x|", 1.0)

    model = ScriptedModel(*[answer] * 10)
    cases = [Case(str(number)) for number in range(10)]
    with virtual_time() as time:
        report = time.run(experiment(cases, agent(model), [score.seconds()], concurrency=4).run())
        assert time.now == 15.0
    assert max(open_counts) == 3
    assert report.mean("seconds") == 5.0


async def test_report_is_published_after_each_trial() -> None:
    counts = [len(report.trials) async for report in experiment(CASES, agent(), EXACT, concurrency=1).run()]
    assert counts == [0, 1, 2, 3, 4]
    means = experiment(CASES, agent(), EXACT).run().pipe(rx.last(), rx.map(lambda report: report.mean("exact")))
    assert await means == 1


def test_cancelling_the_awaiting_task_cancels_its_runs() -> None:
    model = ScriptedModel(*[frames("----")] * 4)
    with virtual_time() as time:

        async def main() -> None:
            task = asyncio.ensure_future(run_experiment())
            await asyncio.sleep(1)
            assert model.open == 4
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(1)
            assert model.open == 0

        async def run_experiment() -> Any:
            return await experiment(CASES, agent(model), EXACT).run()

        time.run(main())


async def test_experiment_without_log_repeats_runs_and_ignores_the_log_of_the_agent() -> None:
    log, model = MemoryEventLog(), make_capital_model(*CAPITALS)
    made = experiment(CASES, agent(model, log=log), EXACT)
    await made.run()
    await made.run()
    assert len(model.requests) == 8
    assert await log.list_runs() == []


async def test_experiment_with_log_reuses_finished_runs() -> None:
    log, model = MemoryEventLog(), make_capital_model("Norway", "Malta")
    variants = {"a": agent(model)}
    once = await experiment(CASES, variants, [score.exact(), score.tokens()], name="e", log=log).run()
    asked = len(model.requests)
    again = await experiment(CASES, variants, [score.exact(), score.tokens()], name="e", log=log).run()
    assert len(model.requests) == asked
    assert again.trials == once.trials
    assert {record.task_id for record in await log.list_runs()} == {trial.task_id for trial in once.trials}


async def test_experiment_with_log_runs_only_new_cases_and_repeats() -> None:
    log, model = MemoryEventLog(), make_capital_model(*CAPITALS)
    for cases, repeats, asked in ((CASES[:2], 1, 2), (CASES, 1, 4), (CASES, 2, 8)):
        report = await experiment(cases, agent(model), EXACT, name="e", log=log, repeats=repeats).run()
        assert len(model.requests) == asked
        assert report.mean("exact") == 1


async def test_new_scorers_score_existing_runs() -> None:
    log, model = MemoryEventLog(), make_capital_model(*CAPITALS)
    await experiment(CASES, agent(model), EXACT, name="e", log=log).run()
    report = await experiment(
        CASES, agent(model), [score.contains(), score.view("n", op.usage(), rx.count())], name="e", log=log
    ).run()
    assert len(model.requests) == 4
    assert (report.mean("contains"), report.mean("n")) == (1, 1)


async def test_runs_are_not_shared_between_names_or_variants() -> None:
    log, model = MemoryEventLog(), make_capital_model(*CAPITALS)
    await experiment(CASES[:1], {"a": agent(model)}, EXACT, name="e", log=log).run()
    await experiment(CASES[:1], {"b": agent(model)}, EXACT, name="e", log=log).run()
    await experiment(CASES[:1], {"a": agent(model)}, EXACT, name="f", log=log).run()
    assert len(model.requests) == 3


async def test_changed_prompt_is_rejected_before_any_model_call() -> None:
    log, model = MemoryEventLog(), make_capital_model(*CAPITALS)
    await experiment(CASES[:1], agent(model), EXACT, name="e", log=log).run()
    changed = [CASES[1], Case("Capital of Fiji?", id="Norway")]
    with pytest.raises(ConfigurationError, match="a run of case 'Norway' in experiment 'e'"):
        await experiment(changed, agent(model), EXACT, name="e", log=log).run()
    assert len(model.requests) == 1


async def test_interrupted_run_is_resumed_by_the_next_experiment() -> None:
    log, model = MemoryEventLog(), make_lookup_model()
    started = asyncio.Event()

    @tool(name="lookup", idempotent=False)
    async def slow(country: str) -> str:
        """Look up a capital."""
        if started.is_set():
            return CAPITALS[country]
        started.set()
        return await asyncio.get_running_loop().create_future()

    def run_experiment() -> Any:
        return experiment(CASES[:1], agent(model, tools=[slow]), EXACT, name="e", log=log).run()

    task = asyncio.ensure_future(wait_for_result(run_experiment()))
    await started.wait()
    task.cancel()
    # The cancelled run has not ended yet.
    report = await run_experiment()
    assert len(await log.list_runs()) == 1
    assert report.trials[0].state == "completed"
    # The first model call is not repeated.
    assert len(model.requests) == 2


async def wait_for_result(awaitable: Any) -> Any:
    return await awaitable


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_concurrent_experiments_share_runs(kind: str, tmp_path: Path) -> None:
    model = ScriptedModel(*[lambda request: frames("--Oslo|", 0.001)] * 20)
    logs = [MemoryEventLog()] * 2 if kind == "memory" else [SqliteEventLog(tmp_path / "e.db") for _ in range(2)]
    cases = [Case(str(number), "Oslo") for number in range(6)]
    judging = ScriptedModel(*['{"reason": "", "verdict": true}'] * 20)
    scorers = [score.exact(), score.judge(judging, "It is a capital.")]
    made = [experiment(cases, agent(model), scorers, name="e", log=log, concurrency=2) for log in logs]
    one, two = await asyncio.gather(*(wait_for_result(each.run()) for each in made))
    assert one.mean("exact") == two.mean("exact") == 1
    assert one.trials == two.trials
    assert len(model.requests) == len(judging.requests) == 6
    for log in logs:
        await log.aclose()


async def test_waiting_run_is_reported_again_until_it_is_answered() -> None:
    @tool
    async def ask(ctx: RunContext[Any]) -> str:
        """Ask."""
        return await ctx.ask("Which one?", str)

    log = MemoryEventLog()
    asking_agent = Agent(ScriptedModel(call("ask"), "Oslo"), tools=[ask], thoughts=False)
    once = await experiment(CASES[:1], asking_agent, EXACT, name="e", log=log).run()
    again = await experiment(CASES[:1], asking_agent, EXACT, name="e", log=log).run()
    assert once.trials == again.trials
    assert once.trials[0].state == "input-required"
    answering = Variant(asking_agent, on_input=lambda question: "this one")
    later = await experiment(CASES[:1], {"agent": answering}, EXACT, name="e", log=log).run()
    assert later.mean("exact") == 1


async def test_variants_continue_forks_of_the_same_run() -> None:
    log, model = MemoryEventLog(), make_lookup_model()
    first = await agent(model, tools=[lookup], log=log).run("Capital of Norway?")
    answered = next(event.seq for event in await log.read(first.task_id) if event.kind == "tool-complete")
    cases = [Case(expected="Oslo", id="there", fork_of=first.task_id, fork_at=answered)]
    cases.append(Case("Capital of Fiji?", "Suva", id="on", fork_of=first.task_id, fork_at=answered))
    good, bad = make_lookup_model(), ScriptedModel("Bergen", "Bergen")
    variants = {name: agent(each, tools=[lookup]) for name, each in (("good", good), ("bad", bad))}
    made = experiment(cases, variants, [score.exact(), score.steps(), score.tokens()], name="e", log=log)
    report = await made.run()
    assert report.of("good").by_case("exact") == {"there": 1, "on": 1}
    assert report.of("bad").mean("exact") == 0
    # Copied events do not count for the forks.
    assert report.of("good").by_case("steps") == {"there": 1, "on": 2}
    assert report.of("good").by_case("tokens") == {"there": 110, "on": 220}
    assert [last_country(request) for request in good.requests].count("Norway") == 1

    again = await made.run()
    assert again.trials == report.trials
    assert len(good.requests) == 3


async def test_changed_fork_position_is_rejected() -> None:
    log = MemoryEventLog()
    first = await agent(log=log).run("Capital of Norway?")

    async def fork(at: int) -> None:
        cases = [Case(id="a", fork_of=first.task_id, fork_at=at)]
        await experiment(cases, agent(), [score.steps()], name="e", log=log).run()

    await fork(1)
    with pytest.raises(ConfigurationError, match="case 'a'"):
        await fork(2)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: experiment(CASES, agent(), EXACT, log=MemoryEventLog()), "name must not be empty"),
        (lambda: experiment(CASES, agent(), EXACT, repeats=0), "at least 1"),
        (lambda: experiment(CASES, agent(), EXACT, concurrency=0), "at least 1"),
        (lambda: experiment(CASES, {}, EXACT), "must be an Agent or a dict"),
        (lambda: experiment(CASES, {"a": "zai:glm-4.7"}, EXACT), "variant 'a' must be an Agent or"),  # pyright: ignore[reportArgumentType]
        (lambda: experiment(CASES, agent(), EXACT, name="a\nb"), "line ends"),
        (lambda: experiment([Case(fork_of="x", fork_at=1, id="f")], agent(), EXACT), "requires the log of run x"),
    ],
)
def test_experiment_rejects_invalid_arguments(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()


def test_repr_counts_cases_variants_and_scorers() -> None:
    assert repr(experiment(CASES, agent(), EXACT)) == "<Experiment experiment: 4 cases, 1 variant, 1 scorer>"


def test_experiment_accepts_generators_of_cases_and_requires_a_list_of_scorers() -> None:
    assert len(experiment((case for case in CASES), agent(), EXACT).cases) == 4
    with pytest.raises(ConfigurationError, match="scorers must be a list"):
        experiment(CASES, agent(), score.exact())  # pyright: ignore[reportArgumentType]


def test_run_sync_closes_the_agents() -> None:
    made = experiment(CASES, agent(), EXACT)
    assert made.run_sync().mean("exact") == 1
    with pytest.raises(RxloopError, match="is closed"):
        made.variants["agent"].agent.run("Again?")


async def test_run_sync_in_an_event_loop_raises_with_a_remedy() -> None:
    with pytest.raises(RxloopError, match="use `await experiment"):
        experiment(CASES, agent(), EXACT).run_sync()


async def test_internal_error_ends_the_experiment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*arguments: Any) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(runner, "_run_trial", broken)
    with pytest.raises(ExceptionGroup) as raised:
        await experiment(CASES, agent(), EXACT).run()
    assert raised.value.subgroup(LookupError) is not None
