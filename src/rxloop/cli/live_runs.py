"""A run at the terminal: shown as it goes on, cancelled by Ctrl-C, taken up again when its questions are answered."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from rxloop.cli.agent_options import Ready
from rxloop.cli.answers import ask, example
from rxloop.cli.options import ThoughtLevel
from rxloop.cli.render import question
from rxloop.cli.status import status
from rxloop.cli.store import short_id
from rxloop.cli.terminal import CANCELLED, FAILED, WAITS, asks, say, status_line, write, write_json
from rxloop.cli.views import live
from rxloop.errors import AttemptError
from rxloop.eventlog.opening import is_postgres
from rxloop.pipeline.logs import EventLog
from rxloop.protocol.events import Event, PendingInput
from rxloop.providers._secrets import shown_address
from rxloop.run.handle import Run
from rxloop.run.result import Result
from rxloop.stream.stream import Stream

_ERASED = b"\x1b[J\x1b[?25h"
"""What takes the status line away, and brings back the cursor that a progress bar has hidden."""
CODES = {"completed": 0, "canceled": CANCELLED, "input-required": WAITS, "auth-required": WAITS}


@dataclass(frozen=True, slots=True)
class LiveRuns:
    """How runs are shown, and how a person goes on with one later."""

    thoughts: ThoughtLevel
    json: bool
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
            if CODES.get(result.state) != WAITS or self.json or not asks():
                break
            inputs = ask(result.pending)
            if inputs is None:
                break
            run = ready.agent.resume(result.task_id, inputs=inputs, model=ready.model, strategy=strategy)
        await self._close(result)
        if not self.json:
            self._say_unreached(ready, result)
        return result

    async def _watch(self, run: Run[Any]) -> Result[Any]:
        with interrupts(run.cancel, "cancelling"):
            # The run ends with what shows it: when the reader of a pipe has left, the model is not asked any further.
            async with run:
                with self._status(run):
                    await show(run.events, self.thoughts, json=self.json)
                try:
                    return await run
                except AttemptError as error:
                    return error.result

    @contextmanager
    def _status(self, run: Run[Any]) -> Generator[None]:
        """Show what the run is doing below what it writes, where somebody sits at a terminal."""
        line = None if self.json else status_line()
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
        if not self.json and self.thoughts is not ThoughtLevel.none and len(result.thoughts):
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
            model = shown_address((ready.model or ready.agent.model).name)
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
        shown = shown_address(self.database) if is_postgres(self.database) else self.database
        return f" --db {shlex.quote(shown)}"


async def show(events: Stream[Event], thoughts: ThoughtLevel, *, json: bool) -> None:
    """Write a stream of events as it comes: text on stdout, everything else beside it; or as JSON."""
    if json:
        async for event in events:
            write_json(event, full=True)
    else:
        async for text, answer in events.pipe(live(thoughts)):
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
            os.write(2, _ERASED * (status_line() is not None) + b"left without waiting\n")
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
