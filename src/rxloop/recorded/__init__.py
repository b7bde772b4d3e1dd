"""Recorded runs: use the results of `rxloop.replay`, `rxloop.follow` and `rxloop.diff` by these types."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# The list of the public names: type checkers read it, and `import_later` does.
if TYPE_CHECKING:
    from rxloop.recorded.diff import RunCost as RunCost
    from rxloop.recorded.diff import RunDiff as RunDiff
    from rxloop.recorded.diff import RunSide as RunSide
    from rxloop.recorded.follow import RecordedStream as RecordedStream
    from rxloop.recorded.replay import Replay as Replay
