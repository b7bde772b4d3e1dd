"""Help for tests of whole runs: what happened on the stream, in short, and how a run ended."""

from collections.abc import AsyncIterable, Callable, Iterable, Sequence, Set
from typing import Any

from rxloop import Event, MemoryEventLog, Message, Result, Run, RunState
from rxloop.errors import AttemptError
from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.messages import ToolCall
from rxloop.state.earlier_attempts import EarlierAttempts
from rxloop.testing.marbles import letter
from support.fake_host import make_info


async def collect(run: AsyncIterable[Event]) -> list[Event]:
    """Every event of a run, or of a stream."""
    return [event async for event in run]


async def outcome(run: Run[Any]) -> Result[Any]:
    """The result of a run, partial where it has no answer."""
    try:
        return await run
    except AttemptError as error:
        return error.result


def letters(events: Iterable[Event]) -> str:
    """The durable events as the letters of `rxloop.testing.marbles`."""
    return "".join(letter(event) for event in events if event.durable)


def shape(messages: Iterable[Message]) -> list[str]:
    """Messages in short: the role, and the text, or else the names of the calls."""
    return [f"{each.role}: {each.text or ','.join(call.name for call in each.tool_calls)}" for each in messages]


def well_formed(messages: Iterable[Message]) -> bool:
    """Whether exactly one answer to each call stands behind its message, in call order."""
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


async def first_events(log: MemoryEventLog, task_id: str, count: int) -> MemoryEventLog:
    """A log that holds the first events of a run: what a crash leaves behind."""
    cut = MemoryEventLog()
    await cut.append(task_id, (await log.read(task_id))[:count], expected_seq=0)
    return cut


class FakeHost:
    """What a request needs of a run, for operators without one."""

    def __init__(self, **states: RunState) -> None:
        self.main = states.pop("state", RunState())
        self.abandoned: list[RunContext[Any]] = []
        self.info = make_info()
        self.durable_seq: int | None = None
        self.system: tuple[Message, ...] = ()
        self.tools = self
        self.earlier = EarlierAttempts()

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
    """A context of a run that is not there."""
    run: Any = host if host is not None else FakeHost()
    return RunContext(run=run, **fields)


def called(name: str = "f", id: str = "0", **arguments: Any) -> ToolCall:
    """A tool call."""
    return ToolCall(id=id, name=name, arguments=arguments)


def each(*turns: Any) -> Callable[[ModelRequest], Any]:
    """One turn after another, for a script of any length."""
    rest = iter(turns)
    return lambda request: next(rest)


def repeated(turn: Any, times: int) -> Sequence[Any]:
    """The same turn so many times."""
    return [turn] * times
