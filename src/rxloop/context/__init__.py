"""What fits the window: use it to compress long histories, and to show a model its workspace."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# The list of the public names: type checkers read it, and `import_later` does.
if TYPE_CHECKING:
    from rxloop.context.compressors import ChainedCompressor as ChainedCompressor
    from rxloop.context.counting import TextCounter as TextCounter
    from rxloop.context.counting import TokenEstimator as TokenEstimator
    from rxloop.context.workspaces import CompositeWorkspace as CompositeWorkspace
    from rxloop.context.workspaces import TextWorkspace as TextWorkspace
