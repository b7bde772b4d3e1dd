"""The view of a run as a chat."""

from __future__ import annotations

from reactivex import Observable, abc

from rxloop.operators.views._types import View
from rxloop.protocol.events import Event
from rxloop.server.chat.changes import Change
from rxloop.server.chat.fold import ChatFold


def chat() -> View[Event, Change | Event]:
    """Give a run as a chat: what happens in its steps as changes, everything else as the public events.

    ::

        source     --l-----d(He)-----d(y)---c-------x--w--|      l llm-call, d content-delta, c content-complete
        chat()     --S-----(B,T)-----T------(E,N)---R--w--|      S StepBegan, B TextBegan, T TextDelta, E TextEnded,
                                                                 N StepEnded, R CallResult

    It is seeded from the log: give it a run from its first event (`runtime.follow(task_id)`), and leave out what the
    client has already. A reader without deltas gets a whole message as one; where a message comes out differently from
    what was shown of it, what was shown is void.

    Returns:
        A view of changes and public events. It takes the events of one run with all that is nested in it, those that
        are not for clients too: they are left out here.
    """

    def operator(source: Observable[Event]) -> Observable[Change | Event]:
        def subscribe(
            observer: abc.ObserverBase[Change | Event], scheduler: abc.SchedulerBase | None = None
        ) -> abc.DisposableBase:
            fold = ChatFold(observer.on_next)

            def on_next(event: Event) -> None:
                shown = event.for_clients()
                if shown is not None:
                    fold.take(shown)

            return source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)

        return Observable(subscribe)

    return operator
