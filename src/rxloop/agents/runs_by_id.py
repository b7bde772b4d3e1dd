"""Runs addressed by their ids."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, cast, overload

from typing_extensions import TypeVar, Unpack

from rxloop.agents.definition import Description
from rxloop.agents.options import Options, ResumeOptions, RunOptions, compare_model, resumed_with
from rxloop.agents.validation import check_deps, check_history, check_names, check_options
from rxloop.errors import ConfigurationError
from rxloop.pipeline.event_log import EventLog
from rxloop.pipeline.run_context import D
from rxloop.protocol.ids import make_id
from rxloop.protocol.messages import Prompt, as_messages
from rxloop.run.asking import OnInput
from rxloop.run.handle import Run
from rxloop.run.ownership import wait_stored
from rxloop.run.spec import RunSpec, WhenBusy
from rxloop.run.steering import as_said

if TYPE_CHECKING:
    from rxloop.agents.remote_run import Known
    from rxloop.pipeline.records import RunRecord

O = TypeVar("O", default=str)  # noqa: E741

# By context and not on the agent: an override in one task does not reach the others.
_Overrides = Mapping[Any, dict[str, Any]]

OVERRIDES: ContextVar[_Overrides] = ContextVar("rxloop_overrides", default=MappingProxyType({}))


class RunsById(Generic[D, O]):
    """How an agent makes its runs, and deals with those that it does not hold."""

    _made_of: Description

    @property
    def name(self) -> str:
        """What it is called on the stream."""
        return self._made_of.name

    @property
    def log(self) -> EventLog | None:
        """What keeps the events of its runs."""
        return self._made_of.log

    async def submit(self, prompt: Prompt, **options: Unpack[RunOptions]) -> RunRecord:
        """Write a run into the log and begin nothing; `execute` in any process, or `resume`, carries it out.

        Args:
            prompt: As for `run`.
            **options: As for `run`, but for `on_input`, `when_busy` and `steering`, which are for whoever carries it
                out.

        Returns:
            What the log has of it: it is durable.

        Raises:
            RunExists: The log has a run of this `task_id`.
            ConfigurationError: As for `run`, or the agent has no log.
            EventLogError: It could not be written.
        """
        event_log = self._log_to("submit a run")
        for name in ("on_input", "when_busy", "steering"):
            if options.get(name) is not None:
                other = "resume()" if name == "steering" else "execute() or resume()"
                raise ConfigurationError(f"submit(..., {name}=) begins nothing that could use it: give it to {other}")
        # Imported here: importing rxloop is quicker without.
        from rxloop.agents.remote_run import submit

        return await submit(event_log, self._new("submit", prompt, None, options))

    @overload
    async def execute(
        self: RunsById[None, O],
        task_id: str,
        *,
        deps: None = None,
        on_input: OnInput | None = None,
        on_run: Callable[[Run[O]], object] | None = None,
        when_busy: WhenBusy = "wait",
    ) -> RunRecord: ...
    @overload
    async def execute(
        self,
        task_id: str,
        *,
        deps: D,
        on_input: OnInput | None = None,
        on_run: Callable[[Run[O]], object] | None = None,
        when_busy: WhenBusy = "wait",
    ) -> RunRecord: ...
    async def execute(
        self,
        task_id: str,
        *,
        deps: Any = None,
        on_input: OnInput | None = None,
        on_run: Callable[[Run[O]], object] | None = None,
        when_busy: WhenBusy = "wait",
    ) -> RunRecord:
        """Bring a run to rest, whoever has done a part of it.

        It returns when the log says that the run is over, was cancelled, or waits for an answer that nobody has given;
        it waits while somebody else carries the run out, or an earlier run of its conversation, and goes on with it
        when nobody does any more. So it may be called any number of times, in any number of processes, for the same
        run, and is the job for a queue that delivers at least once. If the task that awaits it is cancelled, the run is
        released, not cancelled.

        Args:
            task_id: The run.
            deps: As for `run`.
            on_input: Answers the questions of the run while it goes on here.
            on_run: Gets each attempt that is made here, before it begins: to read it live.
            when_busy: What to do while an earlier run of the conversation comes first: `wait` for it, or `refuse`,
                so that a worker with little room can do something else meanwhile.

        Returns:
            What the log has of it then. A run that failed is no error here: see `record.state`.

        Raises:
            UnknownRun: The log does not have it.
            LogUnreachable: Nobody knows how far it came: settle it again.
            ContextBusy: An earlier run has to come first, and it is not to be waited for.
            ConfigurationError: The agent has no log, or `deps` are missing.
        """
        return await self._execute(task_id, None, deps=deps, on_input=on_input, on_run=on_run, when_busy=when_busy)

    async def _execute(
        self,
        task_id: str,
        known: Known | None,
        *,
        deps: Any,
        on_input: OnInput | None,
        on_run: Callable[[Run[O]], object] | None,
        when_busy: WhenBusy,
    ) -> RunRecord:
        event_log = self._log_to(f"execute {task_id}")
        # Imported here: importing rxloop is quicker without.
        from rxloop.agents.remote_run import settle

        def resume(known: Known) -> Run[O]:
            options: ResumeOptions = {"on_input": on_input, "when_busy": "wait"}
            run = self._start(self._next("execute", task_id, None, deps, options, settles=True, known=known))
            if on_run is not None:
                on_run(run)
            return run

        return await settle(event_log, task_id, resume, asks=on_input is not None, when_busy=when_busy, known=known)

    async def cancel(self, task_id: str, reason: str | None = None) -> None:
        """Cancel a run by its id, and wait until it has an end. A run that is over stays as it is.

        One that goes on in this process is cancelled there, whatever agent it was made by; one that goes on elsewhere
        gets to know by its mail. One that waits for an answer, or whose process is gone, gets an attempt that closes
        its open calls and writes its end: the model is not asked, and no tool is called.

        Args:
            task_id: The run.
            reason: What its final event says.

        Raises:
            ConfigurationError: It does not go on in this process, and the agent has no log.
            UnknownRun: The log does not have it.
            ConflictError: It goes on in another process, and had no end after 30 s; the cancel stays in its mail. With
                a log that has no mail, it has to be cancelled there.
        """
        hold = self._made_of.owned.find(task_id)
        if hold is not None:
            await hold.cancelled(reason or "cancelled")
            if self.log is None or not hold.paused:
                return
            # The attempt had come to its end already, and the run waits: its log has to say that it is cancelled.
        elif self.log is None:
            raise ConfigurationError(
                f"the run {task_id} does not go on in this process: to cancel it the agent needs the log that holds it"
            )
        # Imported here: importing rxloop is quicker without.
        from rxloop.agents.remote_run import has_ended
        from rxloop.coordination.sending import send_cancel

        async def close() -> bool:
            return await has_ended(
                self._start(self._spec(task_id, "", None, {}, resume=True, cancel=reason or "cancelled"))
            )

        await send_cancel(self.log, task_id, reason or "cancelled", close)

    async def answer(self, task_id: str, inputs: Mapping[str, Any]) -> None:
        """Answer questions of a run that this process does not hold; durable when it returns.

        Whoever settles or resumes the run next takes the answers. One that is there already, and is equal, is fine. A
        credential has to be encrypted, since a log keeps it: otherwise resume the run with it.

        Args:
            task_id: The run.
            inputs: The answers, by `input_id`.

        Raises:
            InvalidInput: The run does not wait for it, has another answer, or the answer does not fit the question.
            UnknownRun: The log does not have it.
            ConfigurationError: The agent has no log, or one without mail.
        """
        event_log = self._log_to(f"answer {task_id}")
        # Imported here: importing rxloop is quicker without.
        from rxloop.coordination.sending import send_answer

        await wait_stored(event_log, task_id)
        await send_answer(event_log, task_id, inputs)

    async def send(self, task_id: str, message: Prompt, *, interrupt: bool = False) -> None:
        """Say something to a run that this process does not hold; durable when it returns.

        The message enters the history of the run, after the tool calls that are open. One that goes on takes it at
        once, and any other with its next attempt.

        Args:
            task_id: The run.
            message: A text, a message, or several.
            interrupt: Cut off the answer that is being written.

        Raises:
            RunOver: The run is over, came to its end before it took the message, was cancelled, or waits for an answer
                that a later run has made void.
            UnknownRun: The log does not have it.
            ConfigurationError: The agent has no log, or one without mail, or there is nothing to say.
        """
        event_log = self._log_to(f"send a message to {task_id}")
        messages = as_said(message)
        if not messages or any(each.role not in ("user", "system") for each in messages):
            raise ConfigurationError("send() takes messages of the user or the system, such as a text")
        # Imported here: importing rxloop is quicker without.
        from rxloop.coordination.sending import send_message

        await send_message(event_log, task_id, messages, interrupt=interrupt)

    def _log_to(self, what: str) -> EventLog:
        if self.log is None:
            raise ConfigurationError(f"to {what} the agent needs a log that holds its runs: Agent(..., log=...)")
        return self.log

    def _start(self, spec: RunSpec) -> Run[O]:
        caller = sys._getframe(2)  # pyright: ignore[reportPrivateUsage] (who called `run`, `resume` or `fork`)
        return self._made_of.run(spec, (caller.f_code.co_filename, caller.f_lineno))

    def _new(self, method: str, prompt: Prompt, deps: Any, options: RunOptions) -> RunSpec:
        """What a new run is made of."""
        check_given(method, options, RunOptions)
        context_id = options.get("context_id")
        if context_id is not None and self.log is None:
            raise ConfigurationError(
                f"context_id={context_id!r} needs a log that keeps the conversation: Agent(..., log=MemoryEventLog())"
            )
        messages = as_messages(prompt)
        if not messages:
            raise ConfigurationError("the prompt is empty: give a text, a message, or a list of them")
        messages = check_history(messages)
        task_id = options.get("task_id")
        return self._spec(
            task_id if task_id is not None else make_id(),
            context_id if context_id is not None else make_id(),
            deps,
            options,
            messages=messages,
            keep_context=context_id is not None,
            chosen_id=task_id is not None,
            owner=options.get("owner"),
        )

    def _next(
        self,
        method: str,
        task_id: str,
        inputs: Mapping[str, Any] | None,
        deps: Any,
        options: ResumeOptions,
        *,
        settles: bool = False,
        known: Known | None = None,
    ) -> RunSpec:
        """What one more attempt of a run is made of."""
        given = cast("Options", options)
        check_given(method, given, ResumeOptions)
        self._log_to(f"{method} {task_id}")
        check_deps(method, self._made_of.deps_type, deps)
        overrides = OVERRIDES.get().get(self, {})

        def spec(options: Options) -> RunSpec:
            fields: dict[str, Any] = {"resume": True, "settles": settles, "inputs": inputs, "known": known}
            return self._spec(task_id, given.get("context_id") or "", deps, options, overrides, **fields)

        def as_begun(begun: Mapping[str, Any]) -> RunSpec:
            made = spec(resumed_with(given, begun))
            if "model" not in overrides:
                compare_model(task_id, given, begun, made.model)
            return made

        return spec(given)._replace(as_begun=as_begun)

    def _spec(
        self,
        task_id: str,
        context_id: str,
        deps: Any,
        options: Options,
        overrides: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> RunSpec:
        given = options.get("strategy")
        return self._made_of.spec(
            task_id,
            context_id,
            deps,
            options,
            strategy=self._made_of.strategies(given) if isinstance(given, str) else given,
            overrides=OVERRIDES.get().get(self, {}) if overrides is None else overrides,
            **fields,
        )


async def execute_run(
    agent: RunsById[Any, Any],
    task_id: str,
    *,
    deps: Any,
    on_input: OnInput | None,
    on_run: Callable[[Run[Any]], object] | None,
    when_busy: WhenBusy,
    known: Known,
) -> RunRecord:
    """Execute a run that the caller has found due a moment ago, so that the log is not asked again.

    Args:
        agent: The agent that executes it.
        task_id: The run.
        deps: As for `Agent.run`.
        on_input: Answers the questions of the run while it goes on here.
        on_run: Gets each attempt that is made here.
        when_busy: What to do while an earlier run of the conversation comes first.
        known: What the log had of the run.
    """
    execute = agent._execute  # pyright: ignore[reportPrivateUsage] (of the same module; users have no use for `known`)
    return await execute(task_id, known, deps=deps, on_input=on_input, on_run=on_run, when_busy=when_busy)


def check_given(method: str, options: Options, known: type[Options]) -> None:
    """Refuse an option that the method does not know, or that is of a wrong kind."""
    check_names(method, options, known.__annotations__)
    check_options(**options)
