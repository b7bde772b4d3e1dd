from __future__ import annotations

import asyncio
from typing import Any

import pytest
from reactivex.testing import TestScheduler

from rxloop import Agent, errors
from rxloop.errors import ConfigurationError
from rxloop.providers import limited
from rxloop.providers.script import ScriptedModel, frames
from rxloop.testing import virtual_time
from rxloop.testing.virtual_time import NothingLeft
from support.http_server import REQUEST, Server, chat_model, collect, text_reply
from support.virtual_models import ColdModel, failing_answer, summarize, text_answer


class Calls:
    """Timed calls of one limited model, in virtual time."""

    def __init__(self, *answers: list[Any], **limits: Any) -> None:
        self.scheduler = TestScheduler()
        self.model = ColdModel(self.scheduler, *answers)
        self.limited = limited(self.model, **limits)
        self.observers: list[Any] = []

    def at(self, start: int, leave: int = 900) -> None:
        observer = self.scheduler.create_observer()
        self.observers.append(observer)
        subscription: list[Any] = []

        def enter(*_: Any) -> None:
            subscription.append(self.limited.call(REQUEST).subscribe(observer, scheduler=self.scheduler))

        self.scheduler.schedule_absolute(start, enter)
        self.scheduler.schedule_absolute(leave, lambda *_: subscription[0].dispose())

    def run(self) -> list[tuple[int, int]]:
        self.scheduler.start()
        assert (self.limited.running, self.limited.waiting) == (0, 0)
        return self.model.times


def test_calls_over_the_limit_start_in_order() -> None:
    calls = Calls(text_answer("hi"), concurrent=2)
    for start in (10, 11, 12, 13):
        calls.at(start)
    assert calls.run() == [(10, 25), (11, 26), (25, 40), (26, 41)]
    assert summarize(calls.observers[2].messages) == [(35, "hi"), (40, "complete"), (40, "|")]


def test_waiting_call_that_is_disposed_is_never_made() -> None:
    calls = Calls(text_answer("hi"), concurrent=1)
    calls.at(10)
    calls.at(11, leave=20)
    calls.at(12)
    assert calls.run() == [(10, 25), (25, 40)]
    assert calls.observers[1].messages == []


def test_running_call_that_is_disposed_releases_its_slot() -> None:
    calls = Calls(text_answer("hi", at=100), concurrent=1)
    calls.at(10, leave=30)
    calls.at(11)
    assert calls.run() == [(10, 30), (30, 135)]


def test_failed_call_releases_its_slot() -> None:
    calls = Calls(failing_answer(errors.ServerError("oops")), text_answer("hi"), concurrent=1)
    calls.at(10)
    calls.at(11)
    assert calls.run() == [(10, 20), (20, 35)]
    assert summarize(calls.observers[0].messages) == [(20, "# oops")]


def test_calls_per_minute_are_limited() -> None:
    calls = Calls(text_answer("hi"), per_minute=2)
    for start in (10, 30, 31, 32, 33):
        calls.at(start)
    assert [start for start, _ in calls.run()] == [10, 30, 70, 90, 130]


def test_calls_start_at_once_after_an_idle_minute() -> None:
    calls = Calls(text_answer("hi"), per_minute=1)
    calls.at(10)
    calls.at(70)
    assert [start for start, _ in calls.run()] == [10, 70]


def test_both_limits_apply() -> None:
    calls = Calls(text_answer("hi", at=75), concurrent=1, per_minute=1)
    for start in (10, 11):
        calls.at(start)
    assert [start for start, _ in calls.run()] == [10, 90]


def test_empty_queue_has_no_timer() -> None:
    calls = Calls(text_answer("hi"), per_minute=1)
    calls.at(10)
    calls.at(11, leave=12)
    calls.at(75)
    assert [start for start, _ in calls.run()] == [10, 75]


def test_empty_queue_does_not_keep_the_loop_waiting() -> None:
    model = limited(ScriptedModel("hi", "never"), per_minute=1)

    async def leave() -> None:
        await collect(model.call(REQUEST))
        model.call(REQUEST).subscribe().dispose()
        await asyncio.get_running_loop().create_future()

    with virtual_time() as time:
        with pytest.raises(NothingLeft):
            time.run(leave())
        assert time.now == 0


