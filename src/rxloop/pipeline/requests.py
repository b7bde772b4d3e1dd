"""Requests that travel in the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as it is offered to the model."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of the arguments."""
    strict: bool = False
    hidden: bool = False
    """Calls of it are not for clients."""
    answer: bool = False
    """A call of it gives the answer of the run."""
    size: int = field(init=False, compare=False, repr=False)
    """Characters that it takes in a request, for estimates."""

    def __post_init__(self) -> None:
        size = len(self.name) + len(self.description) + len(orjson.dumps(self.parameters))
        object.__setattr__(self, "size", size)


class Request(Generic[D_co]):
    """What an operator may hold, replace, answer or multiply; everything else in a pipeline is an event.

    `Request[Deps]` is for the type checker alone: what an operator takes whose handler wants `RunContext[Deps]`.
    """

    __slots__ = ()

    if TYPE_CHECKING:
        # By this a type checker tells requests from all that a `Stream` may have: see `stream.Readable`.
        __sizeof__: None  # type: ignore[assignment]  # pyright: ignore[reportIncompatibleMethodOverride]

        ctx: RunContext[D_co]


@dataclass(frozen=True, slots=True)
class RunRequest(Request[Any]):
    """Carry out the run that `ctx` describes: answered by `iterate` or another strategy."""

    ctx: RunContext[Any] = field(repr=False)


class ModelRequestChanges(TypedDict, total=False):
    """What `ModelRequest.replace` takes: its fields."""

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
    """Call the model: answered by `call_model`.

    The model gets `system`, then `messages`, then `tail`; only `messages` is history.
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
    """JSON Schema that the answer has to fit; a provider that can make the model keep to it does."""
    history: int | None = None
    """How many messages the history had when the request was made: what it gained since goes behind `messages`."""
    pressure: int = 0
    """How often the provider has said that this request is too long."""
    estimate: int | None = None
    """The tokens that it is estimated to take, where somebody has counted them."""
    thinking: ThinkingResult | None = None
    """What the thinking phase made of the run so far, where there is one."""
    ctx: RunContext[Any] = field(default_factory=RunContext, repr=False)

    def __post_init__(self) -> None:
        check_printable(self.step, "the step of a ModelRequest")
        if self.branch is not None:
            check_printable(self.branch, "the branch of a ModelRequest")
        if (self.ctx.step, self.ctx.branch) != (self.step, self.branch):
            object.__setattr__(self, "ctx", self.ctx.bind(step=self.step, branch=self.branch))

    def replace(self, **changes: Unpack[ModelRequestChanges]) -> ModelRequest:
        """The same request with other fields."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class ToolRequest(Request[Any]):
    """Carry out one tool call: answered by `run_tools`."""

    call: ToolCall
    ctx: RunContext[Any] = field(repr=False)
    offered: tuple[ToolDefinition, ...] | None = field(default=None, repr=False)
    """The tools that the model was offered, and after a resume still is; None is all that the run has then."""

    def __post_init__(self) -> None:
        if self.ctx.call is not self.call:
            # The tool reads its call from the context.
            object.__setattr__(self, "ctx", self.ctx.bind(call=self.call))

    @property
    def slot(self) -> tuple[str, int]:
        """The place that the answer fills: the step and the place of the call in its message."""
        return self.ctx.step or "", self.ctx.index

    def replace(self, **arguments: Any) -> ToolRequest:
        """The same call with some arguments changed.

        The model and the clients are told which arguments were executed.

        Raises:
            InvalidEvent: An argument cannot be written as JSON.
        """
        changed = freeze_json({**self.call.arguments, **arguments}, "the arguments")
        update: dict[str, Any] = {"arguments": changed}
        if changed != self.call.arguments:
            update["raw"] = None
        call = self.call.model_copy(update=update)
        return ToolRequest(call, self.ctx, self.offered)

    def refuse(self, reason: str) -> ToolCompleteEvent:
        """The answer to a call that is not carried out: `reason` is what the model reads."""
        return self._complete(success=False, error=reason, content=reason)

    def answer(self, result: Any, content: str, parts: Sequence[ImagePart | FilePart] = ()) -> ToolCompleteEvent:
        """The answer to a call without carrying it out: from a cache, say.

        Args:
            result: The value, as JSON.
            content: The text that the model reads.
            parts: Images and files that it sees after the text.
        """
        content = add_edit_note(add_placeholders(content, parts), self.ctx, self.call)
        return self._complete(success=True, result=result, content=content, parts=list(parts))

    def of(self, tool: ToolDefinition) -> ToolRequest:
        """The same request, with what its tool says of each call: that it is hidden, or gives the answer of the run."""
        if self.ctx.answer == tool.answer and self.call.hidden >= tool.hidden:
            return self
        call = self.call.model_copy(update={"hidden": True}) if tool.hidden else self.call
        return ToolRequest(call, self.ctx.bind(call=call, answer=tool.answer), self.offered)

    def _complete(self, **fields: Any) -> ToolCompleteEvent:
        return ToolCompleteEvent(answer=self.ctx.answer, **{**self.ctx.call_fields, "call": self.call}, **fields)


@dataclass(frozen=True, slots=True)
class IterationEnd(Request[Any]):
    """Everything of one iteration has been asked for: answered by what stands at the end of a pipeline."""

    iteration: int
    ctx: RunContext[Any] = field(repr=False)


Signal = Event | Request[Any]
"""What travels in a pipeline."""

OperatorDeps = TypeVar("OperatorDeps", default=Any)

Operator = Callable[[Observable[Event | Request[OperatorDeps]]], Observable[Signal]]
"""Works in the loop: events pass untouched and at once; requests may be held, replaced, answered or multiplied.

`Operator[Deps]` fits an agent with `deps_type=Deps`, and `Operator[object]` every agent; of an `Operator` that names no
deps the type checker does not ask.
"""

Strategy = Callable[[Operator[OperatorDeps]], Operator[OperatorDeps]]
"""Takes the pipeline of one iteration and gives what answers a `RunRequest`."""
