"""A run at the terminal: shown as it goes on, cancelled by Ctrl-C, its questions answered."""

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
    """Ask the person at the terminal; None if nobody wants to answer."""
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
    """Read what a person typed, as the kind of value that was asked for.

    Raises:
        ConfigurationError: It cannot be read as that.
    """
    if pending.secret:
        # Word for word, be it digits alone.
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
    """JSON, or a text where one is wanted and the quotes were left out."""
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
    # A house number is digits, and a text all the same.
    if find_mismatch(given, schema) is None:
        return given
    raise ConfigurationError(f"{wrong}; {like}")


def example(pending: PendingInput) -> str:
    """Make up an answer of the right form, as JSON."""
    value = pending.options[0] if pending.options else _sample(pending.answer_schema, pending.answer_schema)
    return orjson.dumps(value, default=str).decode()


def _sample(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> Any:
    """Make up a value that fits a schema, as far as its types go."""
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
    # A model may hold itself.
    if depth < 4 and kind == "object":
        properties = schema.get("properties", {})
        return {name: _sample(properties.get(name, {}), root, depth + 1) for name in schema.get("required", ())}
    if depth < 4 and kind == "array" and schema.get("items"):
        return [_sample(schema["items"], root, depth + 1)]
    return max(_SAMPLES[kind], schema.get("minimum", 0)) if kind in ("integer", "number") else _SAMPLES.get(kind, "...")


CODES = {"completed": 0, "canceled": CANCELLED, "input-required": WAITS, "auth-required": WAITS}


@dataclass(frozen=True, slots=True)
class LiveRuns:
    """How runs are shown, and how a person goes on with one later."""

    display: RunDisplay
    log: EventLog | None
    """Where a later command finds the run; None if nothing is kept."""
    database: str | None = None
    flags: str = ""
    """The options that a later command needs to make the same agent."""
    chatting: bool = False
    """The next question comes at once: nothing is said of a run that went well."""

    async def carry_out(self, ready: Ready, run: Run[Any], strategy: str | None = None) -> Result[Any]:
        """Show a run to its end; the person at the terminal is asked what it asks, and it goes on as it began."""
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
            # The run ends with what shows it: when the reader of a pipe has left, the model is not asked any further.
            async with run:
                with self._status(run):
                    await show(run.events, self.display)
                try:
                    return await run
                except AttemptError as error:
                    return error.result

    @contextmanager
    def _status(self, run: Run[Any]) -> Generator[None]:
        """Show what the run is doing while it writes no text, if somebody sits at a terminal."""
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
        """Say how to find out what is in the way, where no connection came about."""
        if result.error is not None and result.error.code == "connection":
            model = display_url((ready.model or ready.agent.model).name)
            say(f"find out why: rxloop doctor --check-network {shlex.quote(model)}")

    def list_pending(self, name: str, pending: Sequence[PendingInput]) -> None:
        """Say which answers a run waits for, and how to give them."""
        say(f"the run {name} waits for {'an answer' if len(pending) == 1 else f'{len(pending)} answers'}:")
        for asked in pending:
            say(Text.assemble(f"  {asked.input_id}  ", question(asked)))
        # A credential is asked for: on the command line, the shell and the list of processes would have it.
        given = [f"{asked.input_id}={example(asked)}" for asked in pending if not asked.secret]
        inputs = "".join(f" --input {shlex.quote(each)}" for each in given)
        say(f"go on with: rxloop resume {name}{self.place}{self.flags}{inputs}")

    @property
    def place(self) -> str:
        """The option that names the database to a later command."""
        if self.database is None or self.database == os.environ.get("RXLOOP_DB"):
            return ""
        shown = display_url(self.database) if is_postgres(self.database) else self.database
        return f" --db {shlex.quote(shown)}"


async def show(events: Stream[Event], display: RunDisplay) -> None:
    """Write a stream of events as it comes: text on stdout, everything else beside it; or as JSON."""
    if display.json:
        async for event in events:
            write_json(event, full=True)
    else:
        async for text, answer in events.pipe(live(display.thoughts)):
            write(text, beside=not answer)


@contextmanager
def interrupts(cancel: Callable[[str], None], doing: str) -> Generator[None]:
    """Ctrl-C cancels, once, and says what is being done about it; the second one leaves at once."""
    loop = asyncio.get_running_loop()
    pressed = False

    def begin() -> None:
        say(f"\n{doing}; Ctrl-C once more leaves at once")
        cancel("interrupted at the terminal")

    def on_signal(*_: Any) -> None:
        nonlocal pressed
        if pressed:
            # Nothing is waited for, which is safe: what the log acknowledged is in it.
            os.write(2, erasure() + b"left without waiting\n")
            os._exit(CANCELLED)
        pressed = True
        # Not here: the signal may have come in the middle of a write to the same stream.
        loop.call_soon_threadsafe(begin)

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def exit_code(result: Result[Any]) -> int:
    """Return the exit code that tells the shell how the run ended."""
    return CODES.get(result.state, FAILED)


@contextlib.asynccontextmanager
async def conversing(
    agent: AgentOptions, display: RunDisplay, selection: LogSelection, *, chatting: bool = False
) -> AsyncGenerator[tuple[Ready, LiveRuns, str]]:
    """Give an agent with its log, how its runs are shown, and the id of the conversation."""
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
            # The agent comes first: who has mistyped a model gets no empty database.
            made = agent.make()
            # A run that asks something goes on in a second attempt, which reads the first.
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
