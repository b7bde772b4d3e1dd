"""Inbox for run commands, turning them into events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from rxloop.coordination.answers import find_credentials, find_new_answers, validate_commands
from rxloop.errors import ConfigurationError, EventLogError, InvalidInput, LogUnreachable, UnknownRun
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.protocol.commands import AnswerCommand, CancelCommand, Command, GoalsCommand, MessageCommand
from rxloop.protocol.envelope import COMMAND_ID
from rxloop.protocol.events import Event, GoalsUpdatedEvent, InputReceivedEvent, MessageAddedEvent
from rxloop.protocol.messages import Message
from rxloop.state.run_state import RunState

log = logging.getLogger("rxloop")

RETRY = 0.5
"""Seconds to wait before retrying an unreachable log."""

Commands = Sequence[tuple[int, Command]]
"""Numbered commands, oldest first."""


class CancelRequest(NamedTuple):
    """Cancellation requested by another process."""

    reason: str
    number: int
    """Number of the newest command. Cancelling takes precedence over all earlier commands."""


class AppliedCommands(NamedTuple):
    """Commands applied when an attempt starts."""

    cancel: CancelRequest | None = None
    """Pending cancellation, which takes precedence over any other command."""
    events: tuple[Event, ...] = ()
    """Events created from answers and messages, in order."""
    credentials: Mapping[str, Any] = MappingProxyType({})
    """Encrypted credentials, keyed by question id."""
    skipped: int = 0
    """Highest command number that produced no event, or 0."""
    dropped_by: str | None = None
    """Id of the later run that dropped all questions before any was answered."""

    @property
    def has_answers(self) -> bool:
        """True if any question is answered."""
        return bool(self.credentials) or any(isinstance(event, InputReceivedEvent) for event in self.events)


def apply_commands(task_id: str, state: RunState, commands: Commands, *, warn: bool = True) -> AppliedCommands:
    """Turn pending commands into events.

    Late or invalid answers are skipped with a warning. Cancel commands for a cancelled run are
    skipped too, because the run was resumed after them.

    Args:
        task_id: Id of an unfinished run.
        state: Run state before this attempt.
        commands: Commands numbered after `state.last_command`.
        warn: Whether to log skipped answers.
    """
    if not commands:
        return AppliedCommands()
    newest = commands[-1][0]
    cancel_commands = [command for _, command in commands if isinstance(command, CancelCommand)]
    if cancel_commands and state.state != "canceled":
        return AppliedCommands(CancelRequest(cancel_commands[0].reason or "cancelled", newest))
    events: list[Event] = []
    encrypted: dict[str, Any] = {}
    skipped, dropped_by = 0, None
    for number, command in commands:
        count = len(events)
        new_messages: Iterable[MessageAddedEvent] = ()
        if isinstance(command, AnswerCommand):
            encrypted |= find_credentials(state, command.inputs)
            for event in read_answers(task_id, state, number, command, warn=warn):
                events.append(event)
                state = state.replace(answers={**state.answers, event.input_id: event.value})
            if command.messages and is_accepted(task_id, state, command):
                new_messages = read_messages(state, number, command)
        elif isinstance(command, GoalsCommand):
            event = read_goals(task_id, state, number, command, warn=warn)
            events.append(event)
            state = state.replace(goals=tuple(event.goals))
        elif isinstance(command, MessageCommand):
            if (
                command.superseding_task_id is not None
                and not AppliedCommands(None, tuple(events), encrypted).has_answers
            ):
                # An earlier answer keeps the later run from starting. An answer sent afterwards is rejected as late.
                dropped_by, state = dropped_by or command.superseding_task_id, state.replace(pending={})
            new_messages = read_messages(state, number, command)
        for event in new_messages:
            events.append(event)
            state = state.replace(held=(*state.held, Message(role=event.role, message_id=event.message_id)))
        if len(events) == count:
            skipped = number
    return AppliedCommands(None, tuple(events), encrypted, skipped, dropped_by)


def read_answers(
    task_id: str, state: RunState, number: int, command: AnswerCommand, *, warn: bool = True
) -> Iterator[InputReceivedEvent]:
    """Yield new answers as events, skipping those already recorded with an equal value."""
    for input_id, value in command.inputs.items():
        try:
            answers = find_new_answers(task_id, state, {input_id: value})
        except InvalidInput as error:
            if warn:
                log.warning("Skipping command %s for run %s: %s", number, task_id, error)
            continue
        for answer in answers.values():
            yield InputReceivedEvent(input_id=input_id, value=answer, metadata={COMMAND_ID: number})


def is_accepted(task_id: str, state: RunState, command: AnswerCommand) -> bool:
    """Return True if every answer in the command is valid or already recorded."""
    try:
        find_new_answers(task_id, state, command.inputs)
    except InvalidInput:
        return False
    return True


def read_messages(state: RunState, number: int, command: MessageCommand | AnswerCommand) -> Iterator[MessageAddedEvent]:
    """Yield new messages as events."""
    for message in find_new_messages(state, command):
        yield MessageAddedEvent(
            role="system" if message.role == "system" else "user",
            content=message.content,
            message_id=message.message_id,
            metadata={COMMAND_ID: number},
        )


def find_new_messages(state: RunState, command: MessageCommand | AnswerCommand) -> list[Message]:
    """Return only new messages. Senders may repeat a message using its id."""
    existing_ids = {message.message_id for message in (*state.messages, *state.held)}
    return [
        message for message in command.messages if message.message_id is None or message.message_id not in existing_ids
    ]


def read_goals(
    task_id: str, state: RunState, number: int, command: GoalsCommand, *, warn: bool = True
) -> GoalsUpdatedEvent:
    """Return changed goals as an event. If a change has become invalid, the goals in the event are unchanged."""
    # Imported here because few programs change the goals of other runs.
    from rxloop.tools.goals import change_goals

    goals = state.goals or ()
    try:
        goals = change_goals(goals, command.changes)
    except ConfigurationError as error:
        if warn:
            log.warning("Skipping command %s for run %s: %s", number, task_id, error)
    return GoalsUpdatedEvent(goals=[*goals], metadata={COMMAND_ID: number})


class Inbox:
    """Inbox of a running attempt. Cancelling ends the attempt, and messages are added to its history.

    An answer is passed directly to a tool call waiting in parallel with others. Any other answer is deferred to the
    next attempt, which repeats the call that asked. Later messages are then deferred too: commands apply in order, and
    the run only records the last applied number.
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
        on_message: Callable[[int, MessageCommand | GoalsCommand], None],
        on_answers: Callable[[Sequence[InputReceivedEvent]], bool],
    ) -> None:
        """Start watching for commands. They are only applied after calling `open`.

        Args:
            event_log: Log with the commands.
            task_id: Id of the run.
            state: Function returning the current run state.
            is_ending: Function returning True if no more commands should be applied.
            on_cancel: Called with the reason and number when cancelled.
            on_message: Called with the number and command for each message and change of goals.
            on_answers: Called with answers to pass to waiting tool calls. Returns False if no call is waiting for them.
        """
        self._log, self._task_id, self._state, self._is_ending = event_log, task_id, state, is_ending
        self._on_cancel, self._on_message, self._on_answers = on_cancel, on_message, on_answers
        self._is_open = False
        self._last_number = 0
        self._has_new = False
        self._has_deferred = False
        """True if a command was deferred to the next attempt."""
        self._reading: asyncio.Task[None] | None = None
        self._stop = event_log.watch_commands(task_id, self._notify)

    def mark_seen(self) -> None:
        """Mark all commands so far as seen, just before the attempt reads the log."""
        self._has_new = False

    def skip_applied(self, number: int) -> None:
        """Skip commands already applied when the attempt started."""
        self._last_number = number

    def open(self) -> None:
        """Start applying commands."""
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
                # The notification may arrive before the first event is stored.
                return
            except LogUnreachable as error:
                log.warning("Cannot read commands for run %s, retrying: %s", self._task_id, error)
                self._has_new = True
                await asyncio.sleep(RETRY)
                continue
            except EventLogError as error:
                log.warning("Cannot read commands for run %s: %s", self._task_id, error)
                return
            await validate_commands(self._state(), commands)
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
        """Stop watching for commands."""
        self._stop()
        # Both refer to the inbox, so drop them to avoid reference cycles.
        self._stop = _do_nothing
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.wait([reading])


def _do_nothing() -> None:
    pass
