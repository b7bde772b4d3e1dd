"""Scripted model for tests.

    model = ScriptedModel(call("get_weather", city="Oslo"), "It is 7 C in Oslo.")

Each turn answers one request. By default turns are delivered immediately, without tasks or delays. Turns created with
`frames` take time, which is virtual in `rxloop.testing.virtual_time`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Self, Union, cast

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxloop.errors import ConfigurationError, ProviderError
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import ContentDeltaEvent, Event, ToolCallDeltaEvent
from rxloop.protocol.messages import Citation, FilePart, ImagePart, Usage
from rxloop.providers.codecs.text import make_text_delta
from rxloop.providers.script.turns import (
    Frames,
    RecordedAnswer,
    ScriptedCall,
    ScriptedTurn,
    hidden_tools,
    make_key,
    push_end,
    push_frames,
    push_reasoning,
    recorded_answers,
    stay_open,
)
from rxloop.stream.sources import Push, from_task


class ScriptExhausted(ProviderError):
    """Raised if a `ScriptedModel` has no turns left."""

    code = "script"


Turn = Union[  # noqa: UP007
    str,
    ScriptedCall,
    Frames,
    ScriptedTurn,
    RecordedAnswer,
    Sequence["str | ScriptedCall"],
    Exception,
    Callable[[ModelRequest], "Turn"],
]
"""Turn of a script."""


def call(name: str, /, _id: str | None = None, **arguments: Any) -> ScriptedCall:
    """Create a tool call.

    Args:
        name: Tool name.
        _id: Call id, defaulting to `call_1`, `call_2` and so on.
        **arguments: Call arguments.

    Raises:
        ConfigurationError: The name is not a string.
    """
    value: Any = name
    if not isinstance(value, str):
        raise ConfigurationError(f"name must be a string, such as call('get_weather', city='Oslo'), got {value!r}")
    return ScriptedCall(name, arguments, _id)


def frames(line: str, frame: float = 0.025) -> Frames:
    """Create a timed turn.

    ::

        frames("--The service--is slow.|")     two deltas, at 50 and 125 ms; complete at 150 ms

    Args:
        line: Symbols taking one frame each: `-` waits, `|` completes, `#` fails with a `ProviderError`. Other
            characters between symbols, including blanks, form a single delta. Without `|` or `#`, the stream remains
            open until disposed.
        frame: Frame duration in seconds.
    """
    symbols = tuple(re.findall(r"[-|#]|[^-|#]+", line))
    if any(symbol in "|#" for symbol in symbols[:-1]):
        raise ConfigurationError(f"frames({line!r}): nothing can follow '|' or '#'")
    return Frames(symbols, frame)


def turn(
    text: str | Frames = "",
    *,
    calls: Sequence[ScriptedCall] = (),
    reasoning: str | None = None,
    usage: Usage | None = None,
    finish_reason: str | None = None,
    raw_finish_reason: str | None = None,
    files: Sequence[ImagePart | FilePart] = (),
    citations: Sequence[Citation] = (),
) -> ScriptedTurn:
    """Create a detailed turn.

    Args:
        text: Content, optionally using `frames`.
        calls: Tool calls.
        reasoning: Reasoning published before the text.
        usage: Reported usage.
        finish_reason: Defaults to `tool_calls` with calls, otherwise `stop`.
        raw_finish_reason: The vendor's finish reason.
        files: Generated images and files.
        citations: Cited sources.

    Raises:
        ConfigurationError: The text has another type.
    """
    value: Any = text
    if not isinstance(value, str | Frames):
        raise ConfigurationError(f"text must be a string or frames(...), got {value!r}; write turn(calls=[call(...)])")
    return ScriptedTurn(
        text=text,
        calls=tuple(calls),
        reasoning=reasoning,
        usage=usage,
        finish_reason=finish_reason,
        raw_finish_reason=raw_finish_reason,
        files=tuple(files),
        citations=tuple(citations),
    )


class ScriptedModel:
    """`Provider` playing a script.

    Args:
        *turns: Turns in order: a string; a `call`; a list containing strings and calls; `frames`; a detailed `turn`; an
            exception; or a function returning any of these for a request.
        name: Model name used in events.
        reasoning: Default reasoning.

    Attributes:
        requests: Subscribed requests in order.
        open: Number of open streams.
    """

    def __init__(self, *turns: Turn, name: str = "scripted", reasoning: str | None = None) -> None:
        for item in turns:
            _check_turn(item)
        self.requests: list[ModelRequest] = []
        self.open = 0
        self._turns = turns
        self._name = name
        self._reasoning = reasoning
        self._calls = 0

    @classmethod
    def from_events(cls, events: Iterable[Event], *, task_id: str | None = None) -> Self:
        """Create a model that repeats a recorded run under the recorded model name.

        On the main branch answers are returned in order. On other branches they are selected by step, so branches can
        run in any order. Answers are delivered immediately. Failed answers fail again, and interrupted ones stay open.

        Args:
            events: Run events including the `task` event, with or without deltas.
            task_id: Run to repeat, defaulting to the outermost one.

        Raises:
            ConfigurationError: The run is missing.
        """
        name, answers = recorded_answers(events, task_id)

        def answer(request: ModelRequest) -> RecordedAnswer:
            left = answers.get(make_key(request.branch, request.step))
            if not left:
                remaining = ", ".join(str(answer.step) for line in answers.values() for answer in line) or "nothing"
                raise ScriptExhausted(
                    f"the recording has no answer for step {request.step}; remaining answers: {remaining}"
                )
            return left.pop(0)

        # Add a turn, so that a surplus request fails with the list of remaining answers.
        return cls(*[answer] * (sum(map(len, answers.values())) + 1), name=name)

    @property
    def name(self) -> str:
        """Name of the model in events."""
        return self._name

    async def aclose(self) -> None:
        """Do nothing, since there are no connections."""

    def call(self, request: ModelRequest) -> Observable[Event]:
        """Return the next turn, selected on subscription."""

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            self.requests.append(request)
            number = len(self.requests)
            try:
                answer = self._next(request, number)
            except Exception as error:
                observer.on_error(error)
                return Disposable()
            if isinstance(answer, RecordedAnswer):
                return self._play_recorded(answer, request, observer)
            if isinstance(answer.text, Frames):
                return self._play_frames(answer, answer.text, request, number).subscribe(observer, scheduler=scheduler)
            self.open += 1
            try:
                push_reasoning(answer, number, observer.on_next)
                if answer.text:
                    observer.on_next(make_text_delta(ContentDeltaEvent, answer.text, 0, None))
                push_end(answer, answer.text, request, observer.on_next)
            finally:
                self.open -= 1
            observer.on_completed()
            return Disposable()

        return Observable(subscribe)

    def _play_recorded(
        self, answer: RecordedAnswer, request: ModelRequest, observer: abc.ObserverBase[Event]
    ) -> abc.DisposableBase:
        """Play a recorded answer."""
        open_ = 1

        def close() -> None:
            nonlocal open_
            self.open -= open_
            open_ = 0

        self.open += open_
        try:
            for event in answer.events:
                hidden = isinstance(event, ToolCallDeltaEvent) and event.name in hidden_tools(request)
                observer.on_next(event.model_copy(update={"hidden": True} if hidden else None))
        except BaseException:
            close()
            raise
        if answer.cut_off:
            # A task represents the open socket. Otherwise the run would appear to be idle.
            name = f"{self.name}-stream"
            leaf = from_task(stay_open, request.ctx, name=name, shielded=True).subscribe(observer)
            return CompositeDisposable(leaf, Disposable(close))
        close()
        if answer.error is not None:
            observer.on_error(answer.error)
        else:
            observer.on_completed()
        return Disposable()

    def _next(self, request: ModelRequest, number: int) -> ScriptedTurn | RecordedAnswer:
        if number > len(self._turns):
            turns = f"{len(self._turns)} turn" + ("" if len(self._turns) == 1 else "s")
            raise ScriptExhausted(
                f"the script has {turns}, this is request {number}; add the answer to ScriptedModel(...)"
            )
        item = self._turns[number - 1]
        while not isinstance(item, ScriptedTurn):
            if isinstance(item, RecordedAnswer):
                return item
            if isinstance(item, Exception):
                raise item
            item = item(request) if callable(item) else _as_turn(item)
            _check_turn(item)
        return replace(
            item,
            calls=tuple(self._with_id(call) for call in item.calls),
            reasoning=self._reasoning if item.reasoning is None else item.reasoning,
        )

    def _with_id(self, item: ScriptedCall) -> ScriptedCall:
        self._calls += 1
        return item if item.id is not None else replace(item, id=f"call_{self._calls}")

    def _play_frames(self, answer: ScriptedTurn, text: Frames, request: ModelRequest, number: int) -> Observable[Event]:
        started = False

        async def work(push: Push[Event]) -> None:
            nonlocal started
            started = True
            try:
                push_reasoning(answer, number, push)
                content = await push_frames(text, request, push)
                push_end(answer, content, request, push)
            finally:
                self.open -= 1

        def subscribe(
            observer: abc.ObserverBase[Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            self.open += 1
            leaf = from_task(work, request.ctx, name=f"{self.name}-stream", shielded=True).subscribe(
                observer, scheduler=scheduler
            )

            def dispose() -> None:
                nonlocal started
                leaf.dispose()
                if not started:
                    # Disposed leaves skip unstarted work.
                    started = True
                    self.open -= 1

            return Disposable(dispose)

        return Observable(subscribe)


def _as_turn(item: str | ScriptedCall | Frames | Sequence[str | ScriptedCall]) -> ScriptedTurn:
    if isinstance(item, str | Frames):
        return ScriptedTurn(text=item)
    if isinstance(item, ScriptedCall):
        return ScriptedTurn(calls=(item,))
    return ScriptedTurn(
        text="".join(part for part in item if isinstance(part, str)),
        calls=tuple(part for part in item if isinstance(part, ScriptedCall)),
    )


def _check_turn(item: object) -> None:
    """Check a turn when the script is created instead of when it is played."""
    if isinstance(item, str | ScriptedCall | Frames | ScriptedTurn | RecordedAnswer | Exception):
        return
    if isinstance(item, list | tuple):
        wrong = [part for part in cast("Sequence[object]", item) if not isinstance(part, str | ScriptedCall)]
        if not wrong:
            return
        raise ConfigurationError(f"a message of a script must contain strings and calls, got {wrong[0]!r}")
    if isinstance(item, type) or not callable(item):
        raise ConfigurationError(f"expected a string, call, list or frames as a turn, got {item!r}")
