"""Strategy with two branches."""

from __future__ import annotations

from typing import Any

from reactivex import Observable, abc

from rxloop import ContentCompleteEvent, op
from rxloop.operators.loop.iterate import iterate
from rxloop.pipeline.requests import Operator, RunRequest, Signal
from rxloop.stream.sources import emit


def two_branches(pipeline: Operator) -> Operator:
    """Run two loops on parallel branches and combine their answers."""
    loop = iterate(pipeline)

    def answer(request: RunRequest) -> Observable[Signal]:
        lines = [RunRequest(request.ctx.bind(branch=branch)) for branch in ("b1", "b2")]
        source = loop(emit(*lines))

        def subscribe(observer: abc.ObserverBase[Signal], scheduler: Any = None) -> abc.DisposableBase:
            def on_completed() -> None:
                said = [request.ctx.bind(branch=branch).state.content for branch in ("b1", "b2")]
                observer.on_next(ContentCompleteEvent(step="both", content=" and ".join(said)))
                observer.on_completed()

            return source.subscribe(observer.on_next, observer.on_error, on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return op.answer_requests(RunRequest, answer)
