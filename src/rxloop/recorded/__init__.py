"""Pending questions, and the types returned by `rxloop.replay`, `rxloop.follow` and `rxloop.diff`."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Type checkers and `import_later` read the public names from these imports.
if TYPE_CHECKING:
    from rxloop.recorded.diff import RunCost as RunCost
    from rxloop.recorded.diff import RunDiff as RunDiff
    from rxloop.recorded.diff import RunSide as RunSide
    from rxloop.recorded.follow import RecordedStream as RecordedStream
    from rxloop.recorded.questions import PendingQuery as PendingQuery
    from rxloop.recorded.questions import PendingRun as PendingRun
    from rxloop.recorded.questions import list_pending as list_pending
    from rxloop.recorded.replay import Replay as Replay
