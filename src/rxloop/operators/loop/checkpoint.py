from __future__ import annotations

import logging

from reactivex import Observable

from rxloop.operators.loop.at_end import at_end
from rxloop.pipeline.host import get_host
from rxloop.pipeline.requests import IterationEnd, Operator, Signal
from rxloop.protocol.events import CheckpointEvent
from rxloop.protocol.model import make_unchecked
from rxloop.state.run_state import RunState
from rxloop.stream.sources import Push, emit, from_task
from rxloop.support.misuse import check_minimum

log = logging.getLogger("rxloop")
_checkpoint = make_unchecked(CheckpointEvent, normalised=True)


def checkpoint(every: int = 1) -> Operator[object]:
    """Publish a checkpoint at the end of an iteration, after its events are durable.

    ::

        in   --E--e---e---|
        log               ....ok
        out  -----e---e-------(k,E|)

    E is the `IterationEnd`, which is held until all earlier signals have passed, and k the `checkpoint`. Without a log,
    the operator does not wait, and the event has `durable_seq=None`.

    Args:
        every: Number of iterations between checkpoints. A run always has a checkpoint after its last iteration and
            before it waits for input.
    """
    check_minimum(1, every=every)

    def answer(end: IterationEnd) -> Observable[Signal]:
        state = end.ctx.state
        if state.open_step is not None:
            # Skip the checkpoint, because the message is unpublished or the iteration will be retried with a shorter
            # request.
            if state.failure is None:
                log.warning(
                    "skipping the checkpoint of iteration %s because its message has not left the loop; an operator "
                    "after op.checkpoint() may be holding it, but operators must pass events immediately",
                    end.iteration,
                )
            return emit(end)
        if end.iteration % every and not state.done and not state.pending:
            return emit(end)
        if end.ctx.log is None:
            return emit(_event(end, state, None), end)
        seq = get_host(end.ctx).durable_now()
        if seq is not None:
            return emit(_event(end, state, seq), end)

        async def wait(push: Push[Signal]) -> None:
            seq = await end.ctx.port.durable()
            push(_event(end, end.ctx.state, seq))
            push(end)

        return from_task(wait, end.ctx, name="rxloop-checkpoint")

    operator = at_end(answer)
    operator.__qualname__ = "checkpoint"
    return operator


def _event(end: IterationEnd, state: RunState, durable_seq: int | None) -> CheckpointEvent:
    # Custom strategies may create `IterationEnd` signals.
    make = _checkpoint if end.iteration.__class__ is int else CheckpointEvent
    event = make(
        step=end.ctx.step,
        branch=end.ctx.branch,
        iteration=end.iteration,
        message_count=len(state.messages),
        usage=state.usage,
        durable_seq=durable_seq,
    )
    end.ctx.info.budget.note_unpublished(event)
    return event
