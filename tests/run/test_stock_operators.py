"""Stock operators of reactivex around runs: many runs in one pipeline, by virtual time."""

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

Made = list[tuple[int, Any]]
"""What came, and at which millisecond."""


def echo(line: str = "----{}|") -> Agent[None, str]:
    """An agent that answers with the question, after 100 ms."""

    def answer(request: ModelRequest) -> Any:
        return turn(frames(line.replace("{}", str(request.messages[-1].text))))

    return Agent(ScriptedModel(*[answer] * 20))


def asked(times: dict[int, str], pipeline: Callable[[Observable[str]], Observable[Any]], end: int = 1000) -> Made:
    """What a pipeline of questions gives: these, at their milliseconds, and the end."""
    made: Made = []
    with virtual_time() as time:
        questions: Subject[str] = Subject()

        async def main() -> None:
            thread = threading.get_ident()
            async for value in merge(pipeline(questions)):
                assert threading.get_ident() == thread
                made.append((round(current_time().now * 1000), value))

        for at, question in times.items():
            time.at(at / 1000, lambda question=question: questions.on_next(question))
        time.at(end / 1000, questions.on_completed)
        time.run(main())
    return made


def listed(window: Observable[Any]) -> Observable[list[Any]]:
    return window.pipe(ops.to_list())


def text(agent: Agent[None, str]) -> Callable[[str], Observable[str]]:
    return lambda question: agent.observe(question).text()


def test_switch_latest_cancels_the_older_run() -> None:
    agent = echo("--{}---{}|")
    found = asked({0: "a", 110: "b"}, lambda source: source.pipe(ops.map(text(agent)), ops.switch_latest()))
    assert found == [(50, "a"), (160, "b"), (260, "b")]
    assert agent.model.open == 0  # type: ignore[attr-defined]


def test_flat_map_latest_does_the_same() -> None:
    found = asked({0: "a", 80: "b"}, lambda source: source.pipe(ops.flat_map_latest(text(echo()))))
    assert found == [(180, "b")]


def test_debounce_asks_what_was_typed_last() -> None:
    agent = echo()
    typed = {0: "w", 50: "we", 100: "wea", 500: "weather"}
    found = asked(typed, lambda source: source.pipe(ops.debounce(0.2), ops.flat_map(text(agent))))
    assert found == [(400, "wea"), (800, "weather")]
    assert len(agent.model.requests) == 2  # type: ignore[attr-defined]


def test_merge_with_a_limit_queues_the_rest() -> None:
    agent = echo()
    found = asked(
        {0: "a", 1: "b", 2: "c"}, lambda source: source.pipe(ops.map(text(agent)), ops.merge(max_concurrent=2))
    )
    assert [value for _, value in found] == ["a", "b", "c"]
    # c is asked when a has ended, at 125.
    assert found[2][0] == 225


def test_concat_map_asks_one_after_the_other() -> None:
    found = asked({0: "a", 1: "b"}, lambda source: source.pipe(ops.map(text(echo())), ops.concat_all()))
    assert found == [(100, "a"), (225, "b")]


def test_retry_makes_a_run_anew() -> None:
    agent = Agent(ScriptedModel(ProviderConnectionError("no line"), frames("--a|")))
    found = asked(
        {0: "?"}, lambda source: source.pipe(ops.flat_map(lambda q: agent.observe(q).text().pipe(ops.retry(2))))
    )
    assert found == [(50, "a")]
    assert len({request.ctx.task_id for request in agent.model.requests}) == 2  # type: ignore[attr-defined]


def test_retry_gives_up_with_the_error_of_the_run() -> None:
    agent = Agent(ScriptedModel(*[ProviderConnectionError("no line")] * 3))
    with virtual_time() as time, pytest.raises(RunError, match="no line"):
        time.run(agent.observe("?").result().pipe(ops.retry(3)))
    assert len(agent.model.requests) == 3  # type: ignore[attr-defined]


def test_timeout_cancels_the_run() -> None:
    agent = Agent(ScriptedModel(frames("--a")))

    def in_time(question: str) -> Observable[Any]:
        results = agent.observe(question).result().pipe(ops.map(lambda result: result.output))
        return results.pipe(ops.timeout(0.3, rx.just("too late")))

    assert asked({0: "?"}, lambda source: source.pipe(ops.flat_map(in_time))) == [(300, "too late")]
    assert agent.model.open == 0  # type: ignore[attr-defined]


def test_timeout_of_a_cold_run_by_itself_goes_by_the_event_loop() -> None:
    agent = Agent(ScriptedModel(frames("--a")))
    with virtual_time() as time:
        assert time.run(agent.observe("?").text().pipe(ops.timeout(60, rx.just("late")))) == "late"
        assert time.now == 60.05


def test_window_collects_the_answers_of_a_while() -> None:
    def windows(source: Observable[str]) -> Observable[Any]:
        lists = ops.flat_map(listed)
        return source.pipe(ops.flat_map(text(echo())), ops.window(rx.interval(0.25)), lists)

    assert asked({0: "a", 100: "b", 200: "c"}, windows, end=400) == [(250, ["a", "b"]), (400, ["c"])]


def test_buffer_with_time_is_a_dashboard() -> None:
    def figures(source: Observable[str]) -> Observable[Any]:
        events = source.pipe(ops.flat_map(echo().observe))
        return events.pipe(
            op.stats(60), ops.buffer_with_time(0.5), ops.map(lambda them: them[-1].model_calls if them else None)
        )

    assert asked({0: "a", 100: "b", 700: "c"}, figures) == [(500, 2), (1000, 3)]


def test_group_by_answers_each_user_in_turn_and_all_users_at_once() -> None:
    agent = echo()

    def one_by_one(group: Observable[str]) -> Observable[str]:
        return group.pipe(ops.map(text(agent)), ops.concat_all())

    def of_users(source: Observable[str]) -> Observable[Any]:
        in_turn = ops.flat_map(one_by_one)
        return source.pipe(ops.group_by(lambda question: question[0]), in_turn)

    found = asked({0: "a1", 1: "a2", 2: "b1"}, of_users)
    assert found == [(100, "a1"), (102, "b1"), (225, "a2")]


def test_combine_latest_sets_two_runs_side_by_side() -> None:
    def both(source: Observable[str]) -> Observable[Any]:
        slow = echo("------{}|").observe("slow").text()
        return source.pipe(ops.flat_map(text(echo())), ops.combine_latest(slow), ops.map(" ".join))

    assert asked({0: "a", 100: "b"}, both) == [(150, "a slow"), (200, "b slow")]


def test_sample_looks_at_the_text_now_and_then() -> None:
    def grown(source: Observable[str]) -> Observable[Any]:
        pieces = source.pipe(ops.flat_map(text(echo("-{}" * 10 + "|"))))
        return pieces.pipe(ops.scan(lambda whole, piece: whole + piece, ""), ops.sample(0.21))

    assert asked({0: "a"}, grown, end=600) == [(210, "aaaa"), (420, "aaaaaaaa"), (630, "aaaaaaaaaa")]


def test_with_latest_from_asks_with_what_is_known_by_then() -> None:
    def informed(source: Observable[str]) -> Observable[Any]:
        weather = rx.interval(0.1).pipe(ops.map(lambda hour: f"hour {hour}"))
        return source.pipe(ops.with_latest_from(weather), ops.map(" ".join), ops.flat_map(text(echo())))

    assert asked({150: "a,", 350: "b,"}, informed) == [(250, "a, hour 0"), (450, "b, hour 2")]
