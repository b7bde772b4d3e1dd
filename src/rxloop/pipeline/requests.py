"""Pipeline requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypedDict

import orjson
from reactivex import Observable
from typing_extensions import TypeVar, Unpack

from rxloop.pipeline.edited_calls import add_edit_note
from rxloop.pipeline.run_context import D_co, RunContext
from rxloop.pipeline.thinking_result import ThinkingResult
from rxloop.protocol.envelope import check_printable
from rxloop.protocol.events import Event, ToolCompleteEvent
from rxloop.protocol.json_data import freeze_json
from rxloop.protocol.messages import FilePart, ImagePart, Message, ToolCall
from rxloop.protocol.parts import add_placeholders
from rxloop.protocol.settings import ModelSettings
from rxloop.support.misuse import explain_changes


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """Tool definition sent to the model."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema for the arguments."""
    strict: bool = False
    hidden: bool = False
    """True if calls are hidden from clients."""
    answer: bool = False
    """True if a call returns the final answer."""
    size: int = field(init=False, compare=False, repr=False)
    """Size in characters, for token estimates."""

    def __post_init__(self) -> None:
        size = len(self.name) + len(self.description) + len(orjson.dumps(self.parameters))
        object.__setattr__(self, "size", size)


class Request(Generic[D_co]):
    """Base class for requests, which operators may delay, replace, answer or duplicate.

    Only type checkers use the parameter: operators with a `RunContext[Deps]` handler accept `Request[Deps]`.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        # Type checkers use this to distinguish requests from other `Stream` items. See `stream.Readable`.
        __sizeof__: None  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]

        ctx: RunContext[D_co]


@dataclass(frozen=True, slots=True)
class RunRequest(Request[Any]):
    """Request to execute a run, answered by `iterate` or another strategy."""

    ctx: RunContext[Any] = field(repr=False)


class ModelRequestChanges(TypedDict, total=False):
    """Keyword arguments of `ModelRequest.replace`."""

    messages: Sequence[Message]
    system: tuple[Message, ...]
    tail: tuple[Message, ...]
    tools: tuple[ToolDefinition, ...]
    settings: ModelSettings
    step: str
    branch: str | None
    iteration: int
    response_schema: dict[str, Any] | None
    history: int | None
    pressure: int
    estimate: int | None
    thinking: ThinkingResult | None
    ctx: RunContext[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest(Request[Any]):
    """Request to call the model, answered by `call_model`.

    The model receives `system`, `messages` and `tail`, in this order. Only `messages` belongs to the history.
    """

    messages: Sequence[Message]
    system: tuple[Message, ...] = ()
    tail: tuple[Message, ...] = ()
    tools: tuple[ToolDefinition, ...] = ()
    settings: ModelSettings = field(default_factory=ModelSettings)
    step: str = "1"
    branch: str | None = None
    iteration: int = 1
    response_schema: dict[str, Any] | None = None
    """JSON Schema for the answer. Providers enforce it if supported."""
    history: int | None = None
    """Length of the history when the request was created. Later messages are appended to `messages`."""
    pressure: int = 0
    """Number of times that the provider rejected this request as too long."""
    estimate: int | None = None
    """Estimated number of tokens, if available."""
    thinking: ThinkingResult | None = None
    """Result of the thinking phase, if any."""
    ctx: RunContext[Any] = field(default_factory=RunContext, repr=False)

    def __post_init__(self) -> None:
        check_printable(self.step, "the step of a ModelRequest")
        if self.branch is not None:
            check_printable(self.branch, "the branch of a ModelRequest")
        if (self.ctx.step, self.ctx.branch) != (self.step, self.branch):
            object.__setattr__(self, "ctx", self.ctx.bind(step=self.step, branch=self.branch))

    def replace(self, **changes: Unpack[ModelRequestChanges]) -> ModelRequest:
        """Return a copy with changed fields."""
        # `dataclasses.replace` reads each field with a call.
        values: dict[str, Any] = dict(zip(_FIELDS, _get_fields(self), strict=True))
        values.update(changes)
        return ModelRequest(**values)


_FIELDS = tuple(each.name for each in fields(ModelRequest))
_get_fields = attrgetter(*_FIELDS)


@dataclass(frozen=True, slots=True)
class ToolRequest(Request[Any]):
    """Request to execute a tool call, answered by `run_tools`."""

    call: ToolCall
    ctx: RunContext[Any] = field(repr=False)
    offered: tuple[ToolDefinition, ...] | None = field(default=None, repr=False)
    """Tools offered to the model that are still available after a resume. None means all tools."""

    def __post_init__(self) -> None:
        if self.ctx.call is not self.call:
            # Tools access their call through the context.
            object.__setattr__(self, "ctx", self.ctx.bind(call=self.call))

    @property
    def slot(self) -> tuple[str, int]:
        """Step and call index, which identify the result."""
        return self.ctx.step or "", self.ctx.index

    def replace(self, **arguments: Any) -> ToolRequest:
        """Return a copy with changed arguments.

        The model and clients are informed of the executed arguments.

        Raises:
            InvalidEvent: If an argument is not valid JSON.
        """
        changed = freeze_json({**self.call.arguments, **arguments}, "the arguments")
        update: dict[str, Any] = {"arguments": changed}
        if changed != self.call.arguments:
            update["raw"] = None
        call = self.call.model_copy(update=update)
        return ToolRequest(call, self.ctx, self.offered)

    def refuse(self, reason: str, *, code: str = "refused") -> ToolCompleteEvent:
        """Return a failed result without executing the call.

        Args:
            reason: Text for the model.
            code: Code for programs, as in `ToolCompleteEvent.code`.
        """
        return self._complete(success=False, error=reason, code=code, content=reason)

    def answer(self, result: Any, content: str, parts: Sequence[ImagePart | FilePart] = ()) -> ToolCompleteEvent:
        """Return a successful result without executing the call, for example from a cache.

        Args:
            result: JSON value.
            content: Text for the model.
            parts: Images and files that follow the text.
        """
        content = add_edit_note(add_placeholders(content, parts), self.ctx, self.call)
        return self._complete(success=True, result=result, content=content, parts=list(parts))

    def of(self, tool: ToolDefinition) -> ToolRequest:
        """Return a copy with the tool's `hidden` and `answer` flags."""
        if self.ctx.answer == tool.answer and self.call.hidden >= tool.hidden:
            return self
        call = self.call.model_copy(update={"hidden": True}) if tool.hidden else self.call
        return ToolRequest(call, self.ctx.bind(call=call, answer=tool.answer), self.offered)

    def _complete(self, **fields: Any) -> ToolCompleteEvent:
        return ToolCompleteEvent(answer=self.ctx.answer, **{**self.ctx.call_fields, "call": self.call}, **fields)


@dataclass(frozen=True, slots=True)
class IterationEnd(Request[Any]):
    """Final request of an iteration, answered by the end of the pipeline."""

    iteration: int
    ctx: RunContext[Any] = field(repr=False)


explain_changes(ModelRequest, "yield request.replace(messages=..., settings=...)")
explain_changes(ToolRequest, "yield request.replace(argument=value), or request.refuse(reason)")

Signal = Event | Request[Any]
"""Any pipeline item."""

OperatorDeps = TypeVar("OperatorDeps", default=Any)

Operator = Callable[[Observable[Event | Request[OperatorDeps]]], Observable[Signal]]
"""Pipeline operator. Events pass through immediately. Requests may be delayed, replaced, answered or duplicated.

`Operator[Deps]` works with agents that have `deps_type=Deps`, and `Operator[object]` with all agents. Type checkers do
not check an `Operator` without a type argument."""

Strategy = Callable[[Operator[OperatorDeps]], Operator[OperatorDeps]]
"""Function that wraps the pipeline of an iteration and answers the `RunRequest`."""
