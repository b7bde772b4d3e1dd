"""Human input requests used by tools and guards."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
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
from rxloop.protocol.json_data import replace_surrogates
from rxloop.run.questions.open_questions import OpenQuestions, Place
from rxloop.stream.scope import Scope, TimeScope

OnInput = Callable[[PendingInput], Any]
"""Callback for answering questions. It may return a value or an awaitable. Sync functions run in a thread."""


class Questions:
    """Registry of the questions asked during an attempt.

    Args:
        on_input: Callback that answers immediately. The run pauses if this is None.
        credentials: Secret answers by input id. Each one is removed when used and never stored.
        place: Position in the tree of nested runs.
        above: Registry of the parent run.
        within: Prefix for input ids, which keeps the ids of nested runs unique.
        agent_path: Names of the nested agents, ending with the current one.
    """

    def __init__(
        self,
        on_input: OnInput | None,
        credentials: dict[str, Any],
        place: Place,
        above: Questions | None = None,
        within: str = "",
        agent_path: tuple[str, ...] = (),
    ) -> None:
        self._on_input = on_input
        self._credentials = credentials
        self.place = place
        self._above = above
        self._within = within
        self._agent_path = agent_path
        self._put: dict[str, set[str]] = {}
        """Used input ids, grouped by caller."""
        self.read: set[str] = set()
        """Input ids that were used in this attempt."""
        self.has_inbox = above is not None and above.has_inbox
        """True if answers can arrive through the inbox while the run is active."""
        self._open: OpenQuestions | None = above.open if above is not None else None
        self._one_by_one: asyncio.Lock | None = None

    @property
    def open(self) -> OpenQuestions:
        """Open questions, shared by the outermost run and all nested runs."""
        if self._open is None:
            self._open = OpenQuestions()
        return self._open

    @property
    def at_rest(self) -> bool:
        """True if this is a nested run and all of its calls are waiting for answers."""
        return self._open is not None and self._open.is_at_rest(self.place)

    def below(
        self, call: RunContext[Any], agent_path: tuple[str, ...], scope: Scope, time_scope: TimeScope
    ) -> Questions:
        """Create the registry for a nested run."""
        place = Place(scope, time_scope, call, self.place)
        within = f"{self._within}{call.step}.{call.index}:"
        return Questions(self._on_input, self._credentials, place, self, within, agent_path)

    async def ask(
        self,
        ctx: RunContext[Any],
        question: PendingInput,
        read: Callable[[Any], Any],
        earlier: Mapping[str, str | None],
    ) -> Any:
        """Ask a question and return the answer.

        Args:
            ctx: Context of the caller.
            question: Question without an id.
            read: Validates and converts the answer. It raises ValueError for invalid answers.
            earlier: Prompts from earlier attempts, by input id.

        Raises:
            InvalidInput: The answer is invalid.
            Paused: No answer is available yet.
        """
        asker = f"{self._within}{ctx.step or 'run'}.{ctx.index if ctx.call is not None else ctx.asked_by}"
        input_id = self._id(asker, question.prompt, earlier)
        own: dict[str, Any] = {"call": question.call or ctx.call, "index": ctx.index, "step": ctx.step}
        question = question.model_copy(update={"input_id": input_id, "agent_path": self._agent_path, **own})
        state = ctx.state
        self.read.add(input_id)
        if input_id in state.answers:
            return _read(question, state.answers[input_id], read)
        if input_id not in state.pending:
            ctx.emit(_event_of(question).model_copy(update={"step": ctx.step, "branch": ctx.branch}))
        if input_id in self._credentials:
            value = self._credentials.pop(input_id)
        elif self._on_input is None:
            task = _waiting_task(ctx)
            if not self.has_inbox or question.secret or task is None:
                raise Paused
            value = await self.open.wait(self.place, ctx, task, input_id)
            await ctx.port.durable()
            return _read(question, value, read)
        else:
            async with self._waiting(ctx, question):
                value = _read(question, await self._answer_in_pause(ctx, self._on_input, question), read)
        kept = None if question.secret else value
        ctx.emit(InputReceivedEvent(input_id=input_id, value=kept, step=ctx.step, branch=ctx.branch))
        # Store the answer before using it. Otherwise, the question would be repeated after a crash.
        await ctx.port.durable()
        return value

    def _waiting(self, ctx: RunContext[Any], question: PendingInput) -> AbstractAsyncContextManager[None]:
        """Mark the call as waiting while `on_input` is running."""
        task = _waiting_task(ctx)
        if task is None or question.input_kind == "tool":
            # For client tools, `on_input` executes the call, so the call isn't waiting.
            return nullcontext()
        return self.open.waiting(self.place, ctx, task, question.input_id)

    def _id(self, asker: str, prompt: str, earlier: Mapping[str, str | None]) -> str:
        """Return the id for a question, reusing the one from an earlier attempt if possible.

        An id is only reused if the prompt is identical. A changed prompt is a new question, even at the same position.
        """
        put, words = self._put.setdefault(asker, set()), replace_surrogates(prompt)
        ids = (f"{asker}.{number}" for number in count(1))
        input_id = next(one for one in ids if one not in put and earlier.get(one, words) == words)
        put.add(input_id)
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
            given = await run_in_thread(lambda: on_input(question))
        return await given if inspect.isawaitable(given) else given

    def _lock(self) -> asyncio.Lock:
        if self._above is not None:
            return self._above._lock()
        if self._one_by_one is None:
            self._one_by_one = asyncio.Lock()
        return self._one_by_one


def _waiting_task(ctx: RunContext[Any]) -> asyncio.Task[Any] | None:
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


def _event_of(question: PendingInput) -> QuestionEvent:
    if not question.secret:
        return InputRequiredEvent(input=question)
    names = ("input_id", "provider", "url", "public_key", "call", "index")
    return AuthRequiredEvent(**{name: getattr(question, name) for name in names})


def _read(question: PendingInput, value: Any, read: Callable[[Any], Any]) -> Any:
    """Validate and convert an answer using the given function.

    Raises:
        InvalidInput: The answer is invalid.
    """
    try:
        value = read(value)
    except ValueError as error:
        raise InvalidInput(f"{value!r} does not answer {question.prompt!r} ({question.input_id}): {error}") from error
    if question.options is not None and value not in question.options:
        raise InvalidInput(f"{value!r} is none of the options of {question.prompt!r}: {question.options}")
    return value
