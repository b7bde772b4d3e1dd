"""Stock operators of reactivex around runs, in virtual time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import reactivex as rx
from reactivex import Observable
from reactivex import operators as ops
from reactivex.subject import Subject

from rxloop import Agent, ModelRequest, merge, op
from rxloop.errors import ProviderConnectionError, RunError
from rxloop.testing import ScriptedModel, frames, turn, virtual_time
from rxloop.testing.virtual_time import current_time

Emissions = list[tuple[int, Any]]
"""Values with timestamps in milliseconds."""


def echo(marbles: str = "----{}|") -> Agent[None, str]:
    """Return an agent that answers with the question after 100 ms."""

    def answer(request: ModelRequest) -> Any:
        return turn(frames(marbles.replace("{}", str(request.messages[-1].text))))

    return Agent(ScriptedModel(*[answer] * 20))


def run_pipeline(
    times: dict[int, str], pipeline: Callable[[Observable[str]], Observable[Any]], end: int = 1000
) -> Emissions:
    """Send timed questions through a pipeline and return its emissions."""
    emissions: Emissions = []
    with virtual_time() as time:
        questions: Subject[str] = Subject()

        async def main() -> None:
            thread = threading.get_ident()
            async for value in merge(pipeline(questions)):
                assert threading.get_ident() == thread
                emissions.append((round(current_time().now * 1000), value))

        for milliseconds, question in times.items():
            time.at(milliseconds / 1000, lambda question=question: questions.on_next(question))
        time.at(end / 1000, questions.on_completed)
        time.run(main())
    return emissions


def to_list(window: Observable[Any]) -> Observable[list[Any]]:
    return window.pipe(ops.to_list())


def ask_for_text(agent: Agent[None, str]) -> Callable[[str], Observable[str]]:
    return lambda question: agent.observe(question).text()


def test_switch_latest_cancels_the_older_run() -> None:
    agent = echo("--{}---{}|")
    values = run_pipeline(
        {0: "a", 110: "b"}, lambda source: source.pipe(ops.map(ask_for_text(agent)), ops.switch_latest())
    )
    assert values == [(50, "a"), (160, "b"), (260, "b")]
    assert agent.model.open == 0  # type: ignore[attr-defined]


def test_flat_map_latest_cancels_the_older_run() -> None:
    values = run_pipeline({0: "a", 80: "b"}, lambda source: source.pipe(ops.flat_map_latest(ask_for_text(echo()))))
    assert values == [(180, "b")]


def test_debounce_asks_the_latest_question() -> None:
    agent = echo()
    typed = {0: "w", 50: "we", 100: "wea", 500: "weather"}
    values = run_pipeline(typed, lambda source: source.pipe(ops.debounce(0.2), ops.flat_map(ask_for_text(agent))))
    assert values == [(400, "wea"), (800, "weather")]
    assert len(agent.model.requests) == 2  # type: ignore[attr-defined]


def test_merge_with_a_limit_queues_the_other_questions() -> None:
    agent = echo()
    values = run_pipeline(
        {0: "a", 1: "b", 2: "c"}, lambda source: source.pipe(ops.map(ask_for_text(agent)), ops.merge(max_concurrent=2))
    )
    assert [value for _, value in values] == ["a", "b", "c"]
    # c starts when a has ended, at 125.
    assert values[2][0] == 225


def test_concat_asks_questions_sequentially() -> None:
    values = run_pipeline({0: "a", 1: "b"}, lambda source: source.pipe(ops.map(ask_for_text(echo())), ops.concat_all()))
    assert values == [(100, "a"), (225, "b")]


def test_retry_starts_a_new_run() -> None:
    agent = Agent(ScriptedModel(ProviderConnectionError("no line"), frames("--a|")))
    values = run_pipeline(
        {0: "?"}, lambda source: source.pipe(ops.flat_map(lambda q: agent.observe(q).text().pipe(ops.retry(2))))
    )
    assert values == [(50, "a")]
    assert len({request.ctx.task_id for request in agent.model.requests}) == 2  # type: ignore[attr-defined]


def test_retry_raises_the_error_of_the_last_run() -> None:
    agent = Agent(ScriptedModel(*[ProviderConnectionError("no line")] * 3))
    with virtual_time() as time, pytest.raises(RunError, match="no line"):
        time.run(agent.observe("?").result().pipe(ops.retry(3)))
    assert len(agent.model.requests) == 3  # type: ignore[attr-defined]


def test_timeout_cancels_the_run() -> None:
    agent = Agent(ScriptedModel(frames("--a")))

    def ask_with_timeout(question: str) -> Observable[Any]:
        results = agent.observe(question).result().pipe(ops.map(lambda result: result.output))
        return results.pipe(ops.timeout(0.3, rx.just("too late")))

    assert run_pipeline({0: "?"}, lambda source: source.pipe(ops.flat_map(ask_with_timeout))) == [(300, "too late")]
    assert agent.model.open == 0  # type: ignore[attr-defined]


def test_timeout_operator_of_a_cold_run_uses_the_event_loop() -> None:
    agent = Agent(ScriptedModel(frames("--a")))
    with virtual_time() as time:
        assert time.run(agent.observe("?").text().pipe(ops.timeout(60, rx.just("late")))) == "late"
        assert time.now == 60.05


def test_window_collects_the_answers_of_an_interval() -> None:
    def windows(source: Observable[str]) -> Observable[Any]:
        lists = ops.flat_map(to_list)
        return source.pipe(ops.flat_map(ask_for_text(echo())), ops.window(rx.interval(0.25)), lists)

    assert run_pipeline({0: "a", 100: "b", 200: "c"}, windows, end=400) == [(250, ["a", "b"]), (400, ["c"])]


def test_buffer_with_time_collects_the_statistics_of_an_interval() -> None:
    def count_model_calls(source: Observable[str]) -> Observable[Any]:
        events = source.pipe(ops.flat_map(echo().observe))
        return events.pipe(
            op.stats(60), ops.buffer_with_time(0.5), ops.map(lambda batch: batch[-1].model_calls if batch else None)
        )

    assert run_pipeline({0: "a", 100: "b", 700: "c"}, count_model_calls) == [(500, 2), (1000, 3)]


def test_group_by_serializes_each_user_and_runs_users_concurrently() -> None:
    agent = echo()

    def ask_sequentially(group: Observable[str]) -> Observable[str]:
        return group.pipe(ops.map(ask_for_text(agent)), ops.concat_all())

    def group_by_user(source: Observable[str]) -> Observable[Any]:
        serialize = ops.flat_map(ask_sequentially)
        return source.pipe(ops.group_by(lambda question: question[0]), serialize)

    values = run_pipeline({0: "a1", 1: "a2", 2: "b1"}, group_by_user)
    assert values == [(100, "a1"), (102, "b1"), (225, "a2")]


def test_combine_latest_combines_two_runs() -> None:
    def combine(source: Observable[str]) -> Observable[Any]:
        slow = echo("------{}|").observe("slow").text()
        return source.pipe(ops.flat_map(ask_for_text(echo())), ops.combine_latest(slow), ops.map(" ".join))

    assert run_pipeline({0: "a", 100: "b"}, combine) == [(150, "a slow"), (200, "b slow")]


def test_sample_emits_the_current_text_periodically() -> None:
    def accumulate(source: Observable[str]) -> Observable[Any]:
        pieces = source.pipe(ops.flat_map(ask_for_text(echo("-{}" * 10 + "|"))))
        return pieces.pipe(ops.scan(lambda total, piece: total + piece, ""), ops.sample(0.21))

    assert run_pipeline({0: "a"}, accumulate, end=600) == [(210, "aaaa"), (420, "aaaaaaaa"), (630, "aaaaaaaaaa")]


def test_with_latest_from_adds_the_latest_value_to_each_question() -> None:
    def ask_with_weather(source: Observable[str]) -> Observable[Any]:
        weather = rx.interval(0.1).pipe(ops.map(lambda hour: f"hour {hour}"))
        return source.pipe(ops.with_latest_from(weather), ops.map(" ".join), ops.flat_map(ask_for_text(echo())))

    assert run_pipeline({150: "a,", 350: "b,"}, ask_with_weather) == [(250, "a, hour 0"), (450, "b, hour 2")]
