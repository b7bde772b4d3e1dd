"""Interfaces that users implement (logs, tools, toolsets, compressors, stores), and the requests in the loop.

* `ArtifactStore`: custom storage for artifacts. `Artifacts` provides access for a conversation, `RunArtifacts` for a
  run, and `Draft` for an unfinished version.
* `Compressor` and `Budget`: custom compression of long histories. `ThinkingResult` is the output of the thinking phase.
* `TokenCounter`: token counts from a model-specific tokenizer.
* `Workspace` and `WorkspacePart`: data shown to the model in each request, without adding it to the history.
* `Clock`: time control for tests and simulations.
"""

from typing import TYPE_CHECKING

from rxloop._lazy import import_later

__all__: list[str]
import_later(__name__)

# Type checkers and `import_later` read the public names from this list.
if TYPE_CHECKING:
    from rxloop.pipeline.artifact_rules import ArtifactChunk as ArtifactChunk
    from rxloop.pipeline.artifact_rules import ArtifactRecord as ArtifactRecord
    from rxloop.pipeline.artifacts import Artifacts as Artifacts
    from rxloop.pipeline.artifacts import ArtifactStore as ArtifactStore
    from rxloop.pipeline.artifacts import Draft as Draft
    from rxloop.pipeline.artifacts import RunArtifacts as RunArtifacts
    from rxloop.pipeline.interfaces import Budget as Budget
    from rxloop.pipeline.interfaces import Growth as Growth
    from rxloop.pipeline.interfaces import Think as Think
    from rxloop.pipeline.interfaces import TokenCounter as TokenCounter
    from rxloop.pipeline.interfaces import Trigger as Trigger
    from rxloop.pipeline.interfaces import WorkspacePart as WorkspacePart
    from rxloop.pipeline.thinking_result import ThinkingResult as ThinkingResult
    from rxloop.support.tasks import Clock as Clock
