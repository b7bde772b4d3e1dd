"""Scripted and recorded turns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from rxloop.errors import ConfigurationError, ProviderError, RxloopError
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    LLMCallEvent,
    LLMFailedEvent,
    LLMNoticeEvent,
    ServerToolEvent,
    StatusUpdateEvent,
    TaskEvent,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    UsageEvent,
)
from rxloop.protocol.json_data import freeze_json
from rxloop.protocol.messages import Citation, ErrorInfo, FilePart, ImagePart, ToolCall, Usage
from rxloop.providers.codecs import find_gate
from rxloop.providers.codecs.text import make_text_delta
from rxloop.stream.sources import Push


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """Scripted tool call."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Frames:
    """Timed text."""

    symbols: tuple[str, ...]
    frame: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedTurn:
    """Scripted answer."""

    text: str | Frames = ""
    calls: tuple[ScriptedCall, ...] = ()
    reasoning: str | None = None
    usage: Usage | None = None
    finish_reason: str | None = None
    raw_finish_reason: str | None = None
    files: tuple[ImagePart | FilePart, ...] = ()
    citations: tuple[Citation, ...] = ()


def push_reasoning(answer: ScriptedTurn, number: int, push: Push[Event]) -> None:
    """Push a turn's reasoning."""
    if answer.reasoning:
        push(make_text_delta(ThoughtDeltaEvent, answer.reasoning, 0, None))
        thought_id = f"reasoning_{number}"
        push(ThoughtStreamEvent(thought_id=thought_id, content=answer.reasoning, source="reasoning"))


async def push_frames(text: Frames, request: ModelRequest, push: Push[Event]) -> str:
    """Push deltas according to their frames, then return the complete content."""
    gate = find_gate(request)
    content: list[str] = []
    pause = 0
    for symbol in text.symbols:
        if symbol == "-":
            pause += 1
            continue
        if pause:
            await asyncio.sleep(pause * text.frame)
        pause = 1
        if symbol == "|":
            return "".join(content)
        if symbol == "#":
            raise ProviderError("the script fails here: '#'")
        push(make_text_delta(ContentDeltaEvent, symbol, len(content), None))
        content.append(symbol)
        if gate.closed:
            await gate.wait()
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable: nothing resolves the future")


def hidden_tools(request: ModelRequest) -> set[str]:
    """Return hidden tool names."""
    return {tool.name for tool in request.tools if tool.hidden}


def push_end(answer: ScriptedTurn, content: str, request: ModelRequest, push: Push[Event]) -> None:
    """Push tool calls, usage and the complete message."""
    hidden = hidden_tools(request)
    calls: list[ToolCall] = []
    for index, item in enumerate(answer.calls):
        arguments = freeze_json(item.arguments, f"the arguments of {item.name}")
        raw = orjson.dumps(arguments).decode()
        tool_call = ToolCall(id=item.id or "", name=item.name, arguments=arguments, raw=raw)
        calls.append(tool_call)
        push(
            ToolCallDeltaEvent(
                index=index,
                tool_call_id=tool_call.id,
                name=tool_call.name,
                fragment=raw,
                hidden=tool_call.name in hidden,
            )
        )
    if answer.usage is not None:
        push(UsageEvent(**answer.usage.model_dump(by_alias=False)))
    push(
        ContentCompleteEvent(
            content=content,
            files=list(answer.files),
            citations=list(answer.citations),
            reasoning=answer.reasoning,
            tool_calls=calls,
            finish_reason=answer.finish_reason or ("tool_calls" if calls else "stop"),
            raw_finish_reason=answer.raw_finish_reason,
        )
    )


async def stay_open(push: Push[Event]) -> None:
    """Wait until disposed."""
    await asyncio.get_running_loop().create_future()


Step = tuple[str | None, str | None]
"""Branch and step. The main branch is sequential and has no step."""

_UNSTAMPED = {
    "context_id": "",
    "task_id": "",
    "seq": 0,
    "sub": 0,
    "attempt": 0,
    "timestamp": 0,
    "parent_task_id": None,
    "agent_path": (),
    "step": None,
    "branch": None,
}


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """Recorded model call."""

    step: str | None
    """Step of the request."""
    attempt: int
    events: tuple[Event, ...]
    """Events without run-specific ids and numbers."""
    error: RxloopError | None = None
    """Failure, if any."""
    cut_off: bool = False
    """True if disposed early."""
    interrupted: bool = False
    """True if the call was disposed because of a new message, so that the request was not repeated."""


def recorded_answers(
    events: Iterable[Event], task_id: str | None = None
) -> tuple[str, dict[Step, list[RecordedAnswer]]]:
    """Return the recorded model name and answers, ordered on the main branch and otherwise grouped by step.

    Args:
        events: Run events, possibly mixed with others.
        task_id: Run to use, defaulting to the outermost one.

    Raises:
        ConfigurationError: The run is missing.
    """
    events = list(events)
    root = next((event.task_id for event in events if event.parent_task_id is None), None)
    mine = [event for event in events if event.task_id == (task_id or root)]
    task = next((event for event in mine if isinstance(event, TaskEvent)), None)
    if task is None:
        which = f"of the run {task_id}" if task_id is not None else "of a run"
        raise ConfigurationError(
            f"the {len(events)} events do not contain the task event {which}; pass all events in order"
        )
    reader = _Reader()
    for event in mine:
        reader.take(event)
    reader.end()
    return task.model, reader.answers


