"""Run addressed by its id, and executed in any process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, overload

from typing_extensions import TypeVar, Unpack

from rxloop.agents.definition import AgentDefinition
from rxloop.agents.options import ExecuteOptions, ResumeOptions, RunOptions
from rxloop.agents.specs import make_resume_spec, make_run_spec, make_spec
from rxloop.agents.validation import check_options
from rxloop.coordination.commands import send_answer, send_cancel, send_message
from rxloop.coordination.order import RETRY, find_blocking, is_idle, wait_for_order
from rxloop.errors import (
    AttemptError,
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
from rxloop.protocol.messages import Prompt
from rxloop.run.attempt import Attempt
from rxloop.run.final_events import make_exists_error
from rxloop.run.handle import Run
from rxloop.run.log_writer import LogWriter
from rxloop.run.ownership import find_owned, wait_stored
from rxloop.run.result import Result
from rxloop.run.spec import WhenBusy
from rxloop.run.startup import make_task_event
from rxloop.run.steering import to_sent_messages

log = logging.getLogger("rxloop")

O = TypeVar("O", default=str)  # noqa: E741

_EXECUTE = "Agent.get_run(...).execute"

_MOMENT = 0.01
"""Seconds until a run that was started in this process is looked up in the log again."""


class RemoteRun(Generic[D, O]):
    """Run addressed by its id, in whatever process it is executed; made by `agent.get_run`."""

    def __init__(self, definition: AgentDefinition, task_id: str) -> None:
        """Address a run.

        Args:
            definition: The agent.
            task_id: The run.
        """
        self.task_id = task_id
        self._definition = definition

    def __repr__(self) -> str:
        return f"<RemoteRun {self.task_id} of {self._definition.name!r}>"

    @overload
    async def execute(
        self: RemoteRun[None, O], *, deps: None = None, **options: Unpack[ExecuteOptions[O]]
    ) -> RunRecord: ...
    @overload
    async def execute(self, *, deps: D, **options: Unpack[ExecuteOptions[O]]) -> RunRecord: ...
    async def execute(self, *, deps: Any = None, **options: Unpack[ExecuteOptions[O]]) -> RunRecord:
        """Execute the run until it is idle: finished, cancelled, or waiting for an answer that has not arrived.

        This waits while another process executes the run, and while an earlier run of the conversation has to finish
        first, and continues the run if it is orphaned. So any number of processes may call it any number of times for
        one run: it is the job for a queue with at-least-once delivery. If the awaiting task is cancelled, the run is
        released, not cancelled.

        Args:
            deps: Dependencies of the run, as for `Agent.run`.
            **options: See `ExecuteOptions`.

        Returns:
            The record of the log. A failed run does not raise: see `record.state`.

        Raises:
            UnknownRun: The log does not have the run.
            LogUnreachable: The log could not be reached, so the progress of the run is unknown. Execute it again.
            ContextBusy: An earlier run has to finish first, and `when_busy` is `refuse`.
            ConfigurationError: The agent has no log, or `deps` are missing.
            TypeError: An option is unknown.
        """
        return await execute_run(self._definition, self.task_id, deps, options)

    async def cancel(self, reason: str | None = None) -> None:
        """Cancel the run, and wait until it has ended. A finished run does not change.

        A run that this process executes is cancelled here, even if another agent has made it. If another process
        executes the run, it receives a command. If the run waits for an answer or is orphaned, a new attempt closes its
        open calls and writes its end, without calling the model or tools.

        Args:
            reason: Text in the final event of the run.

        Raises:
            ConfigurationError: This process does not execute the run, and the agent has no log.
            UnknownRun: The log does not have the run.
            ConflictError: Another process executes the run and has not ended it after 30 s. The command stays in its
                inbox. With a log that has no inbox, cancel the run in that process.
        """
        definition, task_id, reason = self._definition, self.task_id, reason or "cancelled"
        hold = definition.owned.find(task_id)
        if hold is not None:
            await hold.cancelled(reason)
            if definition.log is None or not hold.paused:
                return
            # The attempt has ended already and the run waits, so the log has to record the cancel.
        elif definition.log is None:
            raise ConfigurationError(
                f"the run {task_id} does not go on in this process: to cancel it the agent needs the log that holds it"
            )

        async def close() -> bool:
            spec = make_spec(definition, task_id, "", None, {}, resume=True, cancel=reason)
            return await has_ended(definition.make_run(spec))

        await send_cancel(definition.log, task_id, reason, close)

    async def answer(self, inputs: Mapping[str, Any]) -> None:
        """Answer questions of the run. The answers are durable when this returns.

        The next attempt of the run takes the answers. An equal answer may be sent again. Credentials must be encrypted,
        because the log stores them; otherwise pass them to `Agent.resume`.

        Args:
            inputs: Answers by `input_id`.

        Raises:
            InvalidInput: The run does not wait for an answer, has another answer, or the answer does not fit.
            UnknownRun: The log does not have the run.
            ConfigurationError: The agent has no log, or a log without an inbox.
        """
        event_log = self._definition.get_log(f"answer {self.task_id}")
        await wait_stored(event_log, self.task_id)
        await send_answer(event_log, self.task_id, inputs)

    async def send(self, message: Prompt, *, interrupt: bool = False) -> None:
        """Send a message to the run. The message is durable when this returns.

        The message is added to the history after the open tool calls. A run that is executed takes it at once, other
        runs take it with their next attempt.

        Args:
            message: A text, a message, or several.
            interrupt: Interrupt the answer that the model is writing.

        Raises:
            RunOver: The run is finished, finished before it took the message, or waits for an answer that a later run
                has superseded.
            UnknownRun: The log does not have the run.
            ConfigurationError: The agent has no log, or one without an inbox, or the message is empty.
        """
        event_log = self._definition.get_log(f"send a message to {self.task_id}")
        messages = to_sent_messages(message)
        if not messages or any(each.role not in ("user", "system") for each in messages):
            raise ConfigurationError("send() takes messages of the user or the system, such as a text")
        await send_message(event_log, self.task_id, messages, interrupt=interrupt)


async def submit_run(definition: AgentDefinition, prompt: Prompt, options: RunOptions) -> RunRecord:
    """Write the first event of a run into the log, and start nothing; see `Agent.submit`."""
    event_log = definition.get_log("submit a run")
    for name in ("on_input", "when_busy", "steering"):
        if options.get(name) is not None:
            other = "resume()" if name == "steering" else "execute() or resume()"
            raise ConfigurationError(f"submit() does not accept {name}=; pass it to {other}")
    spec = make_run_spec(definition, "Agent.submit", prompt, None, options)
    attempt = Attempt(spec)
    writer = LogWriter(event_log, spec.task_id, 0, lambda error: None)
    attempt.recorder.writer = writer
    task = attempt.recorder.record(make_task_event(attempt))
    try:
        await writer.flush()
    except ConflictError as error:
        raise make_exists_error(spec.task_id, "is in the log") from error
    finally:
        await writer.close()
    return RunRecord.from_events(spec.task_id, [task])


async def execute_run(
    definition: AgentDefinition,
    task_id: str,
    deps: Any,
    options: ExecuteOptions[Any],
    known: RunRecord | Snapshot | None = None,
) -> RunRecord:
    """Execute a run until it is idle; see `RemoteRun.execute`.

    Args:
        definition: The agent.
        task_id: The run.
        deps: Dependencies of the run.
        options: Options of the execution.
        known: Contents of the log for this run, if the caller has found it due a moment ago.
    """
    check_options(_EXECUTE, options, ExecuteOptions)
    event_log = definition.get_log(f"execute {task_id}")
    on_input, on_run = options.get("on_input"), options.get("on_run")
    asks, when_busy = on_input is not None, options.get("when_busy", "wait")
    attempt_options: ResumeOptions = {"on_input": on_input, "when_busy": "wait"}
    hold = find_owned(event_log, task_id)
    if hold is not None and hold.is_called_from_tool:
        raise RxloopError(f"a tool of the run {task_id} settles the run itself: neither could ever end")
    while (known := known or await until_due(event_log, task_id, asks=asks, when_busy=when_busy)) is not None:
        spec = make_resume_spec(definition, _EXECUTE, task_id, deps, attempt_options, only_executes=True, known=known)
        run = definition.make_run(spec)
        if on_run is not None:
            on_run(run)
        # The events are not kept for as long as the attempt lasts.
        record, known = known.record if isinstance(known, Snapshot) else known, None
        ended = await carry_out(task_id, run)
        if ended and (final := run.hold.end) is not None:
            return record.ended_by(final)
        asks = asks and not ended
    return await read_log(event_log.get_record, task_id)


async def until_due(
    event_log: EventLog, task_id: str, *, asks: bool = False, when_busy: WhenBusy = "wait"
) -> Snapshot | None:
    """Wait until no earlier run of the conversation has to come to rest before a run can go on.

    Args:
        event_log: Holds it.
        task_id: The run.
        asks: Whether its questions are answered where it goes on.
        when_busy: Whether to wait, or to raise.

    Returns:
        The run; None if it is at rest itself.

    Raises:
        ContextBusy: There is such a run, and it is not to be waited for.
    """
    while True:
        snapshot = await read_log(event_log.snapshot, task_id)
        if is_idle(snapshot, asks=asks):
            return None
        context_id = snapshot.record.context_id
        earlier = await find_blocking(event_log, context_id, task_id)
        if earlier is None:
            return snapshot
        if when_busy == "refuse":
            raise ContextBusy(
                f"the run {task_id} cannot go on before the run {earlier.task_id}, which is earlier in the "
                f"conversation {context_id} and {earlier.state}: settle that one first, or wait for it"
            )
        await wait_for_order(event_log, context_id, task_id, snapshot.state.seq)


async def carry_out(task_id: str, run: Run[Any]) -> bool:
    """Carry out one more attempt; give whether it came to an end here, and not elsewhere.

    Raises:
        LogUnreachable: Nobody knows what the log has of it.
        RxloopError: It was refused for another reason than that somebody else goes on with the run.
    """
    try:
        await asyncio.wait([run.hold.start()])
    except asyncio.CancelledError:
        # Who settles gives up, and not the run: whoever settles it next goes on with it.
        await run.release()
        raise
    try:
        await run
    except (ConflictError, ContextBusy, InvalidInput) as error:
        log.debug("the run %s, or its conversation, has gone on elsewhere: %s", task_id, error)
        await asyncio.sleep(RETRY)
        return False
    except AttemptError as error:
        if error.result.state != "working":
            return True
        if error.code == "log":
            raise LogUnreachable(str(error)) from error
        return False
    return True


async def has_ended(run: Run[Any]) -> bool:
    """Await an attempt that only writes the end of a run; return False if another process owns the run."""
    try:
        await run
    except ConflictError:
        return False
    except AttemptError as error:
        if error.result.state != "working":
            return True
        if error.code in ("conflict", "fenced"):
            return False
        raise
    return True


async def run_once(begin: Callable[[], Awaitable[Result[O]]], resume: Callable[[], Awaitable[Result[O]]]) -> Result[O]:
    """Await the run of a chosen id. If another process has started it, await its end.

    Args:
        begin: Makes the run.
        resume: Continues the run, or returns its end. It waits while another process executes the run.
    """
    while True:
        try:
            return await begin()
        except RunExists:
            try:
                return await resume()
            except UnknownRun:
                # This process has just started the run, and its first events are not in the log yet.
                await asyncio.sleep(_MOMENT)
