"""Interactive run execution with live output, cancellation and questions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

import orjson
import reactivex.operators as rx
from rich.text import Text

from rxloop.cli.agent_loader import AgentOptions, LoadedAgent
from rxloop.cli.cost_limit import CostLimit
from rxloop.cli.database import find_last_run, find_short_id, open_database, read_first_event
from rxloop.cli.live_view import render_live, render_status
from rxloop.cli.options import Approval, LogSelection, RunControl, RunDisplay, Strategy, ThoughtLevel
from rxloop.cli.questions import ask_user, make_example
from rxloop.cli.render import format_question
from rxloop.cli.terminal import (
    CANCELLED,
    FAILED,
    WAITS,
    can_ask,
    get_erase_sequence,
    get_status_line,
    notify,
    write,
    write_json,
    write_plain,
)
from rxloop.errors import AttemptError, ConfigurationError
from rxloop.pipeline.event_log import EventLog
from rxloop.protocol.events import Event, InputRequiredEvent, PendingInput
from rxloop.protocol.ids import make_id
from rxloop.run.handle import Run
from rxloop.run.result import Result
from rxloop.storage import MemoryEventLog
from rxloop.storage.log_urls import is_postgres
from rxloop.stream.stream import Stream
from rxloop.support.redaction import display_url
from rxloop.support.text import to_one_line

EXIT_CODES = {"completed": 0, "canceled": CANCELLED, "input-required": WAITS, "auth-required": WAITS}


@dataclass(frozen=True, slots=True)
class LiveRuns:
    """Terminal output for runs, including hints for follow-up commands."""

    display: RunDisplay
    log: EventLog | None
    """Event log for follow-up commands. None if runs are not stored."""
    database: str | None = None
    flags: str = ""
    """Agent options for follow-up commands."""
    chatting: bool = False
    """True in chat mode, which hides messages about successful runs."""
    control: RunControl = field(default_factory=RunControl)
    structured: bool = False
    """True if the answer is printed as JSON when it is complete."""
    limit: CostLimit = field(default_factory=CostLimit)

    def limit_cost(self, loaded: LoadedAgent) -> LoadedAgent:
        """Return an agent whose model checks the cost limit.

        Raises:
            ConfigurationError: The model has no known price.
        """
        model = loaded.model or loaded.agent.model
        limited = self.limit.wrap(model)
        return loaded if limited is model else replace(loaded, model=limited)

    async def execute(self, ready: LoadedAgent, run: Run[Any], strategy: Strategy = None) -> Result[Any]:
        """Display a run and return its result.

        On interactive terminals, ask the user for answers and resume the run.
        """
        while True:
            result = await self._watch(run)
            inputs = self.answer(result.pending) if EXIT_CODES.get(result.state) == WAITS else None
            if not inputs:
                break
            run = ready.agent.resume(result.task_id, inputs=inputs, model=ready.model, strategy=strategy)
        await self.finish(ready, result)
        return result

    async def finish(self, ready: LoadedAgent, result: Result[Any]) -> None:
        """Print structured answers, thoughts, and commands for continuing or diagnosing the run."""
        if self.structured and result.state == "completed" and not self.display.json:
            write_plain(orjson.dumps(result.output).decode() + "\n")
        if self.display.quiet and EXIT_CODES.get(result.state) is None and result.error is not None:
            notify(f"rxloop: the run failed ({result.error.code}): {to_one_line(result.error.message, 2_000)}")
        await self._print_follow_up_command(result)
        if not self.display.json and not self.display.quiet:
            self._suggest_diagnosis(ready, result)

    def approve(self, pending: Sequence[PendingInput]) -> dict[str, Any]:
        """Return answers based on `--approve`."""
        approved = self.control.approve is Approval.always
        return {question.input_id: approved for question in pending if self._is_decided(question)}

    def _is_decided(self, question: PendingInput) -> bool:
        """Return True if `--approve` answers a question."""
        return self.control.approve is not Approval.ask and _is_approval(question)

    def shows(self, event: Event) -> bool:
        """Return False for questions printed later by the prompt."""
        return not isinstance(event, InputRequiredEvent) or self._is_decided(event.input)

    def answer(self, pending: Sequence[PendingInput]) -> dict[str, Any] | None:
        """Return answers of `--approve` and the user. Returns None if the user cancels."""
        answers = self.approve(pending)
        others = [question for question in pending if question.input_id not in answers]
        if others and can_ask() and not self.display.json:
            typed = ask_user(others)
            if typed is None:
                return None
            answers |= typed
        return answers

    async def _watch(self, run: Run[Any]) -> Result[Any]:
        with handle_interrupts(run.cancel, "cancelling"):
            # Stop the run when output fails, because further model calls are useless after the reader exits.
            async with run:
                with self._show_status(run), self.limit.watch(run):
                    asks = can_ask() and not self.display.json
                    events = run.events.pipe(rx.filter(self.shows)) if asks else run.events
                    await show_events(events, self.display, structured=self.structured)
                try:
                    return await run
                except AttemptError as error:
                    return error.result

    @contextmanager
    def _show_status(self, run: Run[Any]) -> Generator[None]:
        """Show a status line between text output if a terminal is available."""
        line = None if self.display.json or self.display.quiet else get_status_line()
        if line is None:
            yield
            return
        line.begin()
        subscription = run.pipe(render_status()).subscribe(line.show)
        try:
            yield
        finally:
            subscription.dispose()
            line.hide()

    async def _print_follow_up_command(self, result: Result[Any]) -> None:
        display = self.display
        if display.quiet and not result.pending:
            return
        # Chats already print thoughts individually.
        hides_thoughts = display.json or display.quiet or display.thoughts is ThoughtLevel.none or self.chatting
        if not hides_thoughts and len(result.thoughts):
            notify(Text(f"\n{result.thoughts.tree()}", "magenta"))
        if self.log is None:
            return
        name = await find_short_id(self.log, result.task_id)
        if name is None or (result.state == "completed" and self.chatting):
            return
        if result.state == "completed":
            notify(f"rxloop show {name}{self.database_option}")
        elif result.pending:
            self.list_pending(name, result.pending)
        elif result.state == "canceled":
            notify(f"continue with: rxloop resume {name}{self.database_option}{self.flags}")
        else:
            notify(f"inspect with: rxloop show {name}{self.database_option}")

    @staticmethod
    def _suggest_diagnosis(ready: LoadedAgent, result: Result[Any]) -> None:
        """Suggest a diagnostic command after connection errors."""
        if result.error is not None and result.error.code == "connection":
            model = display_url((ready.model or ready.agent.model).name)
            notify(f"diagnose with: rxloop doctor --check-network {shlex.quote(model)}")

    def list_pending(self, name: str, pending: Sequence[PendingInput]) -> None:
        """Print pending questions and the command to answer them."""
        notify(f"run {name} is waiting for {'an answer' if len(pending) == 1 else f'{len(pending)} answers'}:")
        for question in pending:
            notify(Text.assemble(f"  {question.input_id}  ", format_question(question)))
        # Don't suggest `--input` for secrets, which would be visible in the shell history and process list.
        examples = [f"{question.input_id}={make_example(question)}" for question in pending if not question.secret]
        inputs = "".join(f" --input {shlex.quote(each)}" for each in examples)
        notify(f"continue with: rxloop resume {name}{self.database_option}{self.flags}{inputs}")

    @property
    def database_option(self) -> str:
        """Database option for follow-up commands, or an empty string if it is not needed."""
        if self.database is None or self.database == os.environ.get("RXLOOP_DB"):
            return ""
        database = display_url(self.database) if is_postgres(self.database) else self.database
        return f" --db {shlex.quote(database)}"


async def show_events(events: Stream[Event], display: RunDisplay, *, structured: bool = False) -> None:
    """Print events as they arrive, with answers on stdout and everything else on stderr. Alternatively, print JSON.

    Args:
        events: Events of the run.
        display: Display options.
        structured: Omit the answer, which the caller prints when it is complete and valid.
    """
    if display.json:
        async for event in events:
            write_json(event, full=True)
    else:
        async for text, answer in events.pipe(render_live(display.thoughts)):
            if not (structured if answer else display.quiet):
                write(text, to_stderr=not answer)


@contextmanager
def handle_interrupts(cancel: Callable[[str], None], action: str) -> Generator[None]:
    """Call `cancel` on the first Ctrl-C, and exit immediately on the second."""
    loop = asyncio.get_running_loop()
    was_pressed = False

    def report_and_cancel() -> None:
        notify(f"\n{action}; press Ctrl-C again to exit immediately")
        cancel("interrupted at the terminal")

    def on_signal(*_: Any) -> None:
        nonlocal was_pressed
        if was_pressed:
            # Exiting immediately is safe, because acknowledged events are already in the log.
            os.write(2, get_erase_sequence() + b"exited without waiting\n")
            os._exit(CANCELLED)
        was_pressed = True
        # The signal may have interrupted a write to the same stream, so defer the output.
        loop.call_soon_threadsafe(report_and_cancel)

    previous_handler = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)


def get_exit_code(result: Result[Any]) -> int:
    """Return the process exit code for a run."""
    return EXIT_CODES.get(result.state, FAILED)


def make_live_runs(
    agent: AgentOptions,
    display: RunDisplay,
    log: EventLog | None,
    database: str | None,
    control: RunControl,
    *,
    chatting: bool = False,
) -> LiveRuns:
    """Create terminal output using command line options.

    Raises:
        ConfigurationError: The cost limit is not a positive number.
    """
    return LiveRuns(
        display,
        log,
        database,
        agent.to_flags(),
        chatting=chatting,
        control=control,
        structured=agent.schema is not None,
        limit=CostLimit(control.max_cost),
    )


class ConversationOptions(TypedDict):
    """Conversation of a new run."""

    context_id: str
    owner: str | None


@contextlib.asynccontextmanager
async def open_session(
    agent: AgentOptions,
    display: RunDisplay,
    selection: LogSelection,
    control: RunControl,
    *,
    chatting: bool = False,
) -> AsyncGenerator[tuple[LoadedAgent, LiveRuns, ConversationOptions]]:
    """Yield an agent, its terminal output and the ID and owner of a conversation."""
    if selection.context is not None and selection.continue_last:
        raise ConfigurationError("--continue cannot be combined with --context; omit one of them")
    # The level can be changed during a chat.
    thinks_aloud = chatting or display.thoughts is not ThoughtLevel.none
    earlier = "last" if selection.continue_last else selection.context
    if selection.no_log and earlier is not None:
        option = "--continue" if selection.continue_last else "--context"
        raise ConfigurationError(f"{option} requires the database and cannot be combined with --no-log")
    async with contextlib.AsyncExitStack() as stack:
        log: EventLog
        conversation: ConversationOptions = {"context_id": make_id(), "owner": None}
        if earlier is not None:
            log = await stack.enter_async_context(open_database(selection.db))
            last = await find_last_run(log, earlier)
            # A run without the owner would start another conversation.
            conversation = {"context_id": last.context_id, "owner": last.owner}
            loaded = agent.make(recorded=await _find_model(log, last.task_id), thinks_aloud=thinks_aloud)
        else:
            # Create the agent first, so that invalid options do not create an empty database.
            loaded = agent.make(thinks_aloud=thinks_aloud)
            # Answering a question requires a second attempt, which reads the first one from the log.
            log_context = nullcontext(MemoryEventLog()) if selection.no_log else open_database(selection.db, write=True)
            log = await stack.enter_async_context(log_context)
        ready = await stack.enter_async_context(loaded.with_log(log))
        stored = None if selection.no_log else log
        live = make_live_runs(agent, display, stored, selection.db, control, chatting=chatting)
        yield live.limit_cost(ready), live, conversation


def _is_approval(question: PendingInput) -> bool:
    """Return True for yes-or-no questions about a tool call."""
    return question.input_kind == "confirmation" and question.call is not None


async def _find_model(log: EventLog, task_id: str) -> str | None:
    event = await read_first_event(log, task_id)
    return event.model if event is not None else None
