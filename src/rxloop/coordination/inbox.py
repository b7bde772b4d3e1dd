"""Inbox of a run: the commands that it receives, as the events that they become, or as the end of the attempt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from rxloop.coordination.answers import find_credentials, new_answers
from rxloop.errors import EventLogError, InvalidInput, LogUnreachable, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.protocol.commands import AnswerCommand, CancelCommand, Command, MessageCommand
from rxloop.protocol.events import Event, InputReceivedEvent, MessageAddedEvent
from rxloop.protocol.messages import Message
from rxloop.state.run_state import COMMAND_ID, RunState

log = logging.getLogger("rxloop")

RETRY = 0.5
"""Seconds until a log that could not be reached is read again."""

Commands = Sequence[tuple[int, Command]]
"""Commands in order, each with its number."""


class CancelRequest(NamedTuple):
    """Cancel of a run that another process sent."""

    reason: str
    number: int
    """Number of the newest command, all of which the cancel precedes."""


class AppliedCommands(NamedTuple):
    """Commands that an attempt applies when it starts."""

    cancel: CancelRequest | None = None
    """Cancel, which precedes all other commands."""
    news: tuple[Event, ...] = ()
    """Answers and messages as events, in order."""
    credentials: Mapping[str, Any] = MappingProxyType({})
    """Credentials that a client has encrypted, by the id of the question."""
    skipped: int = 0
    """Highest number of the commands that become no event; 0 if there are none."""
    dropped_by: str | None = None
    """Later run that dropped the questions before any of them was answered."""

    @property
    def answers(self) -> bool:
        """True if a question is answered."""
        return bool(self.credentials) or any(isinstance(event, InputReceivedEvent) for event in self.news)


def apply_commands(task_id: str, state: RunState, commands: Commands, *, warn: bool = True) -> AppliedCommands:
    """Return what the commands become that a run has not applied yet.

    An answer that does not fit, or comes too late, is skipped with a warning. A cancel of a run that is already
    canceled is skipped, too: it must not end an attempt that was requested after it.

    Args:
        task_id: The run, which is not finished.
        state: The state of the run before the attempt.
        commands: The commands after `state.last_command`.
        warn: Log the commands that are skipped.
    """
    if not commands:
        return AppliedCommands()
    newest = commands[-1][0]
    cancels = [command for _, command in commands if isinstance(command, CancelCommand)]
    if cancels and state.state != "canceled":
        return AppliedCommands(CancelRequest(cancels[0].reason or "cancelled", newest))
    news: list[Event] = []
    encrypted: dict[str, Any] = {}
    skipped, dropped_by = 0, None
    for number, command in commands:
        before = len(news)
        said: Iterable[MessageAddedEvent] = ()
        if isinstance(command, AnswerCommand):
            encrypted |= find_credentials(state, command.inputs)
            for event in read_answers(task_id, state, number, command, warn=warn):
                news.append(event)
                state = state.replace(answers={**state.answers, event.input_id: event.value})
            if command.messages and is_accepted(task_id, state, command):
                said = read_messages(state, number, command)
        elif isinstance(command, MessageCommand):
            if command.superseding_task_id is not None and not AppliedCommands(None, tuple(news), encrypted).answers:
                # An answer that comes first keeps the later run from beginning, and one behind is told that it is late.
                dropped_by, state = dropped_by or command.superseding_task_id, state.replace(pending={})
            said = read_messages(state, number, command)
        for event in said:
            news.append(event)
            state = state.replace(held=(*state.held, Message(role=event.role, message_id=event.message_id)))
        if len(news) == before:
            skipped = number
    return AppliedCommands(None, tuple(news), encrypted, skipped, dropped_by)


def read_answers(
    task_id: str, state: RunState, number: int, command: AnswerCommand, *, warn: bool = True
) -> Iterator[InputReceivedEvent]:
    """Yield the answers of a command to open questions; equal answers that the run already has are skipped."""
    for input_id, value in command.inputs.items():
        try:
            answers = new_answers(task_id, state, {input_id: value})
        except InvalidInput as error:
            if warn:
                log.warning("letter %s to the run %s comes to nothing: %s", number, task_id, error)
            continue
        for answer in answers.values():
            yield InputReceivedEvent(input_id=input_id, value=answer, metadata={COMMAND_ID: number})


def is_accepted(task_id: str, state: RunState, command: AnswerCommand) -> bool:
    """Return True if a run accepts every answer of a command, or already has an equal answer."""
    try:
        new_answers(task_id, state, command.inputs)
    except InvalidInput:
        return False
    return True


def read_messages(state: RunState, number: int, command: MessageCommand | AnswerCommand) -> Iterator[MessageAddedEvent]:
    """Yield the messages of a command as events."""
    for message in find_new_messages(state, command):
        yield MessageAddedEvent(
            role="system" if message.role == "system" else "user",
            content=message.content,
            message_id=message.message_id,
            metadata={COMMAND_ID: number},
        )


def find_new_messages(state: RunState, command: MessageCommand | AnswerCommand) -> list[Message]:
    """Return the messages of a command that the run does not have yet; a sender may repeat a message by its id."""
    known = {message.message_id for message in (*state.messages, *state.held)}
    return [message for message in command.messages if message.message_id is None or message.message_id not in known]


class Inbox:
    """Inbox of an attempt. A cancel ends the attempt, a message enters its history, and an answer waits.

    An answer to a call that waits next to other calls reaches that call at once. Any other answer waits for the next
    attempt, which repeats the call that asked. So do the messages after it: commands apply in order, and the run
    records the number of the last one.
    """

    __slots__ = (
        "_has_deferred",
        "_has_new",
        "_is_ending",
        "_is_open",
        "_last_number",
        "_log",
        "_on_answers",
        "_on_cancel",
        "_on_message",
        "_reading",
        "_state",
        "_stop",
        "_task_id",
    )

    def __init__(
        self,
        event_log: EventLog,
        task_id: str,
        *,
        state: Callable[[], RunState],
        is_ending: Callable[[], bool],
        on_cancel: Callable[[str, int], None],
        on_message: Callable[[int, MessageCommand], None],
        on_answers: Callable[[Sequence[InputReceivedEvent]], bool],
    ) -> None:
        """Start to watch the commands of a run. None is applied before `open`.

        Args:
            event_log: The log.
            task_id: The run.
            state: Returns the current state of the run.
            is_ending: Returns True if the attempt applies no more commands.
            on_cancel: Called with the reason and the number of a cancel.
            on_message: Called with the number and the command of a message.
            on_answers: Passes answers to the calls that wait for them. Returns False if no call waits for them.
        """
        self._log, self._task_id, self._state, self._is_ending = event_log, task_id, state, is_ending
        self._on_cancel, self._on_message, self._on_answers = on_cancel, on_message, on_answers
        self._is_open = False
        self._last_number = 0
        self._has_new = False
        self._has_deferred = False
        """True if a command waits for the next attempt."""
        self._reading: asyncio.Task[None] | None = None
        self._stop = event_log.watch_commands(task_id, self._notify)

    def will_read(self) -> None:
        """Note that the attempt is about to read the log, which contains all commands so far."""
        self._has_new = False

    def skip_to(self, number: int) -> None:
        """Skip the commands up to a number, because the attempt starts with them."""
        self._last_number = number

    def open(self) -> None:
        """Apply commands from now on."""
        self._is_open = True
        if self._has_new:
            self._notify()

    def _notify(self) -> None:
        self._has_new = True
        if self._is_open and not self._is_ending() and (self._reading is None or self._reading.done()):
            self._reading = asyncio.get_running_loop().create_task(self._read(), name=f"rxloop-inbox-{self._task_id}")

    async def _read(self) -> None:
        while self._has_new:
            self._has_new = False
            try:
                commands = await read_log(self._log.read_commands, self._task_id, after=self._last_number)
            except UnknownRun:
                # The notification came before the first event of the run was stored.
                return
            except LogUnreachable as error:
                log.warning("the mail of the run %s cannot be read, trying again: %s", self._task_id, error)
                self._has_new = True
                await asyncio.sleep(RETRY)
                continue
            except EventLogError as error:
                log.warning("the mail of the run %s cannot be read: %s", self._task_id, error)
                return
            for number, command in commands:
                self._last_number = number
                if not self._is_ending():
                    self._apply(number, command)

    def _apply(self, number: int, command: Command) -> None:
        if isinstance(command, CancelCommand):
            self._on_cancel(command.reason or "cancelled", number)
        elif isinstance(command, AnswerCommand):
            state = self._state()
            answers = list(read_answers(self._task_id, state, number, command))
            is_secret = bool(find_credentials(state, command.inputs))
            if is_secret or self._has_deferred or not self._on_answers(answers):
                self._has_deferred = self._has_deferred or is_secret or bool(answers)
            elif command.messages and is_accepted(self._task_id, state, command):
                self._on_message(number, MessageCommand(messages=command.messages))
        elif not self._has_deferred:
            self._on_message(number, command)

    async def aclose(self) -> None:
        """Apply no more commands."""
        self._stop()
        # The function refers to the inbox: without it, no cycle is left to the garbage collector.
        self._stop = _do_nothing
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])


def _do_nothing() -> None:
    pass
