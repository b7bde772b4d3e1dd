"""Remote runs, identified by ID and executed in any process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Generic, overload

from typing_extensions import TypeVar, Unpack

from rxloop.agents.definition import AgentDefinition
from rxloop.agents.options import ExecuteOptions, ResumeOptions, RunOptions
from rxloop.agents.specs import make_resume_spec, make_run_spec, make_spec
from rxloop.agents.validation import check_inputs, check_options, check_run_id
from rxloop.coordination.answers import read_snapshot
from rxloop.coordination.commands import send_answer, send_cancel, send_goals, send_message
from rxloop.coordination.order import RETRY, find_blocking, is_idle, wait_for_order
from rxloop.errors import (
    ConfigurationError,
    ConflictError,
    ContextBusy,
    InvalidInput,
    LogUnreachable,
    RunExists,
    RxloopError,
    UnknownRun,
)
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.log_retry import read_log
from rxloop.pipeline.records import RunRecord, Snapshot
from rxloop.pipeline.run_context import D
from rxloop.protocol.events import StatusUpdateEvent, TaskEvent, normalise
from rxloop.protocol.messages import Prompt
from rxloop.protocol.tool_events import GoalChange
from rxloop.run.attempt import Attempt
from rxloop.run.final_events import make_exists_error
from rxloop.run.handle import Run
from rxloop.run.log_writer import LogWriter
from rxloop.run.ownership import find_owned, wait_stored
from rxloop.run.questions.registry import OnInput
from rxloop.run.result import Result
from rxloop.run.spec import WhenBusy
from rxloop.run.startup import make_task_event
from rxloop.run.steering import to_sent_messages
from rxloop.support.misuse import ExplainedAttributes
from rxloop.support.threads import compute

log = logging.getLogger("rxloop")

O = TypeVar("O", default=str)  # noqa: E741

_EXECUTE = "Agent.get_run(...).execute"

_RETRY_INTERVAL = 0.01
"""Retry interval in seconds for reading a run that was just started in this process."""


class RemoteRun(ExplainedAttributes, Generic[D, O]):
    """Run identified by its ID, created by `agent.get_run` and executed in any process."""

    def __init__(self, definition: AgentDefinition, task_id: str) -> None:
        """Create a reference to a run.

        Args:
            definition: Agent definition.
            task_id: Run ID.
        """
        check_run_id(task_id)
        self.task_id = task_id
        self._definition = definition

    if not TYPE_CHECKING:
        # Type checkers report `await` on their own if this method is missing.

        def __await__(self) -> Any:
            raise TypeError("a RemoteRun must be executed or resumed: `await agent.get_run(task_id).execute()`")

    def __repr__(self) -> str:
        return f"<RemoteRun {self.task_id} of {self._definition.name!r}>"

    @overload
    async def execute(
        self: RemoteRun[None, O], *, deps: None = None, **options: Unpack[ExecuteOptions[O]]
    ) -> RunRecord: ...
    @overload
    async def execute(self, *, deps: D, **options: Unpack[ExecuteOptions[O]]) -> RunRecord: ...
    async def execute(self, *, deps: Any = None, **options: Unpack[ExecuteOptions[O]]) -> RunRecord:
        """Execute the run until it is idle: finished, cancelled, or waiting for input.

        This waits while another process executes the run or an earlier run of the conversation is unfinished. Orphaned
        runs are resumed. Several processes may call this repeatedly for the same run, so it is suitable for queues with
        at-least-once delivery. If the awaiting task is cancelled, the run is released instead of cancelled.

        Args:
            deps: Dependencies, as in `Agent.run`.
            **options: See `ExecuteOptions`.

        Returns:
            Record from the log. Failed runs do not raise an exception, see `record.state`.

        Raises:
            UnknownRun: If the run does not exist.
            LogUnreachable: If the log is unavailable, so the progress is unknown. Execute the run again.
            ContextBusy: If an earlier run is unfinished and `when_busy` is `refuse`.
            ConfigurationError: If the agent has no log, or `deps` are missing.
            TypeError: If an option is unknown.
        """
        return await execute_run(self._definition, self.task_id, deps, options)

    async def cancel(self, reason: str | None = None) -> None:
        """Cancel the run and wait until it has ended. Finished runs are not changed.

        Runs executed by this process are cancelled directly, even if another agent created them. Otherwise, the
        executing process receives a command. If the run is orphaned or waiting for input, a new attempt closes its open
        calls and writes the final event, without calling the model or tools.

        Args:
            reason: Reason for the final event.

        Raises:
            ConfigurationError: If another process executes the run, and the agent has no log.
            UnknownRun: If the run does not exist.
            ConflictError: If the executing process has not ended the run within 30 s. The command remains in the inbox.
                If the log does not support an inbox, cancel the run in that process.
            LogUnreachable: If the log is unavailable, or this process was frozen. If the command was stored, it remains
                in the inbox.
        """
        definition, task_id, reason = self._definition, self.task_id, reason or "cancelled"
        hold = definition.owned.find(task_id)
        if hold is not None:
            await hold.cancel_and_wait(reason)
            if definition.log is None or not hold.is_unfinished:
                return
            # The attempt has already ended, so the cancellation must be recorded in the log.
        elif definition.log is None:
            raise ConfigurationError(
                f"run {task_id} is not executed by this process; cancelling it requires an agent with its event log"
            )

        async def close() -> bool:
            spec = make_spec(definition, task_id, "", None, {}, resume=True, cancel=reason)
            return await has_ended(definition.make_run(spec))

        try:
            await send_cancel(definition.log, task_id, reason, close)
        except UnknownRun:
            # If the attempt of this process could not log its first event, no process can continue the run.
            if hold is None:
                raise

    async def answer(self, inputs: Mapping[str, Any]) -> None:
        """Store answers to open questions durably.

        The next attempt applies them. Equal answers may be sent again. Credentials must be encrypted, because the log
        stores them. Otherwise, pass them to `Agent.resume`.

        Args:
            inputs: Answers by `input_id`.

        Raises:
            InvalidInput: If the run is not waiting for this input, already has another answer, or the answer is
                invalid.
            UnknownRun: If the run does not exist.
            ConfigurationError: If the agent has no log, or the log does not support an inbox.
        """
        check_inputs(inputs)
        event_log = self._definition.get_log(f"answer {self.task_id}")
        await wait_stored(event_log, self.task_id)
        await send_answer(event_log, self.task_id, inputs)

    async def send(self, message: Prompt, *, interrupt: bool = False) -> None:
        """Send a message to the run durably.

        The message is added to the history after open tool calls. An active run applies it immediately, and other runs
        in their next attempt.

        Args:
            message: String, message or sequence of messages.
            interrupt: Interrupt a streaming answer.

        Raises:
            RunOver: If the run is finished or finishes first, or it waits for input that was superseded by a later run.
            UnknownRun: If the run does not exist.
            ConfigurationError: If the agent has no log, the log does not support an inbox, or the message is empty.
        """
        event_log = self._definition.get_log(f"send a message to {self.task_id}")
        messages = to_sent_messages(message)
        if not messages or any(each.role not in ("user", "system") for each in messages):
            raise ConfigurationError("send() requires user or system messages, such as a string")
        await send_message(event_log, self.task_id, messages, interrupt=interrupt)

    async def update_goals(self, *changes: GoalChange) -> None:
        """Add or change goals of the run durably.

        An active run applies the changes immediately, and other runs in their next attempt. If the model has made them
        invalid in the meantime, a warning is logged, and the goals stay unchanged.

        Args:
            *changes: New goals and changes, such as `{"id": "tests", "status": "done"}`.

        Raises:
            RunOver: If the run is finished or finishes first, or it waits for input that was superseded by a later run.
            UnknownRun: If the run does not exist.
            ConfigurationError: If a change is invalid, the agent has no log, or the log does not support an inbox.
        """
        await send_goals(self._definition.get_log(f"change the goals of {self.task_id}"), self.task_id, changes)


async def submit_run(definition: AgentDefinition, prompt: Prompt, options: RunOptions) -> RunRecord:
    """Store the first event of a run without starting it, implementing `Agent.submit`."""
    event_log = definition.get_log("submit a run")
    for name in ("on_input", "when_busy", "steering"):
        if options.get(name) is not None:
            other = "resume()" if name == "steering" else "execute() or resume()"
            raise ConfigurationError(f"submit() does not accept {name}=; pass it to {other}")
    spec = make_run_spec(definition, "Agent.submit", prompt, None, options)
    attempt = Attempt(spec)
    writer = LogWriter(event_log, spec.task_id, 0, lambda error: None)
    attempt.recorder.writer = writer

    def make_first_event() -> TaskEvent:
        task = make_task_event(attempt)
        normalise(task)
        return task

    task = attempt.recorder.record(await compute(make_first_event, steps=len(spec.messages)))
    try:
        await writer.flush()
    except ConflictError as error:
        raise make_exists_error(spec.task_id, "is in the log") from error
    finally:
        await writer.close()
    return RunRecord.from_events(spec.task_id, [task])


async def execute_run(definition: AgentDefinition, task_id: str, deps: Any, options: ExecuteOptions[Any]) -> RunRecord:
    """Execute a run until it is idle, implementing `RemoteRun.execute`."""
    check_options(_EXECUTE, options, ExecuteOptions)
    event_log = definition.get_log(f"execute {task_id}")
    on_run = options.get("on_run")
    asks, when_busy = options.get("on_input") is not None, options.get("when_busy", "wait")
    hold = find_owned(event_log, task_id)
    if hold is not None and hold.is_called_from_tool:
        raise RxloopError(f"a tool must not execute its own run, got {task_id}")
    while (cached := await wait_until_due(event_log, task_id, asks=asks, when_busy=when_busy)) is not None:
        run = make_attempt(definition, cached, options.get("on_input"), deps=deps)
        if on_run is not None:
            on_run(run)
        # Drop the snapshot to release its events during the attempt.
        record, cached = cached.record, None
        ended = await execute_attempt(task_id, run)
        if ended and (final := run.hold.end) is not None:
            return record.apply_end(final)
        asks = asks and not ended
    return await read_log(event_log.get_record, task_id)


def make_attempt(
    definition: AgentDefinition,
    cached: RunRecord | Snapshot,
    on_input: OnInput | None = None,
    *,
    deps: Any = None,
    make_deps: Callable[[], Coroutine[Any, Any, Any]] | None = None,
    when_busy: WhenBusy = "wait",
) -> Run[Any]:
    """Return the next attempt of a run, which only executes the run.

    Args:
        definition: Agent definition.
        cached: Recent log contents of the run, which is due.
        on_input: Function that answers questions.
        deps: Dependencies of the run.
        make_deps: Function that creates the dependencies once the start of the attempt is logged. If it fails, the run
            is released.
        when_busy: Policy if another process holds the lease of the conversation.
    """
    options: ResumeOptions = {"on_input": on_input, "when_busy": when_busy}
    record = cached.record if isinstance(cached, Snapshot) else cached
    spec = make_resume_spec(
        definition, _EXECUTE, record.task_id, deps, options, only_executes=True, cached=cached, make_deps=make_deps
    )
    return definition.make_run(spec)


async def wait_until_due(
    event_log: EventLog, task_id: str, *, asks: bool = False, when_busy: WhenBusy = "wait"
) -> Snapshot | None:
    """Wait until a run can be executed, after all earlier runs in its conversation.

    Args:
        event_log: Event log.
        task_id: Run ID.
        asks: True if the executing process can answer questions.
        when_busy: Policy for unfinished earlier runs.

    Returns:
        Snapshot of the run, or None if it is idle.

    Raises:
        ContextBusy: If an earlier run is unfinished and `when_busy` is `refuse`.
    """
    while True:
        snapshot = await read_snapshot(event_log, task_id)
        if is_idle(snapshot, asks=asks):
            return None
        record = snapshot.record
        earlier = await find_blocking(event_log, record.conversation, task_id)
        if earlier is None:
            return snapshot
        if when_busy == "refuse":
            raise ContextBusy(
                f"run {task_id} cannot continue, because the earlier run {earlier.task_id} of conversation "
                f"{record.context_id} is {earlier.state}; execute that run first, or wait for it"
            )
        await wait_for_order(event_log, record.conversation, task_id, snapshot.state.seq)


async def execute_attempt(task_id: str, run: Run[Any]) -> bool:
    """Execute another attempt, and return True if it ended in this process.

    Raises:
        LogUnreachable: If the log is unavailable, so the stored state is unknown.
        RxloopError: If the run failed to start for a reason other than concurrent execution.
    """
    try:
        await asyncio.wait([run.hold.start()])
    except asyncio.CancelledError:
        # Only the execution is cancelled. The released run can be continued by another process.
        await run.release()
        raise
    try:
        final = await run.hold.wait()
    except (ConflictError, ContextBusy, InvalidInput) as error:
        log.debug("Run %s or its conversation was continued by another process: %s", task_id, error)
        await asyncio.sleep(RETRY)
        return False
    return _is_logged(final)


async def has_ended(run: Run[Any]) -> bool:
    """Await an attempt that only writes the final event. Return False if another process owns the run.

    Raises:
        LogUnreachable: As for `execute_attempt`.
    """
    try:
        final = await run.hold.wait()
    except ConflictError:
        return False
    return _is_logged(final)


def _is_logged(final: StatusUpdateEvent) -> bool:
    """Return True if the end of an attempt is in the log, or False if another process can continue the run."""
    if final.state == "working" and final.error is not None and final.error.code == "log":
        raise LogUnreachable(final.error.message)
    return final.state != "working"


async def run_once(start: Callable[[], Awaitable[Result[O]]], resume: Callable[[], Awaitable[Result[O]]]) -> Result[O]:
    """Start a run with a chosen id. If it already exists, resume it or wait for its end.

    Args:
        start: Function that starts the run.
        resume: Function that resumes the run or returns its result, waiting while another process executes it.
    """
    while True:
        try:
            return await start()
        except RunExists:
            try:
                return await resume()
            except UnknownRun:
                # This process has just started the run, but its first events are not stored yet.
                await asyncio.sleep(_RETRY_INTERVAL)
