"""Fault injection for worker processes, with consistency checks."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Public names, read by type checkers and `import_later`.
if TYPE_CHECKING:
    from rxloop.testing.chaos.chaos import Chaos as Chaos
    from rxloop.testing.chaos.faults import Fault as Fault
    from rxloop.testing.chaos.processes import Worker as Worker
    from rxloop.testing.chaos.report import Report as Report
    from rxloop.testing.chaos.report import Violation as Violation
