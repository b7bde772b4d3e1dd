"""Thinking phase, which compresses requests and adds notes and summaries."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any, cast

from reactivex import Observable

from rxloop.context.compression import Compression, CompressionResult, CompressionState
from rxloop.context.request_compressor import MOST_FAILURES, RequestCompressor, find_pinned, measure
from rxloop.context.summaries import RejectedSummary, insert_summary, reflect, summarise
from rxloop.errors import RxloopError
from rxloop.pipeline.interfaces import Budget, Provider, Think, TokenCounter, Trigger
from rxloop.pipeline.requests import ModelRequest, Signal
from rxloop.pipeline.sent.texts import get_origin
from rxloop.pipeline.thinking_result import ThinkingResult
from rxloop.protocol.events import ThinkingFailedEvent, ThinkingNotedEvent
from rxloop.protocol.messages import Message
from rxloop.stream.sources import Push, emit, from_task
from rxloop.support.text import to_short_repr
from rxloop.support.threads import call_user_function


@dataclass(frozen=True, slots=True)
class _Cycle:
    """Work between a request and the compressed request."""

    request: ModelRequest
    counter: TokenCounter
    compression: Compression
    compressed: CompressionResult
    result: ThinkingResult
    events: tuple[Signal, ...] = ()
    thinking: dict[str, Any] | None = None
    """Fields of the `context-compressed` event about the thinking model."""


@dataclass(frozen=True, slots=True)
class ThinkingPhase:
    """Thinking phase of `op.thinking_phase`."""

    cutter: RequestCompressor
    think: Think | None
    """Custom thinking. If None, notes are built from rules."""
    model: Provider | str | None
    """Model that writes summaries."""
    due: int | Trigger
    """Number of model calls before `think` is called again, or a trigger."""
    note: bool
    publish: bool
    tokens: int
    """Token limit of notes and summaries."""
    timeout: float
    """Time limit of thinking in seconds."""

    def answer(self, request: ModelRequest) -> Observable[Signal] | ModelRequest:
        """Return the request to send instead, or an observable of it."""
        cutter, state = self.cutter, request.ctx.state
        if cutter.is_recorded(request):
            return request
        note = "" if state.noted is None else state.noted.note
        result = reflect(state) if self.think is None else ThinkingResult(current_state=note)
        counter = cutter.counter(request)
        compression = cutter.compression(self._add_note(request, result), counter)
        publishes = self.think is None and self.publish and not request.pressure and result.text()
        events = (self._event(request, result),) if publishes else ()
        cycle = _Cycle(request, counter, compression, compression.unchanged(), result, events)
        can_think = not request.pressure and state.thinking_failures < MOST_FAILURES
        is_due = can_think and self.think is not None and self._is_due(cycle)
        fits = compression.fits or cutter.has_failed(request)
        if fits and not is_due:
            finished = self._finish(cycle, result)
            return emit(*events, finished) if events else finished

        async def run(push: Push[Any]) -> None:
            done = cycle if fits else replace(cycle, compressed=await cutter.cut(request, compression))
            if is_due or (can_think and done.compressed.cut and (self.think or self.model) is not None):
                done = await self._think(done)
            for event in (*done.events, *cutter.events(request, done.compressed, **(done.thinking or {}))):
                push(event)
            # A model's summary contains its facts and steps, so the note does not repeat them.
            push(self._finish(done, result if self.think is None else done.result))

        return from_task(run, request.ctx, name="rxloop-thinking", shielded=True)

    def _is_due(self, cycle: _Cycle) -> bool:
        noted = cycle.request.ctx.state.noted
        since = _find_start(cycle.request) if noted is None else noted.position
        growth = measure(cycle.compression, cycle.request, since)
        return growth.calls >= self.due if isinstance(self.due, int) else self.due(growth)

    def _add_note(self, request: ModelRequest, result: ThinkingResult) -> ModelRequest:
        text = result.note() if self.note else ""
        return request.replace(tail=(*request.tail, Message.user(text))) if text else request

    def _finish(self, cycle: _Cycle, noted: ThinkingResult) -> ModelRequest:
        compressed = cycle.compressed
        thinking = replace(cycle.result, summary=compressed.state.summary, compressed_history=compressed.messages)
        request = self._add_note(cycle.request, noted).replace(thinking=thinking)
        return self.cutter.make_request(request, compressed.messages, cycle.counter)

    def _event(self, request: ModelRequest, result: ThinkingResult, seconds: float = 0.0) -> ThinkingNotedEvent:
        return ThinkingNotedEvent(
            step=request.step,
            branch=request.branch,
            note=result.text(),
            position=len(request.messages),
            thinking_model=result.thinking_model,
            thinking=result.thinking_tokens,
            seconds=seconds,
            published=self.publish,
        )

    async def _think(self, cycle: _Cycle) -> _Cycle:
        """Call `think` or the thinking model. If it fails, return the cycle without its result."""
        request, compressed = cycle.request, cycle.compressed
        before = self.cutter.load_state(request) or CompressionState()
        indexes = sorted({*compressed.state.omitted} - {*before.omitted})
        sent, dropped = tuple(compressed.messages), [request.messages[index] for index in indexes]
        budget = Budget(tokens=self.tokens, target=self.tokens, counter=cycle.counter, sent=sent, dropped=dropped)
        name, limit, begin = "think", asyncio.timeout(self.timeout), time.perf_counter()
        fields: dict[str, Any] = {}
        try:
            think = self.think
            if think is None:
                model = request.ctx.info.resolve_model(cast("Provider | str", self.model))
                name, fields = f"the thinking model {model.name}", {"thinking_model": model.name}
                think = partial(summarise, model, request, before.summary)
            history, workspace = request.messages, read_workspace(request)
            async with limit:
                result = await call_user_function(think, history, workspace, read_results(history), budget)
            if self.think is not None:
                compressed, result = self._check(cycle, result)
                event = self._event(request, result, time.perf_counter() - begin)
                return replace(cycle, compressed=compressed, result=result, events=(event,))
            fields["thinking"] = tokens = result.thinking_tokens
            compressed = insert_summary(compressed, result.summary, request, cycle.counter)
            insights = (*cycle.result.insights, *result.insights)
            actions = (*result.next_actions, *cycle.result.next_actions)
            result = replace(cycle.result, insights=insights, next_actions=actions, thinking_tokens=tokens)
            return replace(cycle, compressed=compressed, result=result, thinking=fields)
        except RejectedSummary as error:
            reason, fields["thinking"] = str(error), error.used
        except Exception as error:
            reason = str(error) if isinstance(error, RxloopError | ValueError) else f"{type(error).__name__}: {error}"
            reason = f"{name} took more than {self.timeout:g} s" if limit.expired() else reason
        size, step, branch = compressed.tokens_before, request.step, request.branch
        failure = ThinkingFailedEvent(reason=reason, thinking=True, tokens_before=size, step=step, branch=branch)
        return replace(cycle, events=(*cycle.events, failure), thinking=fields)

    def _check(self, cycle: _Cycle, result: object) -> tuple[CompressionResult, ThinkingResult]:
        """Validate the result of `think` and apply it.

        Raises:
            ValueError: The result is invalid or too large.
        """
        compressed, request = cycle.compressed, cycle.request
        if not isinstance(result, ThinkingResult):
            raise ValueError(f"think must return a ThinkingResult, got {to_short_repr(result)}")
        if not {type(result.insights), type(result.next_actions)} <= {tuple, list}:
            raise ValueError(f"insights and next_actions must be tuples of strings, got {to_short_repr(result)}")
        if result.compressed_history:
            compressed = cycle.compression.check_result(result.compressed_history, find_pinned(request), 0.0)
            if compressed.failed:
                raise ValueError(compressed.failed)
            compressed = replace(compressed, reason="thinking")
        if result.summary and not compressed.cut:
            result = replace(result, summary="", current_state=f"{result.summary}\n{result.current_state}".strip())
        for name, text in (("note", result.text()), ("summary", result.summary)):
            if text and (size := cycle.counter.count([Message.user(text)])) > self.tokens:
                raise ValueError(f"the {name} must have at most {self.tokens} tokens, got {size}")
        if result.summary:
            compressed = insert_summary(compressed, result.summary, request, cycle.counter)
        return compressed, result


def _find_start(request: ModelRequest) -> int:
    """Return the index of the first message of the run in the history of the conversation."""
    messages, first = request.messages, next(iter(request.ctx.state.initial_messages), None)
    return next((index for index in range(len(messages) - 1, 0, -1) if messages[index] is first), 0)


def read_workspace(request: ModelRequest) -> str:
    """Return the text of the workspaces and goals in a request."""
    layers = (*request.system, *request.tail)
    # Goals are marked as notes.
    return "\n\n".join(message.text for message in layers if get_origin(message) in ("workspace", "note"))


def read_results(history: Sequence[Message]) -> tuple[Message, ...]:
    """Return the tool results of the last iteration."""
    newest = takewhile(lambda message: message.role != "assistant", reversed(history))
    return tuple(message for message in newest if message.role == "tool")[::-1]
