"""View for typed answers while they are streamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

from pydantic_core import from_json

from rxloop.operators.views import View
from rxloop.operators.views.make_view import ViewOutput, make_view
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    LLMCallEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
)
from rxloop.protocol.finish import COMPLETE
from rxloop.tools.output import FINAL_ANSWER, VALUE, is_object, make_adapter, make_output

E = TypeVar("E")
T = TypeVar("T")

_FINISHED = COMPLETE - {"pause"}
_STEP = 16
"""Output of n characters is parsed again after max(1, n / 16) more characters."""


@overload
def partial(output_type: type[list[E]]) -> View[Event, list[E] | list[Any]]: ...
@overload
def partial(output_type: type[T]) -> View[Event, T | dict[str, Any]]: ...


def partial(output_type: type[Any]) -> View[Event, Any]:
    """Emit snapshots of a typed answer while it is streamed, and finally the validated value.

    ::

        source           --d({"na)--d(me":"Os)--d(lo"})--c---|      d deltas, c content-complete
        partial(City)    -----------{name: Os}--{..Oslo}-City|

    The snapshots are plain JSON values, for example a dict for an object. They are not validated: fields may be
    missing, and the last one may be incomplete. The value is emitted when the message is complete. If the answer is
    invalid, no value is emitted, and the snapshots start again with the next answer. The answer may be text or a call
    of the answer tool.

    Short answers have a snapshot for each delta, longer ones for each sixteenth of their length, so that the work is
    proportional to the length. Equal snapshots are emitted once. Late subscribers receive only the value. Answers of
    branches and nested agents are ignored.

    Example:
        >>> async for city in run.pipe(op.partial(City)):
        ...     print(city.population if isinstance(city, City) else city.get("name"))

    Args:
        output_type: The `output_type` of the agent.

    Returns:
        View of the snapshots and the value.

    Raises:
        ConfigurationError: Pydantic cannot validate the type.
    """
    parse = make_output(output_type).parse
    wrapped = not is_object(make_adapter(output_type)[1])

    def read(out: ViewOutput[Any]) -> Callable[[Event], None]:
        answer = _StreamedAnswer()

        def add_fragment(fragment: str, *, by_tool: bool) -> None:
            if answer.add(fragment, unwrap=by_tool and wrapped):
                out.emit(answer.value)

        def end(text: str) -> None:
            answer.reset()
            try:
                value = parse(text)
            except ValueError:
                return
            out.emit(value)

        def handle(event: Event) -> None:
            if event.branch is not None or event.parent_task_id is not None:
                return
            match event:
                case ContentDeltaEvent():
                    add_fragment(event.delta, by_tool=False)
                case ToolCallDeltaEvent(name=name) if name == FINAL_ANSWER:
                    if answer.call != event.index:
                        answer.reset(event.index)
                    add_fragment(event.fragment, by_tool=True)
                case ContentCompleteEvent() if not event.tool_calls and event.finish_reason in _FINISHED:
                    end(event.content)
                case ToolCompleteEvent(answer=True, success=True):
                    end(event.content)
                case LLMCallEvent() | ContentCompleteEvent():
                    answer.reset()
                case _:
                    pass

        return handle

    return make_view(read)


class _StreamedAnswer:
    """Streamed answer text with the most recently parsed value."""

    def __init__(self) -> None:
        self.reset()

    def reset(self, call: int | None = None) -> None:
        """Start another answer."""
        self.call = call
        """Tool call index, or None for text answers."""
        self.value: Any = None
        self._pieces: list[str] = []
        self._length = 0
        self._next = 1

    def add(self, fragment: str, *, unwrap: bool) -> bool:
        """Add a fragment, and return True if there is a new value."""
        self._pieces.append(fragment)
        self._length += len(fragment)
        if self._length < self._next:
            return False
        text = "".join(self._pieces)
        self._pieces = [text]
        self._next = self._length + max(1, self._length // _STEP)
        try:
            value: Any = from_json(_strip_fence(text), allow_partial="trailing-strings")
        except ValueError:
            return False
        if unwrap:
            value = cast("dict[str, Any]", value).get(VALUE) if isinstance(value, dict) else None
        if value is None or value == self.value:
            return False
        self.value = value
        return True


def _strip_fence(text: str) -> str:
    """Return the text without the opening of a code fence."""
    text = text.lstrip()
    return text.partition("\n")[2] if text.startswith("```") else text
