"""Chat on an emulated terminal: steering, cancellation, questions and commands while an answer is written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from reactivex import Observable

from rxloop import Agent, tool
from rxloop.cli.agent_loader import AgentOptions, LoadedAgent
from rxloop.cli.chat.conversation import Conversation
from rxloop.cli.chat.session import ChatSession
from rxloop.cli.live_run import LiveRuns
from rxloop.cli.options import RunDisplay
from rxloop.pipeline.interfaces import Provider
from rxloop.pipeline.requests import ModelRequest
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent, Event
from rxloop.storage import MemoryEventLog
from rxloop.stream.sources import Push, from_task
from rxloop.testing import ScriptedModel, call, frames
from support.chat_terminals import CTRL_C, CTRL_D, ENTER, TestScreen, open_screen
from support.run_checks import wait_until


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@tool
async def sign_in(ctx: RunContext[None]) -> str:
    """Sign in."""
    token = await ctx.require_auth("the bank")
    return f"in with {len(token)} characters"


class ManualModel:
    """Model that streams answers written by tests."""

    name = "manual"

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []
        self._pieces: asyncio.Queue[str | None] = asyncio.Queue()

    def call(self, request: ModelRequest) -> Observable[Event]:
        async def send(push: Push[Event]) -> None:
            self.requests.append(request)
            text = ""
            while (piece := await self._pieces.get()) is not None:
                push(ContentDeltaEvent(step=request.step, delta=piece))
                text += piece
            push(ContentCompleteEvent(step=request.step, content=text, finish_reason="stop"))

        return from_task(send, request.ctx)

    def write(self, text: str) -> None:
        """Add text to the answer."""
        self._pieces.put_nowait(text)

    def complete(self) -> None:
        """End the answer."""
        self._pieces.put_nowait(None)

    async def aclose(self) -> None:
        """Do nothing, because tests control the answers."""


class User:
    """Simulated chat user."""

    def __init__(self, shown: TestScreen, conversation: Conversation, ended: asyncio.Task[None]) -> None:
        self.conversation, self.ended = conversation, ended
        self._shown = shown
        self.wait_for, self.wait_until_gone = shown.wait_for, shown.wait_until_gone

    @property
    def lines(self) -> list[str]:
        return self._shown.emulator.lines

    @property
    def text(self) -> str:
        return self._shown.emulator.text

    def send(self, text: str) -> None:
        self._shown.keyboard.send_text(text)

    async def wait_for_prompt(self) -> None:
        await self.wait_for("> a question, or /help")

    async def states(self) -> list[str]:
        return [record.state for record in await self.conversation.log.list_runs()]


@asynccontextmanager
async def chat(model: Provider, *tools: Any) -> AsyncGenerator[User]:
    """Chat on an emulated terminal. The chat must have ended at the end of the block."""
    log = MemoryEventLog()
    agent = Agent(model, tools=tools, log=log, thoughts=False)
    live = LiveRuns(RunDisplay(), log, chatting=True)
    conversation = Conversation(LoadedAgent(agent, None, None), live, log, AgentOptions(), "c")
    async with agent, conversation, open_screen() as shown:
        ended = asyncio.create_task(ChatSession(conversation, shown.screen).run())
        user = User(shown, conversation, ended)
        await user.wait_for_prompt()
        yield user
        user.send(CTRL_C + CTRL_D)
        await asyncio.wait([ended], timeout=10)
        assert ended.done()


async def test_message_typed_during_an_answer_is_shown_as_sent_and_printed_after_the_answer() -> None:
    model = ManualModel()
    async with chat(model) as user:
        user.send("Count." + ENTER)
        await user.wait_for("waiting for the model")
        model.write("One, ")
        await user.wait_for("One,")
        user.send("Faster!" + ENTER)
        await user.wait_for("sent: Faster!")
        model.write("two.")
        await user.wait_for("One, two.")
        assert "steering" not in user.text
        model.complete()
        await user.wait_for("+ user (steering): Faster!")
        await user.wait_until_gone("sent: Faster!")
        await wait_until(lambda: len(model.requests) == 2)
        assert [message.text for message in model.requests[-1].messages] == ["Count.", "One, two.", "Faster!"]
        model.write("Three.")
        model.complete()
        await user.wait_for("completed")
        lines = user.lines
        assert lines[lines.index("One, two.") :][:5] == ["One, two.", "", "+ user (steering): Faster!", "", "Three."]


async def test_message_typed_before_the_run_exists_is_answered_next() -> None:
    async with chat(ScriptedModel("First.", "Second.")) as user:
        user.send("One" + ENTER + "Two" + ENTER)
        await user.wait_for("Second.")
        await user.wait_for_prompt()
        assert await user.states() == ["completed", "completed"]
        assert user.text.index("First.") < user.text.index("> Two") < user.text.index("Second.")


async def test_ctrl_c_stops_the_answer_and_returns_unsent_messages_to_the_input_line() -> None:
    async with chat(ScriptedModel(frames("Once upon a time"), "Yes.")) as user:
        user.send("Tell" + ENTER + "Unsent" + ENTER)
        await user.wait_for("Once upon")
        assert "next: Unsent" in user.text
        user.send(CTRL_C)
        await user.wait_for("cancelled")
        await user.wait_for("> Unsent")
        assert await user.states() == ["canceled"]
        user.send(ENTER)
        await user.wait_for("Yes.")
        await user.wait_for_prompt()


async def test_text_typed_during_an_answer_stays_in_the_input_line() -> None:
    async with chat(ScriptedModel(frames("Once upon a time"))) as user:
        user.send("Tell" + ENTER)
        await user.wait_for("Once upon")
        user.send("draft")
        await user.wait_for("> draft")
        user.send(CTRL_C)
        await user.wait_for("cancelled")
        assert user.lines[-1] == "> draft"


async def test_question_is_printed_once_and_repeated_only_by_an_error() -> None:
    async with chat(ScriptedModel(call("pay", amount=5), "Done."), pay) as user:
        user.send("Pay." + ENTER)
        await user.wait_for("answer >")
        user.send("maybe" + ENTER)
        await user.wait_for("the answer must be yes or no")
        user.send("yes" + ENTER)
        await user.wait_for("Done.")
        await user.wait_for_prompt()
        assert user.text.count("Call pay with amount: 5?") == 1
        assert "← pay paid 5" in user.text
        assert await user.states() == ["completed"]


async def test_unanswered_question_can_be_answered_later_and_the_chat_continues() -> None:
    async with chat(ScriptedModel(call("pay", amount=5), "Next."), pay) as user:
        user.send("Pay." + ENTER)
        await user.wait_for("answer >")
        user.send(CTRL_D)
        await user.wait_for("continue with: rxloop resume ")
        await user.wait_for_prompt()
        assert await user.states() == ["input-required"]
        user.send("Never mind." + ENTER)
        await user.wait_for("Next.")
        await user.wait_for_prompt()


async def test_secret_is_neither_shown_nor_recorded() -> None:
    async with chat(ScriptedModel(call("sign_in"), "Done."), sign_in) as user:
        user.send("Sign in." + ENTER)
        await user.wait_for("(hidden input; press Enter to decline) >")
        user.send("00724913" + ENTER)
        await user.wait_for("in with 8 characters")
        await user.wait_for_prompt()
        assert "724" not in user.text


async def test_commands_during_an_answer() -> None:
    async with chat(ScriptedModel(frames("Once upon a time"))) as user:
        user.send("Tell" + ENTER)
        await user.wait_for("Once upon")
        user.send("/undo" + ENTER + "/thoughts all" + ENTER)
        await user.wait_for("/undo cannot be used during an answer; wait, or press Ctrl-C first")
        await user.wait_for("thoughts: all")
        user.send(CTRL_C)
        await user.wait_for_prompt()


async def test_failed_run_is_reported_and_the_chat_continues() -> None:
    async with chat(ScriptedModel(ValueError("broken"), "Yes.")) as user:
        user.send("One" + ENTER)
        await user.wait_for("failed")
        await user.wait_for_prompt()
        user.send("Two" + ENTER)
        await user.wait_for("Yes.")
        await user.wait_for_prompt()


async def test_unexpected_error_ends_the_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(LiveRuns, "finish", fail)
    async with chat(ScriptedModel("Yes.")) as user:
        user.send("One" + ENTER)
        await asyncio.wait([user.ended])
        with pytest.raises(OSError, match="the disk is gone"):
            await user.ended


async def test_second_ctrl_c_at_the_prompt_ends_the_chat() -> None:
    async with chat(ScriptedModel()) as user:
        user.send(CTRL_C)
        await user.wait_for("press Ctrl-C again, or Ctrl-D, to end the chat")
        user.send("/cost" + ENTER)
        await user.wait_for("0 tokens in")
        user.send(CTRL_C + CTRL_C)
        await asyncio.wait_for(user.ended, 10)


async def test_end_of_the_chat_cancels_the_run() -> None:
    async with chat(ScriptedModel(frames("Once upon a time"))) as user:
        user.send("Tell" + ENTER)
        await user.wait_for("Once upon")
        user.send("/quit" + ENTER)
        await asyncio.wait_for(user.ended, 10)
        assert await user.states() == ["canceled"]
