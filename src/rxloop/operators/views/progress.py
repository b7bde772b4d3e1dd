"""The view that shows how far a batch is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from reactivex import Observable, abc
from reactivex.disposable import CompositeDisposable, Disposable

from rxloop.errors import ConfigurationError
from rxloop.operators.views.tally import Finished, Tally, counted, nothing_yet

if TYPE_CHECKING:
    from rich.console import Console

    from rxloop.providers.prices import Price


F = TypeVar("F", bound=Finished)


def progress(
    total: int | None = None, *, label: str = "", price: Price | None = None, console: Console | None = None
) -> Callable[[Observable[F]], Observable[F]]:
    """Pass all outcomes of a batch on, and draw a progress bar with the cost so far, in a terminal or a notebook.

    It needs the extra `rxloop[cli]`, for rich, and in a notebook ipywidgets. Where neither a terminal nor a notebook
    shows it, nothing is drawn.

    ::

        source        --o---o---x--|
        progress()    --o---o---x--|

    Example:
        >>> async for outcome in agent.map(documents).pipe(op.progress(len(documents))):

    Args:
        total: How many items there are; without it the bar shows only that something happens.
        label: What stands before the bar.
        price: That of the model, for the cost.
        console: Where it is drawn; by default on stderr.

    Returns:
        A view of the same items.

    Raises:
        ConfigurationError: rich is not installed.
    """
    draw = _bar(total, label, console)

    def operator(source: Observable[F]) -> Observable[F]:
        def subscribe(observer: abc.ObserverBase[F], scheduler: abc.SchedulerBase | None = None) -> abc.DisposableBase:
            so_far = nothing_yet(price)
            show, stop = draw()

            def on_next(outcome: F) -> None:
                nonlocal so_far
                so_far = counted(so_far, outcome, price)
                show(so_far)
                observer.on_next(outcome)

            # Disposed at the end as well, whatever that is.
            subscription = source.subscribe(on_next, observer.on_error, observer.on_completed, scheduler=scheduler)
            return CompositeDisposable(subscription, Disposable(stop))

        return Observable(subscribe)

    return operator


Drawing = Callable[[], tuple[Callable[[Tally], None], Callable[[], None]]]
"""Begins to draw a bar, and gives what moves it and what ends it."""


def _bar(total: int | None, label: str, console: Any) -> Drawing:
    # Imported here: rich is an extra, and takes a while.
    try:
        from rich import progress as bars
        from rich.console import Console
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"op.progress needs {error.name}, which is not installed: pip install 'rxloop[cli]'"
        ) from None

    def draw() -> tuple[Callable[[Tally], None], Callable[[], None]]:
        shown = console if console is not None else Console(stderr=True)
        bar = bars.Progress(
            *([bars.TextColumn("{task.description}")] if label else []),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TextColumn("{task.fields[tally]}"),
            bars.TimeRemainingColumn(elapsed_when_finished=True),
            console=shown,
            # In a notebook, what draws from a thread of its own swallows what the cell writes meanwhile.
            auto_refresh=not shown.is_jupyter,
            disable=not (shown.is_terminal or shown.is_jupyter),
        )
        task = bar.add_task(label, total=total, tally="")
        bar.start()

        def show(tally: Tally) -> None:
            bar.update(task, completed=tally.done, tally=str(tally), refresh=shown.is_jupyter)

        return show, bar.stop

    return draw
