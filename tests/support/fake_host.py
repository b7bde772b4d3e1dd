"""A run for tools under test: it folds what is published, and nothing else."""

from collections.abc import Callable, Iterable
from typing import Any, cast

from rxloop.pipeline.run_context import Host, RunContext
from rxloop.protocol.events import ContentCompleteEvent, Event
from rxloop.protocol.messages import ToolCall
from rxloop.state.fold import fold
from rxloop.state.run_state import RunState


class FakeHost:
    """Implements what tools use of `Host`."""

    context_id = "c"
    task_id = "r"
    attempt = 1
    agent_name = "agent"

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events: list[Event] = []
        self._state = RunState()
        for event in events:
            self.publish(event)

    def state(self, branch: str | None) -> RunState:
        return self._state

    def publish(self, event: Event) -> None:
        self.events.append(event)
        self._state = fold(self._state, event)

    def emit(self, event: Event, out: Callable[[Event], None] | None) -> None:
        (out or self.publish)(event)

    def context(self, call: ToolCall | None = None, **fields: Any) -> RunContext[Any]:
        call = call or ToolCall(id="call_1", name="tool")
        return RunContext(run=cast("Host", self), call=call, step="1").bind(**fields)

    def message(self, *calls: ToolCall, step: str = "1") -> None:
        """The model asked for these calls."""
        self.publish(ContentCompleteEvent(tool_calls=list(calls), step=step))
