"""Helpers for whole runs: collect events, abbreviate them, and create test data."""

from collections.abc import AsyncIterable, Callable, Iterable, Sequence, Set
from typing import Any

from rxloop import Event, MemoryEventLog, Message, Result, Run, RunState
from rxloop.errors import AttemptError
from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.run_context import RunContext
from rxloop.pipeline.sent.requests import SentRequests
from rxloop.protocol.messages import ToolCall
from rxloop.state.earlier_attempts import EarlierAttempts
from rxloop.testing.marbles import get_marble
from support.fake_host import make_info


async def collect(run: AsyncIterable[Event]) -> list[Event]:
    """Collect all events."""
    return [event async for event in run]


async def outcome(run: Run[Any]) -> Result[Any]:
    """Return the result of a run, or the partial result if it failed."""
    try:
        return await run
    except AttemptError as error:
        return error.result


def format_marbles(events: Iterable[Event]) -> str:
    """Return the durable events as letters of `rxloop.testing.marbles`."""
    return "".join(get_marble(event) for event in events if event.durable)


def shape(messages: Iterable[Message]) -> list[str]:
    """Abbreviate messages to roles with texts or call names."""
    return [f"{each.role}: {each.text or ','.join(call.name for call in each.tool_calls)}" for each in messages]


def is_well_formed(messages: Iterable[Message]) -> bool:
    """Return True if each message with calls is followed by one result per call, in call order."""
    due: list[str] = []
    for message in messages:
        if message.role == "tool":
            if not due or message.tool_call_id != due.pop(0):
                return False
        elif due:
            return False
        else:
            due = [call.id for call in message.tool_calls]
    return not due


async def copy_first_events(log: MemoryEventLog, task_id: str, count: int) -> MemoryEventLog:
    """Return a log with a run's first events, simulating a crash."""
    cut = MemoryEventLog()
    await cut.append(task_id, (await log.read(task_id))[:count], expected_seq=0)
    return cut


class FakeRequestHost:
    """Minimal host for operator tests without a run."""

    def __init__(self, **states: RunState) -> None:
        self.main = states.pop("state", RunState())
        self.abandoned: list[RunContext[Any]] = []
        self.info = make_info()
        self.durable_seq: int | None = None
        self.system: tuple[Message, ...] = ()
        self.tools = self
        self.earlier = EarlierAttempts()
        self.request_texts: set[str] = set()
        self.sent_requests = SentRequests(self)

    def state(self, branch: str | None) -> RunState:
        return self.main

    def offers(self, name: str) -> bool:
        return True

    def hides(self, name: str) -> bool:
        return False

    def has_others(self, names: Set[str]) -> bool:
        return False

    def narrow(self, step: str, tools: Any = None) -> Any:
        return tools

    def close_abandoned(self, ctx: RunContext[Any]) -> None:
        self.abandoned.append(ctx)


def context(host: Any = None, **fields: Any) -> RunContext[Any]:
    """Return the context of a fake run."""
    run: Any = host if host is not None else FakeRequestHost()
    return RunContext(run=run, **fields)


def tool_call(name: str = "f", id: str = "0", **arguments: Any) -> ToolCall:
    """Return a tool call."""
    return ToolCall(id=id, name=name, arguments=arguments)


def turns_in_order(*turns: Any) -> Callable[[ModelRequest], Any]:
    """Return a script turn that yields the given turns one after another."""
    rest = iter(turns)
    return lambda request: next(rest)


def repeat_turn(turn: Any, times: int) -> Sequence[Any]:
    """Repeat a turn."""
    return [turn] * times
