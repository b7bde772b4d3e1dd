"""Terminal chat session, which accepts input during answers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from typing import Any

import reactivex.operators as rx
from rich.text import Text

from rxloop.cli.chat.commands import Invocation, execute, parse_line
from rxloop.cli.chat.conversation import Conversation
from rxloop.cli.chat.markdown import MarkdownRenderer, render_ansi
from rxloop.cli.chat.screen import Key, Screen
from rxloop.cli.live_run import EXIT_CODES
from rxloop.cli.live_view import render_live, render_status
from rxloop.cli.options import Approval
from rxloop.cli.questions import parse_answer
from rxloop.cli.render import format_question
from rxloop.cli.terminal import CANCELLED, WAITS, escape, notify, report
from rxloop.errors import AttemptError, ConfigurationError, RunOver, RxloopError
from rxloop.protocol.events import (
    WAITING,
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    InputReceivedEvent,
    MessageAddedEvent,
    PendingInput,
    StatusUpdateEvent,
)
from rxloop.run.handle import Run
from rxloop.run.result import Result
from rxloop.support.text import to_one_line, to_visible

_HINT = "a question, or /help"
_STEERING_HINT = "steer the answer; Ctrl-C stops it"
_QUIT_HINT = "press Ctrl-C again, or Ctrl-D, to end the chat"
_SECRET_PROMPT = "(hidden input; press Enter to decline) > "


class ChatSession:
    """Chat with a user at a terminal.

    Args:
        conversation: Conversation of the chat.
        screen: Open screen.
    """

    def __init__(self, conversation: Conversation, screen: Screen) -> None:
        self._conversation = conversation
        self._screen = screen
        self._turn: asyncio.Task[None] | None = None
        self._run: Run[Any] | None = None
        """Run that receives steering messages."""
        self._answer: asyncio.Future[str | None] | None = None
        """Pending answer to the current question."""
        self._sent: list[str] = []
        """Steering messages awaiting a `message-added` event."""
        self._received: list[str] = []
        """Received steering messages, displayed after the current answer."""
        self._is_writing = False
        """True while receiving a message from the model."""
        self._queued: list[str] = []
        """Messages for the following turns, because the run was already ending."""
        self._is_cancelling = False
        self._can_quit = False
        """True if pressing Ctrl-C again ends the chat."""

    async def run(self) -> None:
        """Process input until the chat ends."""
        self._screen.set_prompt(_HINT, is_busy=False)
        try:
            while True:
                typed = await self._screen.read()
                if not await (self._handle_key(typed) if isinstance(typed, Key) else self._handle_text(typed)):
                    return
        finally:
            await self._stop()

    async def _handle_key(self, key: Key) -> bool:
        """Handle Ctrl-C or Ctrl-D. Returns False to end the chat."""
        if key is Key.closed:
            return False
        if key is Key.end:
            return self._drop_question()
        can_quit, self._can_quit = self._can_quit, False
        if self._drop_question():
            pass
        elif self._turn is not None:
            self._cancel()
        elif can_quit:
            return False
        else:
            self._can_quit = True
            notify(_QUIT_HINT)
        return True

    def _drop_question(self) -> bool:
        """Leave the current question unanswered. Returns False if there is none."""
        if self._answer is None or self._answer.done():
            return False
        self._answer.set_result(None)
        return True

    def _cancel(self) -> None:
        if self._is_cancelling:
            # Exiting immediately is safe, because acknowledged events are already in the log.
            self._screen.close_now("exited without waiting\n")
            os._exit(CANCELLED)
        self._is_cancelling = True
        self._screen.set_status("cancelling; press Ctrl-C again to exit immediately")
        if self._run is not None:
            self._run.cancel("interrupted at the terminal")

    async def _handle_text(self, text: str) -> bool:
        """Process submitted text as an answer, command, steering message or question. Returns False after `/quit`."""
        self._can_quit = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(text)
            return True
        text = text.strip()
        if not text:
            return True
        if text.startswith("/") and not text.startswith("//"):
            self._echo(text)
        try:
            parsed = parse_line(text)
            if isinstance(parsed, Invocation):
                if parsed.name == "quit":
                    return False
                await execute(self._conversation, parsed, is_answering=self._turn is not None)
            elif self._turn is None:
                self._echo(parsed)
                self._start(parsed)
            else:
                self._steer(parsed)
        except RxloopError as error:
            report(error)
        return True

    def _echo(self, text: str) -> None:
        """Print user input."""
        lines = to_visible(text).split("\n")
        shown = Text("\n".join(("> " if number == 0 else "  ") + line for number, line in enumerate(lines)), "bold")
        self._screen.print("\n" + render_ansi(shown, self._screen.columns))

    def _steer(self, text: str) -> None:
        """Send a message to the run, or keep it for the next turn if the run is ending."""
        if self._run is None:
            self._queued.append(text)
        else:
            # The run may publish the event for the message before `send` returns.
            self._sent.append(text)
            try:
                self._run.send(text)
            except RunOver:
                self._sent.remove(text)
                self._queued.append(text)
        self._show_notes()

    def _show_notes(self) -> None:
        sent = [f"  sent: {to_one_line(text, 200)}" for text in (*self._received, *self._sent)]
        self._screen.set_notes([*sent, *(f"  next: {to_one_line(text, 200)}" for text in self._queued)])

    def _start(self, question: str) -> None:
        self._is_cancelling = False
        self._screen.set_prompt(_STEERING_HINT, is_busy=True)
        self._turn = asyncio.create_task(self._run_turns(question))
        self._turn.add_done_callback(self._report_failure)

    def _report_failure(self, turn: asyncio.Task[None]) -> None:
        error = None if turn.cancelled() else turn.exception()
        if error is not None:
            self._screen.fail(error)

    async def _run_turns(self, question: str) -> None:
        """Execute a run for the question, then one for each queued message."""
        try:
            while True:
                try:
                    await self._run_turn(question)
                except RxloopError as error:
                    report(error)
                if self._is_cancelling or not self._queued:
                    return
                question = self._queued.pop(0)
                self._show_notes()
                self._echo(question)
        finally:
            self._turn = None
            # Return unsent messages to the user, who cancelled the run.
            self._screen.restore_text("\n".join(self._queued))
            self._queued.clear()
            self._show_notes()
            self._screen.set_status(None)
            self._screen.set_prompt(_HINT, is_busy=False)

    async def _run_turn(self, question: str) -> None:
        conversation = self._conversation
        self._screen.print("\n")
        run = await conversation.make_run(question)
        while True:
            result = await self._watch(run)
            if EXIT_CODES.get(result.state) != WAITS:
                break
            inputs = await self._ask(result.pending)
            if inputs is None:
                break
            run = conversation.resume(result.task_id, inputs)
        await conversation.live.finish(conversation.ready, result)

    async def _watch(self, run: Run[Any]) -> Result[Any]:
        """Display a run and return its result."""
        output, live = AnswerWriter(self._screen), self._conversation.live
        async with run:
            self._run = run
            if self._is_cancelling:
                run.cancel("interrupted at the terminal")
            status = run.pipe(render_status()).subscribe(lambda text: self._show_status(escape(text).plain))
            received = run.events.subscribe(self._track_messages)
            try:
                events = run.events.pipe(rx.filter(self._is_shown))
                with live.limit.watch(run):
                    async for text, is_answer in events.pipe(render_live(live.display.thoughts)):
                        if not (live.structured if is_answer else live.display.quiet):
                            output.write(text, is_answer=is_answer)
                output.finish()
                return await run
            except AttemptError as error:
                return error.result
            finally:
                self._run = None
                status.dispose()
                received.dispose()
                output.finish()
                self._queued[:0], self._sent = self._sent, []
                self._received, self._is_writing = [], False
                self._show_notes()

    def _show_status(self, text: str) -> None:
        if not self._is_cancelling:
            self._screen.set_status(text)

    def _track_messages(self, event: Event) -> None:
        """Track steering messages, so that the screen lists unprinted messages."""
        if event.branch is not None or event.parent_task_id is not None:
            return
        match event:
            case ContentDeltaEvent():
                self._is_writing = True
            case ContentCompleteEvent():
                self._is_writing, self._received = False, []
                self._show_notes()
            case MessageAddedEvent() if event.cause == "steering" and self._sent:
                text = self._sent.pop(0)
                self._received += [text] if self._is_writing else []
                self._show_notes()
            case _:
                pass

    def _is_shown(self, event: Event) -> bool:
        """Return False for events already displayed by the input line, such as questions and answers."""
        match event:
            case StatusUpdateEvent():
                return event.state not in WAITING
            case InputReceivedEvent():
                return self._conversation.live.control.approve is not Approval.ask
            case _:
                return self._conversation.live.shows(event)

    async def _ask(self, pending: Sequence[PendingInput]) -> Mapping[str, Any] | None:
        """Ask questions of the run. Returns None if the user does not answer."""
        answers = self._conversation.live.approve(pending)
        self._screen.set_status(None)
        for question in (each for each in pending if each.input_id not in answers):
            notify(format_question(question))
            self._screen.ask(_SECRET_PROMPT if question.secret else "answer > ", is_secret=question.secret)
            try:
                while question.input_id not in answers:
                    self._answer = asyncio.get_running_loop().create_future()
                    text = await self._answer
                    if text is None:
                        return None
                    text = text if question.secret else text.strip()
                    self._echo("(hidden)" if question.secret else text)
                    try:
                        answers[question.input_id] = parse_answer(text, question)
                    except ConfigurationError as error:
                        notify(str(error))
            finally:
                self._answer = None
                self._screen.set_prompt(_STEERING_HINT, is_busy=True)
        return answers

    async def _stop(self) -> None:
        """Cancel the active run and wait for it."""
        self._queued.clear()
        self._drop_question()
        if self._turn is not None:
            if self._run is not None:
                self._run.cancel("the chat was ended")
            await asyncio.wait([self._turn])


class AnswerWriter:
    """Output writer that renders answers as Markdown.

    Args:
        screen: Screen of the chat.
    """

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._renderer: MarkdownRenderer | None = None
        self._line = Text()
        """Unfinished line of other output, such as streamed reasoning."""

    def write(self, text: Text, *, is_answer: bool) -> None:
        """Write a fragment."""
        if is_answer:
            if self._renderer is None:
                self._finish_line()
                self._renderer = MarkdownRenderer(self._screen.columns)
            # Adapt to resized windows.
            self._renderer.width = self._screen.columns
            self._screen.print(self._renderer.feed(text.plain))
            self._screen.set_tail(self._renderer.render_tail)
            return
        self._finish_answer()
        *lines, self._line = Text.assemble(self._line, escape(text)).split("\n", allow_blank=True)
        for line in lines:
            self._screen.print(render_ansi(line, self._screen.columns))
        unfinished = self._line
        self._screen.set_tail(lambda: render_ansi(unfinished, self._screen.columns) if unfinished else "")

    def finish(self) -> None:
        """Complete the output."""
        self._finish_answer()
        self._finish_line()
        self._screen.set_tail(None)

    def _finish_answer(self) -> None:
        if self._renderer is not None:
            self._screen.print(self._renderer.finish())
            self._renderer = None

    def _finish_line(self) -> None:
        if self._line:
            self._screen.print(render_ansi(self._line, self._screen.columns))
            self._line = Text()
