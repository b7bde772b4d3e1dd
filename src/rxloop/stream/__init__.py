"""The stream of a run and sources for it: use them in operators and providers that wait, or that call async code."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# The list of the public names: type checkers read it, and `import_later` does.
if TYPE_CHECKING:
    from rxloop.stream.rx import timers as timers
    from rxloop.stream.sources import Push as Push
    from rxloop.stream.sources import from_task as from_task
