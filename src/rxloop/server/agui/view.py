"""The view of a run as the frames of one AG-UI run: which is one attempt of ours."""

from __future__ import annotations

import logging

from reactivex import Observable, abc

from rxloop.operators.views._types import View
from rxloop.protocol.events import Event
from rxloop.server.agui.frames import failure
from rxloop.server.agui.telling import Telling
from rxloop.server.agui.writing import Writer
from rxloop.server.chat.changes import Change
from rxloop.server.chat.fold import ChatFold

log = logging.getLogger("rxloop")


def agui_frames(telling: Telling) -> View[Event, bytes]:
    """Write a run down as AG-UI, up to the end of an attempt.

    ::

        source          --t--w----l----d--c------f--      t task, w working, l llm-call, d content-delta,
        agui_frames()   --R-------S----T--(E,N)--(F|)     c content-complete, f final; R RUN_STARTED, S STEP_STARTED,
                                                          T TEXT_MESSAGE_*, E its end, N STEP_FINISHED, F RUN_FINISHED

    It is given a run from its first event, for what it says follows from all of that; `Telling.after` says how much of
    it the client has. Who gets that by a snapshot gets it as soon as it is read, however long nothing follows. A stream
    that breaks off ends as a failed run, since clients take an end without a word for a success.

    Args:
        telling: What the client is told, and from where on.
    """

    def operator(source: Observable[Event]) -> Observable[bytes]:
        def subscribe(
            observer: abc.ObserverBase[bytes], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            writer = Writer(telling, telling.messages())

            def write(written: bytes) -> None:
                if written:
                    observer.on_next(written)
                if writer.over:
                    observer.on_completed()

            def take(item: Change | Event) -> None:
                write(writer.take(item))

            fold = ChatFold(take)

            def on_next(event: Event) -> None:
                shown = event.for_clients()
                if shown is not None:
                    fold.take(shown)
                write(writer.reached(event))

            def on_error(error: Exception) -> None:
                log.warning("a stream breaks off: %s", error)
                observer.on_next(failure("log", "the run cannot be read any further"))
                observer.on_completed()

            return source.subscribe(on_next, on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator
