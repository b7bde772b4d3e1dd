"""Messages that enter a run while it runs."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, cast

from reactivex import Observable, abc

from rxloop.errors import ConfigurationError, RunOver, RxloopError
from rxloop.protocol.events import Event, MessageAddedEvent, normalise
from rxloop.protocol.messages import Message, Prompt, to_messages
from rxloop.run.attempt import Attempt
from rxloop.run.spec import Steer, Steering
from rxloop.stream.sources import from_async_iter
from rxloop.support.tasks import close_iterator


def as_said(message: Prompt) -> tuple[Message, ...]:
    """Make messages of what is said to a run.

    Raises:
        ConfigurationError: It is something else.
    """
    if isinstance(message, Steer):
        raise ConfigurationError(
            f"the message is {message!r}, which is for steering=: use send(text, interrupt=True)"
            if message.interrupt
            else f"the message is {message!r}, which is for steering=: use send(text)"
        )
    return to_messages(message, "the message")


log = logging.getLogger("rxloop")

_TURN = 1.0
"""Seconds after which a thread that waits for the event loop of a run looks whether that is still there."""


def say(
    attempt: Attempt,
    messages: Sequence[Message],
    *,
    interrupt: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Say something to the model of a run, from any thread; see `Run.send`.

    Args:
        attempt: That of the run.
        messages: Of the user or the system.
        interrupt: Cut off the answer that is being written.
        metadata: Of the events that are made of them.

    Raises:
        ConfigurationError: A message is of another role.
        RunOver: The end of the run is decided.
    """
    if not messages:
        raise ConfigurationError("nothing was said: give a text, a message, or a list of them")
    events = [_event(message, metadata or {}) for message in messages]
    _in_loop(attempt, lambda: _take(attempt, events, interrupt))


def _event(message: Message, metadata: Mapping[str, Any]) -> MessageAddedEvent:
    if message.role not in ("user", "system"):
        raise ConfigurationError(
            f"a message of the role {message.role!r} cannot be said to a run: give a text, or a message of the user or "
            "the system"
        )
    event = MessageAddedEvent(
        role=message.role, content=message.content, message_id=message.message_id, metadata=dict(metadata)
    )
    # Here, and not only where the run stamps it: what cannot be written is for the one who says it to hear of.
    normalise(event)
    return event


def _take(attempt: Attempt, events: Sequence[Event], interrupt: bool) -> None:
    """Put what was said on the stream, or keep it until there is one.

    The end is decided where the loop has nothing more to do, in the same thread and in one go with a look at what was
    said. So a message either is on the stream before, and the loop goes on, or it comes here, and is refused.
    """
    life = attempt.life
    if life.ending:
        raise _over(attempt)
    speaking = bool(attempt.unpublished_messages)
    attempt.unpublished_messages.extend(events)
    if life.waits:
        return
    step = attempt.state().open_step
    if not speaking:
        speak(attempt)
    if interrupt and step is not None:
        # Later, since this may be called by a reader of the very piece of the answer that is being delivered.
        attempt.info.scope.call_soon(_interrupt, attempt, step)


def _interrupt(attempt: Attempt, step: str) -> None:
    call = attempt.open_call
    if call is not None and not attempt.life.ending and attempt.state().open_step == step:
        call.interrupt(attempt.cut_off(step))


def _over(attempt: Attempt) -> RunOver:
    return RunOver(
        f"the run {attempt.task_id} is over, or comes to its end at this moment: nothing was said to it. "
        "Say it in a new run of the conversation: agent.run(..., context_id=...)"
    )


def _in_loop(attempt: Attempt, function: Callable[[], None]) -> None:
    """Call a function in the thread of the run, and wait for what it comes to."""
    loop = attempt.life.event_loop
    if loop is None or threading.get_ident() == attempt.life.thread:
        function()
        return None
    done: Future[None] = Future()

    def carry_out() -> None:
        try:
            done.set_result(function())
        except BaseException as error:
            done.set_exception(error)

    try:
        loop.call_soon_threadsafe(carry_out)
    except RuntimeError:
        raise _over(attempt) from None
    while True:
        try:
            return done.result(_TURN)
        except TimeoutError:
            if loop.is_closed():
                raise _over(attempt) from None


def speak(attempt: Attempt) -> None:
    """Put what was said on the stream, in order, though a reader of the first of it may say more."""
    while attempt.unpublished_messages:
        try:
            attempt.publish(attempt.unpublished_messages[0])
        finally:
            del attempt.unpublished_messages[0]


def listen(attempt: Attempt, source: Steering) -> abc.DisposableBase:
    """Let the messages of a source steer a run, until the run ends; an error of the source ends the run."""
    observable = source if isinstance(source, Observable) else _observable(attempt, source)
    return observable.subscribe(partial(_steer, attempt), partial(_failed, attempt), scheduler=attempt.life.scheduler)


def _observable(attempt: Attempt, source: AsyncIterable[Any]) -> Observable[Any]:
    async def items() -> AsyncIterator[Any]:
        # What comes from outside, and may never come, cannot bring a pipeline on that is stuck.
        with attempt.info.scope.mark_waiting(asyncio.current_task()):
            iterator = aiter(source)
            try:
                async for item in iterator:
                    yield item
            finally:
                await close_iterator(iterator)

    return from_async_iter(items, attempt.context(), name="rxloop-steering")


def _steer(attempt: Attempt, item: Any) -> None:
    steer = item if isinstance(item, Steer) else Steer(item)
    try:
        say(attempt, to_messages(steer.message, "the message"), interrupt=steer.interrupt)
    except RunOver as error:
        log.warning("a message of steering= came too late: %s", error)
    except Exception as error:
        _failed(attempt, error)


def _failed(attempt: Attempt, error: Exception) -> None:
    failure = RxloopError(f"what steers the run (steering=) failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    attempt.life.in_loop(cast("Callable[..., None]", attempt.life.finish), failure)
