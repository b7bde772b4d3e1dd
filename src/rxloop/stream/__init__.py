"""Run streams and Observables for async work, used by operators and providers that wait or call async code."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Public names. Both type checkers and `import_later` read this list.
if TYPE_CHECKING:
    from rxloop.stream.rx import resolve_scheduler as resolve_scheduler
    from rxloop.stream.sources import Push as Push
    from rxloop.stream.sources import from_task as from_task
