"""Compression of long histories, and workspaces shown to the model."""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Type checkers and `import_later` read the public names from these imports.
if TYPE_CHECKING:
    from rxloop.context.compressors import ChainedCompressor as ChainedCompressor
    from rxloop.context.compressors import make_compressor as make_compressor
    from rxloop.context.token_estimator import TextCounter as TextCounter
    from rxloop.context.token_estimator import TokenEstimator as TokenEstimator
    from rxloop.context.workspaces import CompositeWorkspace as CompositeWorkspace
    from rxloop.context.workspaces import TextWorkspace as TextWorkspace
