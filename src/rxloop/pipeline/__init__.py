"""Interfaces that users implement (logs, tools, toolsets, compressors, stores), and the requests in the loop.

* `ArtifactStore`: keep artifacts in a store of your own. `Artifacts` is a conversation's view of any store,
  `RunArtifacts` that of a run, and `Draft` a version that is being written.
* `Compressor`, with its `Budget`: choose what a long history loses. `ThinkingResult` is what the thinking phase found.
* `TokenCounter`: count tokens with the tokenizer of your model.
* `Workspace`, with `WorkspacePart`: show the model data in each request that never enters the history.
* `Clock`: control time in tests and simulations.
"""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# The list of the public names: type checkers read it, and `import_later` does.
if TYPE_CHECKING:
    from rxloop.pipeline.artifact_rules import ArtifactChunk as ArtifactChunk
    from rxloop.pipeline.artifact_rules import ArtifactRecord as ArtifactRecord
    from rxloop.pipeline.artifacts import Artifacts as Artifacts
    from rxloop.pipeline.artifacts import ArtifactStore as ArtifactStore
    from rxloop.pipeline.artifacts import Draft as Draft
    from rxloop.pipeline.artifacts import RunArtifacts as RunArtifacts
    from rxloop.pipeline.interfaces import Budget as Budget
    from rxloop.pipeline.interfaces import TokenCounter as TokenCounter
    from rxloop.pipeline.interfaces import WorkspacePart as WorkspacePart
    from rxloop.pipeline.thinking_result import ThinkingResult as ThinkingResult
    from rxloop.support.tasks import Clock as Clock
