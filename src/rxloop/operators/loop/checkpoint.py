from __future__ import annotations

import logging

from reactivex import Observable

from rxloop.errors import ConfigurationError
from rxloop.operators.loop.at_end import at_end
from rxloop.pipeline.host import get_host
from rxloop.pipeline.requests import IterationEnd, Operator, Signal
from rxloop.protocol.events import CheckpointEvent
from rxloop.protocol.model import make_unchecked
from rxloop.stream.sources import Push, emit, from_task

log = logging.getLogger("rxloop")
_checkpoint = make_unchecked(CheckpointEvent, normalised=True)


def checkpoint(every: int = 1) -> Operator[object]:
    """Hold the end of an iteration until the log is durable, and say so.

    ::

        in   --E--e---e---|
        log               ....ok
        out  -----e---e-------(k,E|)

    E `IterationEnd`, which is held until everything before it is done; k `checkpoint`. Without a log there is nothing
    to wait for, and the event says so by `durable_seq=None`.

    Args:
        every: Do so after every n-th iteration only; after the last one of a run, and before a pause, in any case.
    """
    if every < 1:
        raise ConfigurationError(f"every must be at least 1, not {every}")

    def answer(end: IterationEnd) -> Observable[Signal]:
        state = end.ctx.state
        if state.open_step is not None:
            # Either the request was too long for the model, and the same iteration is about to be tried again. Or its
            # message is still on its way, and a checkpoint would not be true yet.
            if state.failure is None:
                log.warning(
                    "iteration %s gets no checkpoint, since its message has not come out of the loop: if there is one, "
                    "an operator after op.checkpoint() holds it back, but events have to pass at once",
                    end.iteration,
                )
            return emit(end)
        if end.iteration % every and not state.done and not state.pending:
            return emit(end)
        if end.ctx.log is None:
            return emit(_event(end, None), end)
        seq = get_host(end.ctx).durable_now()
        if seq is not None:
            return emit(_event(end, seq), end)

        async def wait(push: Push[Signal]) -> None:
            push(_event(end, await end.ctx.port.durable()))
            push(end)

        return from_task(wait, end.ctx, name="rxloop-checkpoint")

    operator = at_end(answer)
    operator.__qualname__ = "checkpoint"
    return operator


def _event(end: IterationEnd, durable_seq: int | None) -> CheckpointEvent:
    state = end.ctx.state
    # The end of an iteration may be that of a strategy of the user's own.
    make = _checkpoint if end.iteration.__class__ is int else CheckpointEvent
    return make(
        step=end.ctx.step,
        branch=end.ctx.branch,
        iteration=end.iteration,
        message_count=len(state.messages),
        usage=state.usage,
        durable_seq=durable_seq,
    )
