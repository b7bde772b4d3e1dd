"""Folds of events. Use `fold` to rebuild the state of a run from its events, without an agent or a log."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Public names. Both type checkers and `import_later` read this list.
if TYPE_CHECKING:
    from rxloop.state.fold import fold as fold
    from rxloop.state.run_state import CompressionTotals as CompressionTotals
