"""Registry of the questions that tools and guards ask."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import count
from typing import Any

from rxloop.errors import InvalidInput, Paused
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import (
    AuthRequiredEvent,
    InputReceivedEvent,
    InputRequiredEvent,
    PendingInput,
    QuestionEvent,
)
from rxloop.protocol.json_data import canonical_json, replace_surrogates
from rxloop.protocol.messages import ToolCall
from rxloop.run.questions.open_questions import OpenQuestions, Position
from rxloop.state.earlier_attempts import EarlierAttempts
from rxloop.stream.scope import Scope, TimeScope
from rxloop.support.json_schema import quote_value

OnInput = Callable[[PendingInput], Any]
"""Callback for answering questions. It may return a value or an awaitable. Sync functions run in a thread."""


class Questions:
    """Registry of the questions asked during an attempt.

    Args:
        on_input: Callback that answers immediately. The run pauses if this is None.
        credentials: Secret answers by input id. Each one is removed when used and never stored.
        position: Position in the tree of nested runs.
        parent: Registry of the parent run.
        prefix: Prefix for input ids, which keeps the ids of nested runs unique.
        agent_path: Names of the nested agents, ending with the current one.
    """

    def __init__(
        self,
        on_input: OnInput | None,
        credentials: dict[str, Any],
        position: Position,
        parent: Questions | None = None,
        prefix: str = "",
        agent_path: tuple[str, ...] = (),
    ) -> None:
        self._on_input = on_input
        self._credentials = credentials
        self.position = position
        self._parent = parent
        self._prefix = prefix
        self._agent_path = agent_path
        self._used_ids: dict[str, set[str]] = {}
        """Used input ids, grouped by caller."""
        self.read: set[str] = set()
        """Input ids that were used in this attempt."""
        self.has_inbox = parent is not None and parent.has_inbox
        """True if answers can arrive through the inbox while the run is active."""
        self._open: OpenQuestions | None = parent.open if parent is not None else None
        self._callback_lock: asyncio.Lock | None = None

    @property
    def open(self) -> OpenQuestions:
        """Open questions, shared by the outermost run and all nested runs."""
        if self._open is None:
            self._open = OpenQuestions()
        return self._open

    @property
    def is_idle(self) -> bool:
        """True if this is a nested run and all of its calls are waiting for answers."""
        return self._open is not None and self._open.is_idle(self.position)

    def nest(
        self, call: RunContext[Any], agent_path: tuple[str, ...], scope: Scope, time_scope: TimeScope
    ) -> Questions:
        """Create the registry for a nested run."""
        position = Position(scope, time_scope, call, self.position)
        prefix = f"{self._prefix}{call.step}.{call.index}:"
        return Questions(self._on_input, self._credentials, position, self, prefix, agent_path)

    async def ask(
        self,
        ctx: RunContext[Any],
        question: PendingInput,
        read: Callable[[Any], Any],
        earlier: EarlierAttempts,
    ) -> Any:
        """Ask a question and return the answer.

        Args:
            ctx: Context of the caller.
            question: Question without an id.
            read: Validates and converts the answer, and may be async. It raises ValueError for invalid answers.
            earlier: Earlier attempts of the run, with the questions that they asked.

        Raises:
            InvalidInput: The answer is invalid.
            Paused: No answer is available yet.
        """
        caller = f"{self._prefix}{ctx.step or 'run'}.{ctx.index if ctx.call is not None else ctx.asked_by}"
        call = question.call or ctx.call
        input_id = self._choose_id(caller, question.prompt, call, earlier)
        call_fields: dict[str, Any] = {"call": call, "index": ctx.index, "step": ctx.step}
        question = question.model_copy(update={"input_id": input_id, "agent_path": self._agent_path, **call_fields})
        state = ctx.state
        self.read.add(input_id)
        if input_id in state.answers:
            return await _read(question, state.answers[input_id], read)
        if input_id not in state.pending:
            ctx.emit(_make_event(question).model_copy(update={"step": ctx.step, "branch": ctx.branch}))
        if input_id in self._credentials:
            value = self._credentials.pop(input_id)
        elif self._on_input is None:
            task = _find_waiting_task(ctx)
            if not self.has_inbox or question.secret or task is None:
                raise Paused
            value = await self.open.wait(self.position, ctx, task, input_id)
            await ctx.port.durable()
            return await _read(question, value, read)
        else:
            async with self._mark_waiting(ctx, question):
                value = await _read(question, await self._answer_in_pause(ctx, self._on_input, question), read)
        stored_value = None if question.secret else value
        ctx.emit(InputReceivedEvent(input_id=input_id, value=stored_value, step=ctx.step, branch=ctx.branch))
        # Store the answer before using it. Otherwise, the question would be repeated after a crash.
        await ctx.port.durable()
        return value

    def _mark_waiting(self, ctx: RunContext[Any], question: PendingInput) -> AbstractAsyncContextManager[None]:
        """Mark the call as waiting while `on_input` is running."""
        task = _find_waiting_task(ctx)
        if task is None or question.input_kind == "tool":
            # For client tools, `on_input` executes the call, so the call isn't waiting.
            return nullcontext()
        return self.open.mark_waiting(self.position, ctx, task, question.input_id)

    def _choose_id(self, caller: str, prompt: str, call: ToolCall | None, earlier: EarlierAttempts) -> str:
        """Return the id for a question, reusing the one from an earlier attempt if possible.

        An id is only reused if the prompt is identical. A changed prompt is a new question, even at the same position.
        The same applies to an approval if the arguments of its call have changed, because a guard may edit them.
        """
        used_ids, text = self._used_ids.setdefault(caller, set()), replace_surrogates(prompt)
        for asked_id, asked in earlier.undecided.items():
            if asked_id in earlier.discarded and asked_id.startswith(f"{caller}.") and asked.question.prompt == text:
                # Asking again replaces the refusal that a fork copied.
                self.read.add(asked_id)
        ids = (f"{caller}.{number}" for number in count(1))
        input_id = next(
            candidate
            for candidate in ids
            if candidate not in used_ids
            and earlier.questions.get(candidate, text) == text
            and _has_equal_arguments(earlier.approvals.get(candidate), call)
        )
        used_ids.add(input_id)
        return input_id

    async def _answer_in_pause(self, ctx: RunContext[Any], on_input: OnInput, question: PendingInput) -> Any:
        """Call `on_input` with the caller's time limits paused."""
        if question.input_kind == "tool":
            # Client tools use their own `timeout`.
            return await self._answer(on_input, question)
        with (ctx.time_scope or ctx.info.time_scope).pause():
            return await self._answer(on_input, question)

    async def _answer(self, on_input: OnInput, question: PendingInput) -> Any:
        if inspect.iscoroutinefunction(on_input):
            return await on_input(question)
        # Imported lazily to reduce the import time of rxloop.
        from rxloop.support.threads import run_in_thread

        # Ask one question at a time. Concurrent prompts on a terminal would be ambiguous.
        async with self._lock():
            answer = await run_in_thread(lambda: on_input(question))
        return await answer if inspect.isawaitable(answer) else answer

    def _lock(self) -> asyncio.Lock:
        if self._parent is not None:
            return self._parent._lock()
        if self._callback_lock is None:
            self._callback_lock = asyncio.Lock()
        return self._callback_lock


