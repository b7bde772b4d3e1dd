"""Questions of tools and guards to the person or client behind a run, and their answers."""

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
"""Answers a question while the run waits: the value, or an awaitable of it. A plain function runs in a thread."""


class Questions:
    """The questions of one attempt.

    Args:
        on_input: Answers at once; without it the run pauses.
        credentials: The answers that nobody may keep, by the id of the question; each is taken out once.
        place: The run among the runs that are nested in each other.
        above: Those of the run that this one is nested in.
        within: What the ids of a nested run begin with, so that no two runs have the same.
        agent_path: The names of the nested agents down to this one.
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
        """The ids of what was asked, by who asked."""
        self.read: set[str] = set()
        """Input ids of the questions that were asked in this attempt."""
        self.has_inbox = above is not None and above.has_inbox
        """Whether the inbox of the run may bring answers while it goes on."""
        self._open: OpenQuestions | None = above.open if above is not None else None
        self._one_by_one: asyncio.Lock | None = None

    @property
    def open(self) -> OpenQuestions:
        """The questions that wait, of the outermost run and of all runs that are nested in it."""
        if self._open is None:
            self._open = OpenQuestions()
        return self._open

    @property
    def at_rest(self) -> bool:
        """Whether this is a nested run all of whose calls wait for answers."""
        return self._open is not None and self._open.is_at_rest(self.place)

    def below(
        self, call: RunContext[Any], agent_path: tuple[str, ...], scope: Scope, time_scope: TimeScope
    ) -> Questions:
        """Make those of a run that is nested in a call."""
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
        """Put a question, and give the answer.

        Args:
            ctx: Who asks.
            question: What is asked, as yet without an id.
            read: Makes of the answer what is given; raises ValueError if it does not fit.
            earlier: What earlier attempts have asked, by the id of the question.

        Raises:
            InvalidInput: The answer does not fit.
            Paused: There is no answer yet.
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
        # Before anything is done with it: otherwise it would be asked for, and done, once more after a crash.
        await ctx.port.durable()
        return value

    def _waiting(self, ctx: RunContext[Any], question: PendingInput) -> AbstractAsyncContextManager[None]:
        """Count the call as waiting while `on_input` answers."""
        task = _waiting_task(ctx)
        if task is None or question.input_kind == "tool":
            # `on_input` executes the call of a client tool, which is work.
            return nullcontext()
        return self.open.waiting(self.place, ctx, task, question.input_id)

    def _id(self, asker: str, prompt: str, earlier: Mapping[str, str | None]) -> str:
        """The id of a question: that which it had in an earlier attempt, or else a new one.

        An answer is one to the words that were asked. A question that is put in other words, or that takes the place
        of one which is not put any more, is another question.
        """
        put, words = self._put.setdefault(asker, set()), replace_surrogates(prompt)
        ids = (f"{asker}.{number}" for number in count(1))
        input_id = next(one for one in ids if one not in put and earlier.get(one, words) == words)
        put.add(input_id)
        return input_id

    async def _answer_in_pause(self, ctx: RunContext[Any], on_input: OnInput, question: PendingInput) -> Any:
        """Stop the time limits around the caller while a person is asked."""
        if question.input_kind == "tool":
            # The client executes the call, and the tool's `timeout` limits this.
            return await self._answer(on_input, question)
        with (ctx.time_scope or ctx.info.time_scope).pause():
            return await self._answer(on_input, question)

    async def _answer(self, on_input: OnInput, question: PendingInput) -> Any:
        if inspect.iscoroutinefunction(on_input):
            return await on_input(question)
        # Imported here: importing rxloop is quicker without.
        from rxloop.support.threads import run_in_thread

        # At a terminal two questions at once could not be told apart, and the order of the answers would be by chance.
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
    """Return the task of the run that waits for an answer, or None if this is unknown.

    A task that a tool has started asks for the call of the tool, unless it has an event loop of its own.
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
    """What whoever asks gets of an answer.

    Raises:
        InvalidInput: It does not fit.
    """
    try:
        value = read(value)
    except ValueError as error:
        raise InvalidInput(f"{value!r} does not answer {question.prompt!r} ({question.input_id}): {error}") from error
    if question.options is not None and value not in question.options:
        raise InvalidInput(f"{value!r} is none of the options of {question.prompt!r}: {question.options}")
    return value
