"""The view of a typed answer as it grows."""

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

_WHOLE = COMPLETE - {"pause"}
_STEP = 16
"""An answer of n characters is read again when it has grown by a character, or by n / 16 if that is more."""


@overload
def partial(output_type: type[list[E]]) -> View[Event, list[E] | list[Any]]: ...
@overload
def partial(output_type: type[T]) -> View[Event, T | dict[str, Any]]: ...


def partial(output_type: type[Any]) -> View[Event, Any]:
    """Give the answer as it streams: what there is of its JSON, again and again, and the value at last.

    ::

        source           --d({"na)--d(me":"Os)--d(lo"})--c---|      d deltas, c content-complete
        partial(City)    -----------{name: Os}--{..Oslo}-City|

    The snapshots before the value are plain JSON, a dict for an object. They are not validated: fields may be missing,
    and the last field may be half a text or half a list. The value comes once, when the message is complete. An answer
    that does not fit gives no value, and the next one begins anew. The answer may be text or a call of the tool for it.

    A short answer gives a snapshot with each delta, and a long one in steps of a sixteenth of its length, so that the
    work is in proportion to the length. Equal snapshots come once. Late subscribers get the value alone. The lines of a
    strategy and nested agents are left out.

    Example:
        >>> async for city in run.pipe(op.partial(City)):
        ...     print(city.population if isinstance(city, City) else city.get("name"))

    Args:
        output_type: The `output_type` of the agent.

    Raises:
        ConfigurationError: Pydantic cannot validate the type.
    """
    parse = make_output(output_type).parse
    wrapped = not is_object(make_adapter(output_type)[1])

    def read(out: ViewOutput[Any]) -> Callable[[Event], None]:
        growing = _Growing()

        def grow(piece: str, *, by_tool: bool) -> None:
            if growing.add(piece, unwrap=by_tool and wrapped):
                out.emit(growing.value)

        def end(text: str) -> None:
            growing.reset()
            try:
                value = parse(text)
            except ValueError:
                return
            out.emit(value)

        def take(event: Event) -> None:
            if event.branch is not None or event.parent_task_id is not None:
                return
            match event:
                case ContentDeltaEvent():
                    grow(event.delta, by_tool=False)
                case ToolCallDeltaEvent(name=name) if name == FINAL_ANSWER:
                    if growing.call != event.index:
                        growing.reset(event.index)
                    grow(event.fragment, by_tool=True)
                case ContentCompleteEvent() if not event.tool_calls and event.finish_reason in _WHOLE:
                    end(event.content)
                case ToolCompleteEvent(answer=True, success=True):
                    end(event.content)
                case LLMCallEvent() | ContentCompleteEvent():
                    growing.reset()
                case _:
                    pass

        return take

    return make_view(read)


class _Growing:
    """The text of one answer, and the newest value that it was read as."""

    def __init__(self) -> None:
        self.reset()

    def reset(self, call: int | None = None) -> None:
        """Begin with another answer."""
        self.call = call
        """The place of the call whose arguments the text is; None for the text of the message."""
        self.value: Any = None
        self._pieces: list[str] = []
        self._length = 0
        self._next = 1

    def add(self, piece: str, *, unwrap: bool) -> bool:
        """Take a piece; whether it gave another value."""
        self._pieces.append(piece)
        self._length += len(piece)
        if self._length < self._next:
            return False
        text = "".join(self._pieces)
        self._pieces = [text]
        self._next = self._length + max(1, self._length // _STEP)
        try:
            value: Any = from_json(_unfenced(text), allow_partial="trailing-strings")
        except ValueError:
            return False
        if unwrap:
            value = cast("dict[str, Any]", value).get(VALUE) if isinstance(value, dict) else None
        if value is None or value == self.value:
            return False
        self.value = value
        return True


def _unfenced(text: str) -> str:
    """The text after the opening of a code fence, if it begins with one."""
    text = text.lstrip()
    return text.partition("\n")[2] if text.startswith("```") else text
