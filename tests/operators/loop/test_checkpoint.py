import asyncio
from typing import Any

import pytest
from reactivex import Observable, abc
from reactivex import operators as ops

from rxloop import Agent, CheckpointEvent, CustomEvent, Event, MemoryEventLog, RunContext, Signal, Usage, op, tool
from rxloop.operators.loop.checkpoint import checkpoint
from rxloop.testing import ScriptedModel, assert_marbles, call, frames, turn, virtual_time
from support.runs import collect, format_marbles, repeat_turn
from support.step_tools import step


def make_loop(every: int) -> list[Any]:
    return [op.call_model(), op.run_tools(), op.checkpoint(every=every)]


@pytest.mark.parametrize(
    ("every", "expected"),
    [(1, [1, 2, 3, 4, 5]), (2, [2, 4, 5]), (3, [3, 5]), (5, [5]), (100, [5])],
)
async def test_checkpoint_is_written_every_n_iterations_and_after_the_last(
    every: int, expected: list[int]
) -> None:  # L86
    model = ScriptedModel(*repeat_turn(call("step"), 4), "done")
    events = await collect(Agent(model, tools=[step], loop=make_loop(every), log=MemoryEventLog()).run("Hi"))

    assert [event.iteration for event in events if isinstance(event, CheckpointEvent)] == expected


class SlowLog(MemoryEventLog):
    async def append(self, task_id: str, events: Any, *, expected_seq: int, writer: str = "") -> None:
        await asyncio.sleep(1)
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)


async def test_durable_seq_of_a_checkpoint_is_stored_when_the_event_arrives() -> None:  # L87
    log = MemoryEventLog()
    checkpoints: list[tuple[int, int | None, int]] = []
    run = Agent(ScriptedModel(call("step"), call("step"), "done"), tools=[step], log=log).run("Hi")

    def look(event: Event) -> None:
        if isinstance(event, CheckpointEvent):
            checkpoints.append((event.seq, event.durable_seq, log._runs[run.task_id].events[-1].seq))

    run.events.subscribe(look)
    await run

    assert len(checkpoints) == 3
    for seq, durable, in_log in checkpoints:
        assert durable == seq - 1
        assert in_log >= seq - 1


def test_next_iteration_waits_until_the_log_is_durable() -> None:  # L86
    with virtual_time():
        model = ScriptedModel(call("step"), "done")
        run = Agent(model, tools=[step], log=SlowLog()).run("Hi")
        # The log starts writing after 50 ms, and each write takes a second.
        assert_marbles(run, "(twlcsx) 1s (kl) 1s (ck) 1s (F|)".replace("(kl) 1s (ck)", "(klc) 1s k"))


async def test_checkpoint_without_a_log_has_no_durable_seq() -> None:
    events = await collect(Agent(ScriptedModel("done")).run("Hi"))

    (point,) = [event for event in events if isinstance(event, CheckpointEvent)]
    assert point.durable_seq is None
    assert point.message_count == 2
    assert format_marbles(events) == "twlckF"


async def test_checkpoint_counts_messages_and_tokens_of_the_run() -> None:
    used = Usage(input_tokens=5, output_tokens=1)
    model = ScriptedModel(turn(calls=[call("step")], usage=used), turn("done", usage=used))
    events = await collect(Agent(model, tools=[step]).run("Hi"))

    points = [event for event in events if isinstance(event, CheckpointEvent)]
    assert [(point.iteration, point.message_count, point.usage.total_tokens) for point in points] == [
        (1, 3, 6),
        (2, 4, 12),
    ]


async def test_checkpoint_is_written_when_the_run_pauses() -> None:  # L86
    @tool
    async def asks(ctx: RunContext[None]) -> str:
        """Asks."""
        return str(await ctx.ask("Sure?"))

    agent = Agent(ScriptedModel(call("asks")), tools=[asks], loop=make_loop(100), log=MemoryEventLog())

    assert format_marbles(await collect(agent.run("Hi"))) == "twlcsikF"


@pytest.mark.parametrize("every", [0, -1])
def test_checkpoint_rejects_an_interval_below_one(every: int) -> None:
    with pytest.raises(ValueError, match="every must be an integer of at least 1"):
        checkpoint(every=every)


def test_warning_names_an_operator_that_holds_back_checkpoints(caplog: pytest.LogCaptureFixture) -> None:
    loop: list[Any] = [*op.standard(), ops.delay(0.1)]
    with virtual_time() as time:
        result = time.run(Agent(ScriptedModel(frames("-H-i-|")), loop=loop).run("Go."))
    assert result.output == "Hi"
    assert "an operator after op.checkpoint() may be holding it" in caplog.text


async def test_warning_is_logged_when_an_operator_emits_after_its_end(caplog: pytest.LogCaptureFixture) -> None:
    def emit_late(source: Observable[Signal]) -> Observable[Signal]:
        def subscribe(observer: abc.ObserverBase[Signal], scheduler: abc.SchedulerBase | None = None) -> Any:
            def on_completed() -> None:
                observer.on_completed()
                observer.on_next(CustomEvent(name="late", data={}))

            return source.subscribe(observer.on_next, observer.on_error, on_completed, scheduler=scheduler)

        return Observable(subscribe)

    assert (await Agent(ScriptedModel("Hi."), loop=[*op.standard(), emit_late]).run("Go.")).output == "Hi."
    assert "because its operator has completed" in caplog.text