def _has_equal_arguments(asked: ToolCall | None, call: ToolCall | None) -> bool:
    """Return True unless a person was asked to approve the call with other arguments."""
    if asked is None or call is None:
        return True
    return canonical_json(asked.arguments) == canonical_json(call.arguments)


def _find_waiting_task(ctx: RunContext[Any]) -> asyncio.Task[Any] | None:
    """Return the task that is waiting for the answer, or None if unknown.

    Tasks started by a tool map to the task running the tool call, unless they use a different event loop.
    """
    current, active = asyncio.current_task(), ctx.active_call
    if ctx.info.scope.owns(current):
        return current
    task = active.task if active is not None else None
    if task is None or task.done() or task.get_loop() is not asyncio.get_running_loop():
        return None
    return task


def _make_event(question: PendingInput) -> QuestionEvent:
    if not question.secret:
        return InputRequiredEvent(input=question)
    names = ("input_id", "provider", "url", "public_key", "call", "index")
    return AuthRequiredEvent(**{name: getattr(question, name) for name in names})


async def _read(question: PendingInput, value: Any, read: Callable[[Any], Any]) -> Any:
    """Validate and convert an answer using the given function.

    Raises:
        InvalidInput: The answer is invalid.
    """
    try:
        value = (await read(value)) if inspect.iscoroutinefunction(read) else read(value)
    except ValueError as error:
        text = f"{quote_value(value)} does not answer {question.prompt!r} ({question.input_id}): {error}"
        raise InvalidInput(text) from error
    if not question.allows(value):
        text = f"the answer to {question.prompt!r} must be one of {question.options}, got {quote_value(value)}"
        raise InvalidInput(text)
    return value
