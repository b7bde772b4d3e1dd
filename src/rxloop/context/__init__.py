"""What fits the window: counting, compressors, workspaces."""

from rxloop.context.blocks import Block, blocks_of, problems_of, repaired
from rxloop.context.composition import ChainedCompressor
from rxloop.context.compressing import Compressed, Compression, LastCut
from rxloop.context.counting import TextCounter, TokenEstimator
from rxloop.context.facts import Fact, facts_of
from rxloop.context.folder import FolderWorkspace
from rxloop.context.ledger import FactLedger
from rxloop.context.semantic import SemanticCompressor
from rxloop.context.sliding_window import SlidingWindowCompressor
from rxloop.context.summarising import Summary, reflect
from rxloop.context.token_budget import TokenBudgetCompressor
from rxloop.context.workspace import CompositeWorkspace, Scratchpad, TextWorkspace
from rxloop.pipeline.values import ThinkingResult

__all__ = [
    "Block",
    "ChainedCompressor",
    "CompositeWorkspace",
    "Compressed",
    "Compression",
    "Fact",
    "FactLedger",
    "FolderWorkspace",
    "LastCut",
    "Scratchpad",
    "SemanticCompressor",
    "SlidingWindowCompressor",
    "Summary",
    "TextCounter",
    "TextWorkspace",
    "ThinkingResult",
    "TokenBudgetCompressor",
    "TokenEstimator",
    "blocks_of",
    "facts_of",
    "problems_of",
    "reflect",
    "repaired",
]