class _Reader:
    def __init__(self) -> None:
        self.answers: dict[Step, list[RecordedAnswer]] = {}
        self._open: dict[Step, tuple[int, list[Event]]] = {}
        """Incomplete answers: attempt and events."""
        self._failed: dict[Step, ErrorInfo] = {}
        self._canceled: list[tuple[Step, int, list[Event]]] = []
        """Canceled answers. The end of the run shows the reason."""

    def take(self, event: Event) -> None:
        """Process the next event."""
        step = (event.branch, event.step)
        match event:
            case LLMCallEvent():
                self._repeat_request(step, event)
                self._open[step] = (event.attempt, [])
            case ContentDeltaEvent() | ThoughtDeltaEvent() | ToolCallDeltaEvent() | UsageEvent():
                self._add(step, event)
            case ServerToolEvent() | LLMNoticeEvent():
                self._add(step, event)
            case ThoughtStreamEvent() if event.source in ("reasoning", "tag"):
                self._add(step, event)
            case LLMFailedEvent():
                self._failed[step] = event.error
            case ContentCompleteEvent() if step in self._open:
                attempt, pieces = self._open.pop(step)
                if event.finish_reason == "canceled":
                    self._canceled.append((step, attempt, _add_missing_text(pieces, event)))
                elif event.finish_reason == "interrupted":
                    self._append_answer(step, attempt, _add_missing_text(pieces, event), cut_off=True, interrupted=True)
                else:
                    self._append_answer(step, attempt, _iter_with_deltas(pieces, event))
            case StatusUpdateEvent() if event.final:
                self._end(event.error if event.reason == "error" else None)
            case _:
                pass

    def end(self) -> None:
        """Finish reading, even if the recording is incomplete."""
        self._canceled += [(step, *opened) for step, opened in self._open.items()]
        self._end(None)
        for answers in self.answers.values():
            # Later attempts repeat interrupted calls.
            last = answers[-1].attempt
            answers[:] = [
                answer for answer in answers if not answer.cut_off or answer.interrupted or answer.attempt == last
            ]

    def _repeat_request(self, step: Step, event: LLMCallEvent) -> None:
        """Handle repeated requests after a failure or interrupted attempt."""
        attempt, _ = self._open.get(step, (event.attempt, None))
        if step in self._open and attempt == event.attempt:
            failed = self._failed.get(step) or ErrorInfo(code="provider", message="it failed when it was recorded")
            self._append_answer(step, attempt, error=_error(failed))

    def _add(self, step: Step, event: Event) -> None:
        if step in self._open:
            self._open[step][1].append(event)

    def _end(self, error: ErrorInfo | None) -> None:
        """Complete the canceled answers: they failed if the model ended the run, otherwise they were cut off."""
        failed = _error(error) if error is not None and error.code not in _OTHERS else None
        for step, attempt, pieces in self._canceled:
            self._append_answer(step, attempt, pieces, error=failed, cut_off=failed is None)
        self._canceled.clear()

    def _append_answer(
        self,
        step: Step,
        attempt: int,
        pieces: Iterable[Event] = (),
        *,
        error: RxloopError | None = None,
        cut_off: bool = False,
        interrupted: bool = False,
    ) -> None:
        answer = RecordedAnswer(step[1], attempt, tuple(map(_remove_run_fields, pieces)), error, cut_off, interrupted)
        self.answers.setdefault(make_key(*step), []).append(answer)


def make_key(branch: str | None, step: str | None) -> Step:
    """Return the lookup key for an answer."""
    return branch, step if branch is not None else None


def _add_missing_text(pieces: list[Event], event: ContentCompleteEvent) -> list[Event]:
    """Add the text of a cut-off answer if its deltas were not recorded."""
    if event.content and not any(isinstance(piece, ContentDeltaEvent) for piece in pieces):
        return [*pieces, ContentDeltaEvent(delta=event.content)]
    return pieces


def _iter_with_deltas(pieces: list[Event], event: ContentCompleteEvent) -> Iterator[Event]:
    """Yield events including deltas, which are not logged but needed by views."""
    has_deltas = any(not piece.durable for piece in pieces)
    if not has_deltas and event.reasoning:
        yield ThoughtDeltaEvent(delta=event.reasoning)
    yield from (piece for piece in pieces if has_deltas or not isinstance(piece, UsageEvent))
    if not has_deltas:
        if event.content:
            yield ContentDeltaEvent(delta=event.content)
        for index, call in enumerate(event.tool_calls):
            yield ToolCallDeltaEvent(index=index, tool_call_id=call.id, name=call.name, fragment=call.raw or "")
        yield from (piece for piece in pieces if isinstance(piece, UsageEvent))
    yield event


def _remove_run_fields(event: Event) -> Event:
    """Remove run-specific fields."""
    own = {"index": -1} if isinstance(event, ThoughtStreamEvent) else {}
    return event.model_copy(update={**_UNSTAMPED, **own})


def _all_errors(cls: type[ProviderError]) -> Iterator[type[ProviderError]]:
    yield cls
    for each in cls.__subclasses__():
        yield from _all_errors(each)


_OTHERS = {"log", "pipeline", "output", "refused", "truncated", "incomplete"}
"""Codes of run errors that are not caused by the model."""

_ERRORS = {cls.code: cls for cls in reversed(list(_all_errors(ProviderError)))}


def _error(info: ErrorInfo) -> RxloopError:
    if info.code == "error":
        # Unknown class, such as a bug in a provider or operator.
        return RxloopError(info.message)
    return _ERRORS.get(info.code, ProviderError)(info.message)
