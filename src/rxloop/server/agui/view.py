"""The view of a chat as the frames of one AG-UI run: which is one attempt of ours."""

from __future__ import annotations

import logging

from reactivex import Observable, abc

from rxloop.operators.views._types import View
from rxloop.protocol.events import Event
from rxloop.server.agui.frames import failure
from rxloop.server.agui.telling import Telling
from rxloop.server.agui.writing import Writer
from rxloop.server.chat.changes import Change

log = logging.getLogger("rxloop")


def agui_frames(telling: Telling) -> View[Change | Event, bytes]:
    """Write a chat down as AG-UI, up to the end of an attempt.

    ::

        source          --t--w----S--B--T--(E,N)--F--      t task, w working, S StepBegan, B TextBegan, T TextDelta,
        agui_frames()   --R-------S--B--T--(E,N)--(F|)     E TextEnded, N StepEnded, F final; R RUN_STARTED

    It is given a run from its first event, for what it says follows from all of that; `Telling.after` says how much of
    it the client has. A stream that breaks off ends as a failed run, since clients take an end without a word for a
    success.

    Args:
        telling: What the client is told, and from where on.
    """

    def operator(source: Observable[Change | Event]) -> Observable[bytes]:
        def subscribe(
            observer: abc.ObserverBase[bytes], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            writer = Writer(telling, telling.messages())

            def on_next(item: Change | Event) -> None:
                written = writer.take(item)
                if written:
                    observer.on_next(written)
                if writer.over:
                    observer.on_completed()

            def on_error(error: Exception) -> None:
                log.warning("a stream breaks off: %s", error)
                observer.on_next(failure("log", "the run cannot be read any further"))
                observer.on_completed()

            return source.subscribe(on_next, on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator
