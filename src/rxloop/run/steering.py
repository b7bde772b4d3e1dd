"""Messages sent to a run while it is running."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from reactivex import Observable, abc

from rxloop.errors import ConfigurationError, RunOver, RxloopError
from rxloop.protocol.events import Event, MessageAddedEvent, normalise
from rxloop.protocol.messages import Message, Prompt, to_messages
from rxloop.protocol.tool_events import Goal, GoalChange
from rxloop.run.attempt import Attempt
from rxloop.run.spec import Steer, Steering
from rxloop.stream.sources import from_async_iter
from rxloop.support.tasks import close_iterator


def to_sent_messages(message: Prompt) -> tuple[Message, ...]:
    """Convert a prompt to messages for a running run.

    Raises:
        ConfigurationError: The message is invalid.
    """
    if isinstance(message, Steer):
        raise ConfigurationError(
            f"message must not be a Steer, got {message!r}; use send(text, interrupt=True)"
            if message.interrupt
            else f"message must not be a Steer, got {message!r}; use send(text)"
        )
    return to_messages(message, "the message")


log = logging.getLogger("rxloop")

MAX_RECURSIVE_SENDS = 100
"""Maximum number of messages sent during the delivery of other messages."""


def send_messages(
    attempt: Attempt, messages: Sequence[Message], *, interrupt: bool = False, metadata: Mapping[str, Any] | None = None
) -> None:
    """Send messages to a run from any thread; see `Run.send`.

    Args:
        attempt: Current attempt of the run.
        messages: User or system messages.
        interrupt: Whether to interrupt the model while it is answering.
        metadata: Metadata for the resulting events.

    Raises:
        ConfigurationError: A message has another role.
        RunOver: The end of the run has been decided.
    """
    if not messages:
        raise ConfigurationError("messages must not be empty")
    events = [_make_event(message, metadata or {}) for message in messages]
    attempt.lifetime.run_in_loop(lambda: _publish_or_queue(attempt, events, interrupt))


def send_goals(attempt: Attempt, changes: Sequence[GoalChange]) -> tuple[Goal, ...]:
    """Change the goals of a run from any thread; see `Run.update_goals`."""
    # Imported here because few programs change the goals of a run.
    from rxloop.tools.goals import update_goals

    def update() -> tuple[Goal, ...]:
        if attempt.lifetime.is_starting or attempt.lifetime.is_ending:
            raise RunOver(f"run {attempt.task_id} must be running to change its goals; call `await run.begin()` first")
        return update_goals(attempt.context(), *changes)

    return attempt.lifetime.run_in_loop(update)


def _make_event(message: Message, metadata: Mapping[str, Any]) -> MessageAddedEvent:
    if message.role not in ("user", "system"):
        raise ConfigurationError(f"only user and system messages can be sent to a run, got role {message.role!r}")
    event = MessageAddedEvent(
        role=message.role, content=message.content, message_id=message.message_id, metadata=dict(metadata)
    )
    # Normalise here too, so that errors are raised to the sender.
    normalise(event)
    return event


def _publish_or_queue(attempt: Attempt, events: Sequence[Event], interrupt: bool) -> None:
    """Publish events, or queue them until the run has started.

    The loop decides the end immediately after checking for messages, without yielding to other tasks. Therefore, a
    message is either published before the check, so that the loop continues, or rejected after it.
    """
    lifetime = attempt.lifetime
    if lifetime.is_ending:
        raise RunOver(
            f"run {attempt.task_id} has ended or is ending, so the message was not sent: start a new run in the same "
            "conversation using agent.run(..., context_id=...)"
        )
    is_publishing = bool(attempt.unpublished_messages)
    if is_publishing and not lifetime.is_starting:
        attempt.recursive_sends += len(events)
        if attempt.recursive_sends > MAX_RECURSIVE_SENDS:
            raise RxloopError(
                f"more than {MAX_RECURSIVE_SENDS} messages were sent by subscribers that received the message-added "
                "event of another message; subscribers must not send a message for each message-added event"
            )
    attempt.unpublished_messages.extend(events)
    if lifetime.is_starting:
        return
    step = attempt.state().open_step
    if not is_publishing:
        publish_queued(attempt)
    if interrupt and step is not None:
        # Defer this, because the caller may be handling an event of the very answer being interrupted.
        attempt.info.scope.call_soon(_interrupt, attempt, step)


def _interrupt(attempt: Attempt, step: str) -> None:
    call = attempt.open_call
    if call is not None and not attempt.lifetime.is_ending and attempt.state().open_step == step:
        call.interrupt(attempt.close_interrupted(step))


def publish_queued(attempt: Attempt) -> None:
    """Publish queued messages in order, including any added by subscribers meanwhile."""
    while attempt.unpublished_messages:
        try:
            attempt.publish(attempt.unpublished_messages[0])
        finally:
            del attempt.unpublished_messages[0]
    attempt.recursive_sends = 0


def listen(attempt: Attempt, source: Steering) -> abc.DisposableBase:
    """Send messages from a source to the run until it ends. An error from the source ends the run."""
    observable = source if isinstance(source, Observable) else _to_observable(attempt, source)
    return observable.subscribe(
        partial(_send_item, attempt), partial(_fail, attempt), scheduler=attempt.lifetime.scheduler
    )


def _to_observable(attempt: Attempt, source: AsyncIterable[Any]) -> Observable[Any]:
    async def items() -> AsyncIterator[Any]:
        # External sources may stay silent forever, so don't count them as progress when detecting stuck pipelines.
        with attempt.info.scope.mark_waiting(asyncio.current_task()):
            iterator = aiter(source)
            try:
                async for item in iterator:
                    yield item
            finally:
                await close_iterator(iterator)

    return from_async_iter(items, attempt.context(), name="rxloop-steering")


def _send_item(attempt: Attempt, item: Any) -> None:
    steer = item if isinstance(item, Steer) else Steer(item)
    try:
        send_messages(attempt, to_messages(steer.message, "the message"), interrupt=steer.interrupt)
    except RunOver as error:
        log.warning("Dropping a steering= message sent too late: %s", error)
    except Exception as error:
        _fail(attempt, error)


def _fail(attempt: Attempt, error: Exception) -> None:
    failure = RxloopError(f"the steering= source failed: {type(error).__name__}: {error}")
    failure.__cause__ = error
    attempt.lifetime.call_in_loop(cast("Callable[..., None]", attempt.lifetime.finish), failure)
