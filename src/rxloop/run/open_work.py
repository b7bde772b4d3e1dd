"""What is open in a run: messages that are being received, and calls that have no answer yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import ContentCompleteEvent, Event, ToolCompleteEvent
from rxloop.protocol.messages import ToolCall
from rxloop.run.recorder import Recorder
from rxloop.state.batch import Batch
from rxloop.state.run_state import RunState


class OpenWork:
    """The open messages and calls of a run, on all of its branches, and the events that end them."""

    def __init__(self, recorder: Recorder, idempotent: Callable[[ToolCall], bool]) -> None:
        """Look at a run.

        Args:
            recorder: Makes its stream.
            idempotent: Whether a call may be made again.
        """
        self._recorder, self._idempotent = recorder, idempotent

    def ends_of(self, ctx: RunContext[Any]) -> Iterator[Event]:
        """The end of the message, or of the call, of a context, if it is open."""
        state = self._recorder.state(ctx.branch)
        if ctx.call is None:
            if state.open_step == ctx.step:
                yield self._canceled_message(state, ctx.branch)
        elif state.batch is not None and state.batch.step == ctx.step and state.batch.awaits(ctx.index):
            yield self._canceled_call(state.batch, ctx.index, ctx.branch)

    def ends(self) -> Iterator[Event]:
        """The ends of every open message and call."""
        for branch, state in list(self._recorder.states.items()):
            if state.open_step is not None:
                yield self._canceled_message(state, branch)
            if state.batch is not None:
                for index in state.batch.open:
                    yield self._canceled_call(state.batch, index, branch)

    @property
    def at_work(self) -> bool:
        """Whether a call is being carried out that nobody can make again, since its tool is not idempotent.

        One that waits for an answer does not count: it begins once more when the answer is there.
        """
        asking = self._recorder.state().pending.values()
        for state in self._recorder.states.values():
            batch = state.batch
            if batch is None:
                continue
            begun = batch.begun & ~batch.asking(asking)
            if any(begun >> index & 1 and not self._idempotent(batch.calls[index]) for index in batch.open):
                return True
        return False

    def _canceled_message(self, state: RunState, branch: str | None) -> ContentCompleteEvent:
        text = self._recorder.hub.open_text(self._recorder.task_id, state.open_step)
        return ContentCompleteEvent(step=state.open_step, branch=branch, content=text, finish_reason="canceled")

    def _canceled_call(self, batch: Batch, index: int, branch: str | None) -> ToolCompleteEvent:
        asking = batch.asking(self._recorder.state().pending.values())
        content = batch.unanswered(index, asking, idempotent=self._idempotent(batch.calls[index]))
        return canceled_call(batch, index, content, branch)


def canceled_call(batch: Batch, index: int, content: str, branch: str | None = None) -> ToolCompleteEvent:
    """The answer to a call that was cut off; `content` is what the model reads."""
    call = batch.calls[index]
    return ToolCompleteEvent(
        call=call,
        index=index,
        hidden=call.hidden,
        step=batch.step,
        branch=branch,
        success=False,
        error="canceled",
        content=content,
    )
