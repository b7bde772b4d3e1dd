"""Interactive run execution with live output, cancellation and questions."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import orjson
from rich.text import Text

from rxloop.cli.agent_loader import AgentOptions, Ready
from rxloop.cli.database import find_context, first_event, opened, short_id
from rxloop.cli.live_view import live, status
from rxloop.cli.options import LogSelection, RunDisplay, ThoughtLevel
from rxloop.cli.render import question
from rxloop.cli.terminal import (
    CANCELLED,
    FAILED,
    WAITS,
    asks,
    erasure,
    read_line,
    read_secret,
    say,
    status_line,
    write,
    write_json,
)
from rxloop.errors import AttemptError, ConfigurationError
from rxloop.pipeline.event_log import EventLog
from rxloop.protocol.events import Event, PendingInput
from rxloop.run.handle import Run
from rxloop.run.result import Result
from rxloop.storage import MemoryEventLog
from rxloop.storage.opening import is_postgres
from rxloop.stream.stream import Stream
from rxloop.support.json_schema import find_mismatch
from rxloop.support.redaction import display_url

_YES_OR_NO = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
_SAMPLES: Mapping[str, Any] = {
    "boolean": True,
    "integer": 1,
    "number": 1.5,
    "array": [],
    "object": {},
    "string": "...",
    "null": None,
}


def ask(pending: Sequence[PendingInput]) -> dict[str, Any] | None:
    """Ask the user to answer pending questions. Returns None if the user cancels."""
    answers: dict[str, Any] = {}
    for asked in pending:
        say(question(asked))
        while True:
            try:
                given = _read(asked)
            except (EOFError, KeyboardInterrupt):
                say("")
                return None
            try:
                answers[asked.input_id] = read_answer(given, asked)
                break
            except ConfigurationError as error:
                say(str(error))
    return answers


def _read(asked: PendingInput) -> str:
    if asked.secret:
        return read_secret("(it is not shown; nothing declines) > ")
    write("> ", beside=True)
    return read_line()


def read_answer(given: str, pending: PendingInput) -> Any:
    """Parse an answer based on the question's type.

    Raises:
        ConfigurationError: The answer is invalid.
    """
    if pending.secret:
        # Secrets are used verbatim, even if they look like numbers.
        return given or None
    if pending.options is not None:
        for option in pending.options:
            if given in (str(option), orjson.dumps(option, default=str).decode()):
                return option
        if given.isdecimal() and 1 <= int(given) <= len(pending.options):
            return pending.options[int(given) - 1]
        raise ConfigurationError(f"{given!r} is not one of them: type one, or its number, from 1")
    if pending.input_kind == "confirmation":
        if given.lower() not in _YES_OR_NO:
            raise ConfigurationError("please answer yes or no")
        return _YES_OR_NO[given.lower()]
    if pending.input_kind == "text":
        return given
    return _read_data(given, pending)


def _read_data(given: str, pending: PendingInput) -> Any:
    """Parse JSON data, or accept an unquoted string if the schema allows it."""
    schema = pending.answer_schema
    like = f"type something like {example(pending)}"
    try:
        value = orjson.loads(given)
    except orjson.JSONDecodeError:
        if given and find_mismatch(given, schema) is None:
            return given
        raise ConfigurationError(f"{given!r} is not JSON; {like}" if given else like) from None
    wrong = find_mismatch(value, schema)
    if wrong is None:
        return value
    # Values such as house numbers look like numbers but may be strings.
    if find_mismatch(given, schema) is None:
        return given
    raise ConfigurationError(f"{wrong}; {like}")


def example(pending: PendingInput) -> str:
    """Return an example answer as JSON."""
    value = pending.options[0] if pending.options else _sample(pending.answer_schema, pending.answer_schema)
    return orjson.dumps(value, default=str).decode()


def _sample(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> Any:
    """Generate an example value for a JSON schema, based on its types."""
    reference = schema.get("$ref")
    if isinstance(reference, str):
        schema = root.get("$defs", {}).get(reference.rpartition("/")[2], {})
    for name in ("const", "default"):
        if name in schema:
            return schema[name]
    if schema.get("enum"):
        return schema["enum"][0]
    options = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return _sample(options[0], root, depth)
    kind = schema.get("type", "string")
    # Limit the depth for recursive models.
    if depth < 4 and kind == "object":
        properties = schema.get("properties", {})
        return {name: _sample(properties.get(name, {}), root, depth + 1) for name in schema.get("required", ())}
    if depth < 4 and kind == "array" and schema.get("items"):
        return [_sample(schema["items"], root, depth + 1)]
    return max(_SAMPLES[kind], schema.get("minimum", 0)) if kind in ("integer", "number") else _SAMPLES.get(kind, "...")


CODES = {"completed": 0, "canceled": CANCELLED, "input-required": WAITS, "auth-required": WAITS}


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

    async def carry_out(self, ready: Ready, run: Run[Any], strategy: str | None = None) -> Result[Any]:
        """Show a run and return its result.

        On interactive terminals, the user is asked for answers and the run is resumed.
        """
        while True:
            result = await self._watch(run)
            if CODES.get(result.state) != WAITS or self.display.json or not asks():
                break
            inputs = ask(result.pending)
            if inputs is None:
                break
            run = ready.agent.resume(result.task_id, inputs=inputs, model=ready.model, strategy=strategy)
        await self._close(result)
        if not self.display.json:
            self._say_unreached(ready, result)
        return result

    async def _watch(self, run: Run[Any]) -> Result[Any]:
        with interrupts(run.cancel, "cancelling"):
            # Stop the run when its output fails. No further model calls are needed if the reader of a pipe has exited.
            async with run:
                with self._status(run):
                    await show(run.events, self.display)
                try:
                    return await run
                except AttemptError as error:
                    return error.result

    @contextmanager
    def _status(self, run: Run[Any]) -> Generator[None]:
        """Show a status line between text output if a terminal is available."""
        line = None if self.display.json else status_line()
        if line is None:
            yield
            return
        line.begin()
        subscription = run.pipe(status()).subscribe(line.show)
        try:
            yield
        finally:
            subscription.dispose()
            line.hide()

    async def _close(self, result: Result[Any]) -> None:
        if not self.display.json and self.display.thoughts is not ThoughtLevel.none and len(result.thoughts):
            say(Text(f"\n{result.thoughts.tree()}", "magenta"))
        if self.log is None:
            return
        name = await short_id(self.log, result.task_id)
        if name is None or (result.state == "completed" and self.chatting):
            return
        if result.state == "completed":
            say(f"rxloop show {name}{self.place}")
        elif result.pending:
            self.list_pending(name, result.pending)
        elif result.state == "canceled":
            say(f"go on with: rxloop resume {name}{self.place}{self.flags}")
        else:
            say(f"look at it with: rxloop show {name}{self.place}")

    @staticmethod
    def _say_unreached(ready: Ready, result: Result[Any]) -> None:
        """Suggest a diagnostic command after connection errors."""
        if result.error is not None and result.error.code == "connection":
            model = display_url((ready.model or ready.agent.model).name)
            say(f"find out why: rxloop doctor --check-network {shlex.quote(model)}")

    def list_pending(self, name: str, pending: Sequence[PendingInput]) -> None:
        """Print pending questions and the command to answer them."""
        say(f"the run {name} waits for {'an answer' if len(pending) == 1 else f'{len(pending)} answers'}:")
        for asked in pending:
            say(Text.assemble(f"  {asked.input_id}  ", question(asked)))
        # Don't suggest `--input` for secrets, which would be visible in the shell history and process list.
        given = [f"{asked.input_id}={example(asked)}" for asked in pending if not asked.secret]
        inputs = "".join(f" --input {shlex.quote(each)}" for each in given)
        say(f"go on with: rxloop resume {name}{self.place}{self.flags}{inputs}")

    @property
    def place(self) -> str:
        """Database option for follow-up commands, or an empty string if it is not needed."""
        if self.database is None or self.database == os.environ.get("RXLOOP_DB"):
            return ""
        shown = display_url(self.database) if is_postgres(self.database) else self.database
        return f" --db {shlex.quote(shown)}"


async def show(events: Stream[Event], display: RunDisplay) -> None:
    """Print events as they arrive, with answers on stdout and everything else on stderr. Alternatively, print JSON."""
    if display.json:
        async for event in events:
            write_json(event, full=True)
    else:
        async for text, answer in events.pipe(live(display.thoughts)):
            write(text, beside=not answer)


@contextmanager
def interrupts(cancel: Callable[[str], None], doing: str) -> Generator[None]:
    """Call `cancel` on the first Ctrl-C, and exit immediately on the second."""
    loop = asyncio.get_running_loop()
    pressed = False

    def begin() -> None:
        say(f"\n{doing}; Ctrl-C once more leaves at once")
        cancel("interrupted at the terminal")

    def on_signal(*_: Any) -> None:
        nonlocal pressed
        if pressed:
            # Exiting immediately is safe, because acknowledged events are already in the log.
            os.write(2, erasure() + b"left without waiting\n")
            os._exit(CANCELLED)
        pressed = True
        # The signal may have interrupted a write to the same stream, so defer the output.
        loop.call_soon_threadsafe(begin)

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def exit_code(result: Result[Any]) -> int:
    """Return the process exit code for a run."""
    return CODES.get(result.state, FAILED)


@contextlib.asynccontextmanager
async def conversing(
    agent: AgentOptions, display: RunDisplay, selection: LogSelection, *, chatting: bool = False
) -> AsyncGenerator[tuple[Ready, LiveRuns, str]]:
    """Yield an agent, the output of its runs and a conversation id."""
    if selection.no_log and selection.context is not None:
        raise ConfigurationError("--context needs the database, and --no-log leaves it out")
    async with contextlib.AsyncExitStack() as stack:
        log: EventLog
        context_id: str | None = None
        if selection.context is not None:
            log = await stack.enter_async_context(opened(selection.db))
            context_id = await find_context(log, selection.context)
            made = agent.make(recorded=await _last_model(log, context_id))
        else:
            # Create the agent first, so that invalid options do not create an empty database.
            made = agent.make()
            # Answering a question requires a second attempt, which reads the first one from the log.
            kept = nullcontext(MemoryEventLog()) if selection.no_log else opened(selection.db, write=True)
            log = await stack.enter_async_context(kept)
        ready = await stack.enter_async_context(made.logging_to(log))
        live = LiveRuns(display, None if selection.no_log else log, selection.db, agent.flags(), chatting=chatting)
        yield ready, live, context_id or _new_context()


async def _last_model(log: EventLog, context_id: str) -> str | None:
    records = await log.list_runs(context_id=context_id)
    event = await first_event(log, records[-1].task_id)
    return event.model if event is not None else None


def _new_context() -> str:
    import uuid6

    return str(uuid6.uuid7())
