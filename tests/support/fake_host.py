"""Fake run for tool tests. It only folds the published events."""

from collections.abc import Callable, Iterable
from typing import Any, cast

from rxloop.pipeline.host import Host
from rxloop.pipeline.run_context import AttemptInfo, RunContext
from rxloop.protocol.events import ContentCompleteEvent, Event
from rxloop.protocol.messages import ToolCall
from rxloop.protocol.settings import Limits
from rxloop.state.fold import fold
from rxloop.state.run_state import RunState
from rxloop.stream.scope import Scope, TimeScope
from rxloop.support.tasks import CLOCK


def make_info(**changes: Any) -> AttemptInfo:
    """Return the info of attempt 1 of the run "r" in the conversation "c"."""
    facts: dict[str, Any] = {
        "ids": {"task_id": "r", "context_id": "c", "attempt": 1},
        "agent_name": "agent",
        "model": None,
        "log": None,
        "limits": Limits(),
        "thought_limit": 3,
        "metadata": {},
        "clock": CLOCK.get(),
        "scope": Scope(),
        "time_scope": TimeScope(),
        "describe_loop": lambda: "call_model",
        "answers_inline": False,
        "resolve_model": lambda model: model,
    }
    return AttemptInfo(**facts | changes)


class FakeHost:
    """Partial implementation of `Host` for tools."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.info = make_info()
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
        """Publish a message with calls."""
        self.publish(ContentCompleteEvent(tool_calls=list(calls), step=step))