@pytest.mark.parametrize("moment", ["in the answer", "at its end"])
def test_failing_subscriber_does_not_affect_waiting_calls(moment: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("a bug")

    model = limited(ScriptedModel(frames("--a|"), "b", "c"), concurrent=1)
    told: list[Exception] = []

    async def three() -> list[Any]:
        first = asyncio.ensure_future(collect(model.call(REQUEST)))
        await asyncio.sleep(0)
        if moment == "in the answer":
            model.call(REQUEST).subscribe(fail, told.append)
        else:
            model.call(REQUEST).subscribe(lambda _: None, told.append, fail)
        third = await collect(model.call(REQUEST))
        return [(await first).error, third.error, model.running]

    with virtual_time() as time:
        assert time.run(three()) == [None, None, 0]
    assert [str(error) for error in told] == (["a bug"] if moment == "in the answer" else [])
    assert ("a bug" in caplog.text) == (moment == "at its end")


def test_calls_that_end_at_their_start_keep_a_flat_stack() -> None:
    model = limited(ScriptedModel(frames("--a|"), *["hi"] * 2000), concurrent=1)

    async def all_of_them() -> int:
        answers = await asyncio.gather(*(collect(model.call(REQUEST)) for _ in range(2001)))
        return sum(answer.error is None for answer in answers)

    with virtual_time() as time:
        assert time.run(all_of_them()) == 2001


def test_limit_is_shared_by_all_agents_of_a_model() -> None:
    class Counting(ScriptedModel):
        most = 0

        def call(self, request: Any) -> Any:
            self.most = max(self.most, self.open + 1)
            return super().call(request)

    script = Counting(*[frames("----hi|")] * 6, name="script")
    model = limited(script, concurrent=2)
    assert model.name == "script"
    one, two = Agent(model, name="one"), Agent(model, name="two")

    async def all_of_them() -> list[str]:
        return [result.output for result in await asyncio.gather(*(agent.run("Hi") for agent in [one, two] * 3))]

    with virtual_time() as time:
        assert time.run(all_of_them()) == ["hi"] * 6
        assert time.now == pytest.approx(3 * 0.125)
    assert script.most == 2


def test_waiting_run_can_be_cancelled() -> None:
    model = limited(ScriptedModel(frames("-" * 40 + "hi|"), "never"), concurrent=1)

    async def both() -> tuple[str, str]:
        first, second = Agent(model).run("Hi"), Agent(model).run("Hi")
        asyncio.get_running_loop().call_later(0.1, second.cancel)
        with pytest.raises(errors.RunCancelled) as caught:
            await asyncio.gather(first.result(), second.result())
        return (await first).output, caught.value.code

    with virtual_time() as time:
        assert time.run(both()) == ("hi", "canceled")


async def test_waiting_call_needs_no_task() -> None:
    model = limited(ScriptedModel(frames("--")), concurrent=1)
    calls = [model.call(REQUEST).subscribe() for _ in range(50)]
    assert (model.running, model.waiting) == (1, 49)
    assert len(asyncio.all_tasks()) == 2
    for call in reversed(calls):
        call.dispose()
    assert (model.running, model.waiting) == (0, 0)
    await asyncio.sleep(0)


async def test_exception_at_the_start_of_a_call_releases_its_slot() -> None:
    class Raising(ScriptedModel):
        def call(self, request: Any) -> Any:
            raise errors.ServerError("oops")

    model = limited(Raising(), concurrent=1)
    answers = [await collect(model.call(REQUEST)) for _ in range(3)]
    assert [str(answer.error) for answer in answers] == ["oops"] * 3


def test_event_loops_have_separate_queues() -> None:
    model = limited(ScriptedModel(*["hi"] * 3), per_minute=1)
    for _ in range(3):
        assert asyncio.run(collect(model.call(REQUEST))).error is None
    assert len(vars(model)["_queues"]) == 1


async def test_real_requests_wait_for_each_other(server: Server) -> None:
    server.answer(text_reply("hi"))
    model = limited(chat_model(server), concurrent=1)
    answers = await asyncio.gather(*(collect(model.call(REQUEST)) for _ in range(5)))
    assert [answer.error for answer in answers] == [None] * 5
    # All requests share one connection.
    assert (len(server.requests), server.connections) == (5, 1)
    await model.aclose()


def test_limit_that_admits_no_call_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="per_minute"):
        limited("zai", per_minute=0)
    with pytest.raises(ConfigurationError, match="concurrent"):
        limited("zai", concurrent=-1)
    assert limited("zai", concurrent=1).name == "zai:glm-4.7"
